"""From raw states to settled ones: what waits, what is blocked, and what has had its time.

A component's clock on a node starts when everything that it requires there is ready, so a slow driver never costs
the toolkit its deadline.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NamedTuple

from gpu_provision import components
from gpu_provision.engine.reading import Reading
from gpu_provision.model.progress import NodeState, State
from gpu_provision.planning.states import Key
from gpu_provision.planning.upgrades import is_kept

SETTLED = frozenset({State.READY, State.FAILED, State.BLOCKED, State.LEAVING})
_BROKEN = frozenset({State.FAILED, State.BLOCKED})


BUSY = "Insufficient nvidia.com/gpu"
"""How the scheduler says that other pods have all GPUs of a node."""

NOT_VALIDATED = "not validated yet: all GPUs of the node are in use"
"""Reason of a validation that waits for a free GPU; the node is in use, so this fails no run."""

_BUSY_SECONDS = 30

STEADY_SECONDS = 30.0
"""For how long something has to be ready before it gets all its time anew: in a crash loop it is so for moments."""


class _Before(NamedTuple):
    """What was settled last, and what came of it."""

    raw: Mapping[Key, NodeState]
    untimed: frozenset[Key]
    rejected: Mapping[Key, str]
    settled: dict[Key, NodeState]


_NOTHING = _Before({}, frozenset(), {}, {})


@dataclass(slots=True)
class Settler:
    """Remembers when each clock started, and what a node came to of which nothing has changed.

    Attributes:
        requires: Component -> the components that it requires and that are on.
        timeouts: Component -> seconds.
        rejected: (component, node) -> why the API server refused it, for good.
    """

    requires: Mapping[str, tuple[str, ...]]
    timeouts: Mapping[str, int]
    rejected: dict[Key, str] = field(default_factory=dict)
    _since: dict[Key, float] = field(default_factory=dict)
    _spent: dict[Key, float] = field(default_factory=dict)
    _due: dict[Key, float] = field(default_factory=dict)
    _overdue: dict[Key, str] = field(default_factory=dict)
    _settled_at: dict[Key, float] = field(default_factory=dict)
    _before: _Before = field(default_factory=lambda: _NOTHING)

    def settle(
        self, raw: Mapping[Key, NodeState], now: float, *, untimed: Collection[Key] = ()
    ) -> dict[Key, NodeState]:
        """Return the states with waiting, blocking and deadlines applied. ``raw`` is in dependency order.

        Args:
            untimed: What somebody else keeps the time of, or what waits for its turn.
        """
        self._due.clear()
        rejected = dict(self.rejected)  # a copy: steps add to it from their threads
        before, self._before = self._before, _Before(raw, frozenset(untimed), rejected, {})
        nodes = {node for _, node in chain(self._since, _changed(before, self._before))}
        is_whole = "" in nodes
        settled = {} if is_whole else _in_order(before.settled, raw)
        for key in raw if is_whole else [key for key in raw if key[1] in nodes]:
            settled[key] = self._settled(key, settled, now)
        self._before = self._before._replace(settled=settled)
        return settled | _rejected_elsewhere(settled, rejected)

    def _settled(self, key: Key, known: Mapping[Key, NodeState], now: float) -> NodeState:
        state, rejected = self._before.raw[key], self._before.rejected
        if key in rejected:
            return replace(state, state=State.FAILED, reason=rejected[key])
        if state.state in SETTLED:
            self._overdue.pop(key, None)
            self._pause(key, now)
            self._settled_at.setdefault(key, now)
            return state
        if (waiting := _waiting(state, self._required(key, known))) is not None:
            self._pause(key, now)
            return waiting
        if key in self._before.untimed:
            self._pause(key, now)
            return state
        return self._timed(key, state, now)

    def _required(self, key: Key, known: Mapping[Key, NodeState]) -> dict[str, NodeState]:
        component, node = key
        required = {}
        for name in self.requires.get(component, ()):
            for found in (known.get((name, "")), known.get((name, node))):
                if found is None or is_kept(found):  # previous content does what is asked of it, too
                    continue
                if name not in required or found.state is not State.READY or found.reason:
                    required[name] = found
        shared = known.get((component, "")) if node else None
        return required | ({component: shared} if shared else {})

    def _pause(self, key: Key, now: float) -> None:
        """Stop a clock without forgetting it: a requirement that comes and goes must not grant time for ever."""
        if key in self._since:
            self._spent[key] = now - self._since.pop(key)

    def _timed(self, key: Key, state: NodeState, now: float) -> NodeState:
        if now - self._settled_at.pop(key, now) >= STEADY_SECONDS:
            self._spent.pop(key, None)
        since = self._since.setdefault(key, now - self._spent.pop(key, 0.0))
        busy, limit = BUSY in state.reason, self.timeouts.get(key[0], _DEFAULT_SECONDS)
        due = since + (min(limit, _BUSY_SECONDS) if busy else limit)
        if now <= due and (busy or key not in self._overdue):
            self._due[key] = due
            return state
        if busy:
            return replace(state, state=State.READY, reason=NOT_VALIDATED)
        reason = self._overdue.setdefault(key, f"{state.reason} (not ready after {limit} s)")
        return replace(state, state=State.FAILED, reason=reason)

    def next_deadline(self, now: float) -> float:
        """Return in how many seconds the next clock runs out, at most 30."""
        return min([_LONGEST_WAIT, *(max(due - now, 0.0) + _JUST_AFTER for due in self._due.values())])


def _in_order(settled: dict[Key, NodeState], raw: Mapping[Key, NodeState]) -> dict[Key, NodeState]:
    """Return what was settled with a place for everything that there is now, of nodes that came as well."""
    return settled if settled.keys() == raw.keys() else {key: settled.get(key, state) for key, state in raw.items()}


def _waiting(state: NodeState, required: Mapping[str, NodeState]) -> NodeState | None:
    """Return the state of what cannot go on, because of what it requires; None if it can."""
    broken = next((name for name, found in required.items() if found.state in _BROKEN), "")
    if broken:
        return replace(state, state=State.BLOCKED, reason=f"needs {broken}, which is not ready here")
    if waits := [name for name, found in required.items() if found.state is not State.READY]:
        return replace(state, state=State.PENDING, reason=f"waits for {', '.join(waits)}")
    if any(found.reason == NOT_VALIDATED for found in required.values()):
        return replace(state, state=State.READY, reason=NOT_VALIDATED)
    return None


def _changed(before: _Before, now: _Before) -> Iterator[Key]:
    """Yield what is not as it was. Most states are the very same as before, which costs less to see."""
    others = [key for key, state in now.raw.items() if before.raw.get(key) is not state]
    yield from (key for key in others if before.raw.get(key) != now.raw[key])
    yield from before.raw.keys() - now.raw.keys()
    yield from now.untimed ^ before.untimed
    yield from (key for key, _ in now.rejected.items() ^ before.rejected.items())


def _rejected_elsewhere(settled: Mapping[Key, NodeState], rejected: Mapping[Key, str]) -> dict[Key, NodeState]:
    """What was refused on nodes that have no state of their own, such as the labels of a node without a GPU."""
    return {
        (component, node): NodeState(component=component, node=node, state=State.FAILED, reason=reason)
        for (component, node), reason in rejected.items()
        if (component, node) not in settled
    }


def settler_of(reading: Reading) -> Settler:
    """Return a settler with the requirements and deadlines of a reading's components."""
    inventory = reading.context.inventory
    return Settler(
        requires=components.requirements(inventory),
        timeouts={
            component.name: getattr(component.spec(inventory), "timeout", _DEFAULT_SECONDS)
            for component in components.COMPONENTS
            if component.name in reading.desired
        },
    )


_DEFAULT_SECONDS = 300
_LONGEST_WAIT, _JUST_AFTER = 30.0, 0.05
