"""Report how a run goes to its listeners."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import MappingProxyType

from gpu_provision.model.progress import Event, NodeState, State, Transition
from gpu_provision.planning.states import Key
from gpu_provision.reconcile.states import SETTLED
from gpu_provision.reconcile.timeline import Timeline

_NOTHING: Mapping[Key, NodeState] = MappingProxyType({})


class Announcer:
    """Tells of states that differ from those before.

    Attributes:
        states: As they were shown last.
    """

    def __init__(
        self, listen: Callable[[Event], None], began: float, *, known: Mapping[Key, NodeState] = _NOTHING
    ) -> None:
        """Start with nothing shown.

        Args:
            listen: Told of each state that is new.
            began: Of a monotonic clock.
            known: What is not new.
        """
        self._listen, self._timeline = listen, Timeline(began)
        self._known, self.states = known, dict[Key, NodeState]()

    @property
    def timeline(self) -> tuple[Transition, ...]:
        """How everything came to stand where it does."""
        return tuple(self._timeline.transitions)

    @property
    def is_settled(self) -> bool:
        """Whether everything that was shown is settled."""
        return all(state.state in SETTLED for state in self.states.values())

    def say(self, message: str) -> None:
        """Tell something that is about no component."""
        self._listen(Event(component="", node="", state=State.PROGRESSING, message=message))

    def show(self, states: Mapping[Key, NodeState]) -> None:
        """Take where everything stands, and tell what is new."""
        known = self._known
        on_nodes = {component for component, node in states if node} if states.keys() != known.keys() else ()
        for key, state in states.items():
            if (before := known.get(key)) is state:
                continue
            if before is None and not state.node and state.component in on_nodes and state.state is State.READY:
                continue  # its nodes tell
            if before != state:
                self._tell(state)
        self._known = self.states = dict(states)

    def _tell(self, state: NodeState) -> None:
        event = Event(
            component=state.component, node=state.node, state=state.state, message=state.reason, step=state.step
        )
        self._timeline.observe(event, time.monotonic())
        self._listen(event)
