"""The state of each component on each node, with deadlines: what waits, what is blocked, what is too late."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from gpu_provision import components
from gpu_provision.model.progress import NodeState, State
from gpu_provision.planning.states import Key
from gpu_provision.planning.upgrades import is_kept
from gpu_provision.reconcile.plan import ClusterPlan

TERMINAL_STATES = frozenset({State.READY, State.FAILED, State.BLOCKED, State.LEAVING})
_BROKEN = frozenset({State.FAILED, State.BLOCKED})


BUSY = "Insufficient nvidia.com/gpu"
"""How the scheduler says that other pods have all GPUs of a node."""

NOT_VALIDATED = "not validated yet: all GPUs of the node are in use"
"""Reason of a validation that waits for a free GPU; the node is in use, so this fails no run."""

_BUSY_SECONDS = 30

STEADY_SECONDS = 30.0
"""For how long something has to be ready before its deadline starts over: in a crash loop it is ready for moments."""


@dataclass(slots=True)
class _Clock:
    """The time that a component takes on a node.

    Attributes:
        since: When it began; None while it stands.
        spent: Seconds before it stood.
        settled_at: Since when the component is settled; None if it is not.
        overdue: Why it was too late; empty if it was not.
    """

    since: float | None = None
    spent: float = 0.0
    settled_at: float | None = None
    overdue: str = ""

    def stop(self, now: float) -> None:
        """Stop without forgetting: a requirement that comes and goes must not grant time for ever."""
        if self.since is not None:
            self.spent, self.since = now - self.since, None

    def run(self, now: float) -> float:
        """Go on, and return since when it runs, as if it had never stood."""
        if self.settled_at is not None and now - self.settled_at >= STEADY_SECONDS:
            self.spent = 0.0
        self.settled_at = None
        if self.since is None:
            self.since, self.spent = now - self.spent, 0.0
        return self.since


@dataclass(slots=True)
class DeadlineTracker:
    """Remembers when each clock started.

    Attributes:
        requires: Component -> the components that it requires and that are on.
        timeouts: Component -> seconds.
        rejected: (component, node) -> why the API server refused it, for good.
    """

    requires: Mapping[str, tuple[str, ...]]
    timeouts: Mapping[str, int]
    rejected: dict[Key, str] = field(default_factory=dict)
    _clocks: dict[Key, _Clock] = field(default_factory=dict)
    _due: list[float] = field(default_factory=list)

    def settle(
        self, raw: Mapping[Key, NodeState], now: float, *, untimed: Collection[Key] = ()
    ) -> dict[Key, NodeState]:
        """Return the states with waiting, blocking and deadlines applied. ``raw`` is in dependency order.

        Args:
            untimed: What has its time kept elsewhere, or waits for its turn.
        """
        rejected, settled = dict(self.rejected), dict[Key, NodeState]()  # a copy: steps add to it from their threads
        self._due = []
        for key, state in raw.items():
            if key in rejected:
                settled[key] = replace(state, state=State.FAILED, reason=rejected[key])
            else:
                settled[key] = self._settled(key, state, settled, now, is_timed=key not in untimed)
        self._clocks = {key: clock for key, clock in self._clocks.items() if key in raw}
        return settled | _rejected_elsewhere(settled, rejected)

    def _settled(
        self, key: Key, state: NodeState, known: Mapping[Key, NodeState], now: float, *, is_timed: bool
    ) -> NodeState:
        clock = self._clocks.get(key)
        is_settled = state.state in TERMINAL_STATES
        waiting = None if is_settled else _waiting(state, self._required(key, known))
        if is_timed and not is_settled and waiting is None:
            return self._timed(key, state, now)
        if clock:
            clock.stop(now)
        if clock and is_settled:
            clock.overdue = ""
            clock.settled_at = now if clock.settled_at is None else clock.settled_at
        return waiting or state

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

    def _timed(self, key: Key, state: NodeState, now: float) -> NodeState:
        clock = self._clocks.setdefault(key, _Clock())
        busy, limit = BUSY in state.reason, self.timeouts.get(key[0], _DEFAULT_SECONDS)
        due = clock.run(now) + (min(limit, _BUSY_SECONDS) if busy else limit)
        if now <= due and (busy or not clock.overdue):
            self._due.append(due)
            return state
        if busy:
            return replace(state, state=State.READY, reason=NOT_VALIDATED)
        clock.overdue = clock.overdue or f"{state.reason} (not ready after {limit} s)"
        return replace(state, state=State.FAILED, reason=clock.overdue)

    def next_deadline(self, now: float) -> float:
        """Return in how many seconds the next clock runs out, at most 30."""
        return min([_LONGEST_WAIT, *(max(due - now, 0.0) + _JUST_AFTER for due in self._due)])


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


def _rejected_elsewhere(settled: Mapping[Key, NodeState], rejected: Mapping[Key, str]) -> dict[Key, NodeState]:
    """What was refused on nodes that have no state of their own, such as the labels of a node without a GPU."""
    return {
        (component, node): NodeState(component=component, node=node, state=State.FAILED, reason=reason)
        for (component, node), reason in rejected.items()
        if (component, node) not in settled
    }


def deadline_tracker(reading: ClusterPlan) -> DeadlineTracker:
    """Return a settler with the requirements and deadlines of a reading's components."""
    inventory = reading.context.inventory
    return DeadlineTracker(
        requires=components.requirements(inventory),
        timeouts={
            component.name: getattr(component.spec(inventory), "timeout", _DEFAULT_SECONDS)
            for component in components.COMPONENTS
            if component.name in reading.desired
        },
    )


_DEFAULT_SECONDS = 300
_LONGEST_WAIT, _JUST_AFTER = 30.0, 0.05
