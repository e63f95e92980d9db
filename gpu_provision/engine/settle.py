"""From raw states to settled ones: what waits, what is blocked, and what has had its time.

A component's clock on a node starts when everything that it requires there is ready, so a slow driver never costs
the toolkit its deadline.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from gpu_provision import components
from gpu_provision.engine.reading import Reading
from gpu_provision.model.progress import NodeState, State
from gpu_provision.planning.states import Key
from gpu_provision.planning.upgrades import is_kept

SETTLED = frozenset({State.READY, State.FAILED, State.BLOCKED})
_BROKEN = frozenset({State.FAILED, State.BLOCKED})


BUSY = "Insufficient nvidia.com/gpu"
"""How the scheduler says that other pods have all GPUs of a node."""

NOT_VALIDATED = "not validated yet: all GPUs of the node are in use"
"""Reason of a validation that waits for a free GPU; the node is in use, so this fails no run."""

_BUSY_SECONDS = 30


@dataclass(slots=True)
class Settler:
    """Remembers when each clock started; everything else is passed in.

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

    def settle(
        self, raw: Mapping[Key, NodeState], now: float, *, untimed: Collection[Key] = ()
    ) -> dict[Key, NodeState]:
        """Return the states with waiting, blocking and deadlines applied. ``raw`` is in dependency order.

        Args:
            untimed: What somebody else keeps the time of, or what waits for its turn.
        """
        self._due.clear()
        settled: dict[Key, NodeState] = {}
        for key, state in raw.items():
            settled[key] = self._settled(key, state, settled, now, is_timed=key not in untimed)
        return settled | self._rejected_elsewhere(settled)

    def _rejected_elsewhere(self, settled: Mapping[Key, NodeState]) -> dict[Key, NodeState]:
        """What was refused on nodes that have no state of their own, such as the labels of a node without a GPU."""
        return {
            (component, node): NodeState(component=component, node=node, state=State.FAILED, reason=reason)
            for (component, node), reason in dict(self.rejected).items()  # a copy: steps add to it from their threads
            if (component, node) not in settled
        }

    def _settled(
        self, key: Key, state: NodeState, known: Mapping[Key, NodeState], now: float, *, is_timed: bool
    ) -> NodeState:
        if key in self.rejected:
            return replace(state, state=State.FAILED, reason=self.rejected[key])
        if state.state in SETTLED:
            for clock in (self._overdue, self._since, self._spent):
                clock.pop(key, None)
            return state
        required = self._required(key, known)
        for name, found in required.items():
            if found.state in _BROKEN:
                self._pause(key, now)
                return replace(state, state=State.BLOCKED, reason=f"needs {name}, which is not ready here")
        waits = [name for name, found in required.items() if found.state is not State.READY]
        if waits:
            self._pause(key, now)
            return replace(state, state=State.PENDING, reason=f"waits for {', '.join(waits)}")
        if not is_timed:
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
                if name not in required or found.state is not State.READY:
                    required[name] = found
        shared = known.get((component, "")) if node else None
        return required | ({component: shared} if shared else {})

    def _pause(self, key: Key, now: float) -> None:
        """Stop a clock without forgetting it: a requirement that comes and goes must not grant time for ever."""
        if key in self._since:
            self._spent[key] = now - self._since.pop(key)

    def _timed(self, key: Key, state: NodeState, now: float) -> NodeState:
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
