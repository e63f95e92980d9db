"""Whose turn it is to be away: so many hosts at a time, in the inventory's order, and nobody after one went wrong."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from pyinfra.api.host import Host
from pyinfra.api.state import State

_LOOK_SECONDS = 0.5  # a host that is done with something else tells nobody

_of_states: WeakKeyDictionary[State, Turns] = WeakKeyDictionary()


@dataclass(slots=True)
class Turns:
    """The turns of one run of pyinfra's.

    Attributes:
        went_wrong: The host whose absence did not end well; empty for none.
    """

    went_wrong: str = ""
    _wants: dict[str, bool] = field(default_factory=dict)
    _away: set[str] = field(default_factory=set)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    @staticmethod
    def of(state: State) -> Turns:
        """Return the turns that all hosts of a run share."""
        return _of_states.setdefault(state, Turns())

    def announce(self, host: Host, *, wants: bool) -> None:
        """Say whether a host wants a turn; those that come after it in the inventory wait for that."""
        with self._changed:
            self._wants[host.name] = wants
            self._changed.notify_all()

    @contextmanager
    def taken(self, state: State, host: Host, *, most: int) -> Iterator[bool]:
        """Wait for a turn; False where there will be none, since something went wrong.

        Args:
            most: How many hosts may be away then, this one among them.
        """
        with self._changed:
            while not self.went_wrong and (len(self._away) >= most or self._is_early(state, host)):
                self._changed.wait(_LOOK_SECONDS)
            goes = not self.went_wrong
            self._wants[host.name] = False
            self._away |= {host.name} if goes else set()
            self._changed.notify_all()
        try:
            yield goes
        finally:
            with self._changed:
                self._away.discard(host.name)
                self._changed.notify_all()

    def stop(self, name: str) -> None:
        """Let no host have its turn after the one that is named."""
        with self._changed:
            self.went_wrong = self.went_wrong or name
            self._changed.notify_all()

    def _is_early(self, state: State, host: Host) -> bool:
        """Whether a host that comes before in the inventory wants its turn, or is just finding out."""
        for other in state.inventory:
            if other.name == host.name:
                return False
            same = other.executing_op_hash == host.executing_op_hash
            if same and self._wants.get(other.name, True):
                return True
        return False
