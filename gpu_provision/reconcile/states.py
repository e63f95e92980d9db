"""States of components in a run: dependencies, deadlines, and progress reports to listeners."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from gpu_provision import components
from gpu_provision.components import machine_config
from gpu_provision.model.progress import Event, NodeState, State, Transition
from gpu_provision.planning.states import ClusterState, ComponentNode
from gpu_provision.planning.upgrades import DRIVER, is_kept
from gpu_provision.reconcile.plan import ClusterPlan
from gpu_provision.rollout.states import STATE

TERMINAL_STATES = frozenset({State.READY, State.FAILED, State.BLOCKED, State.LEAVING})
_BROKEN = frozenset({State.FAILED, State.BLOCKED})

BUSY = "Insufficient nvidia.com/gpu"
"""The scheduler's message if other pods have all GPUs of a node."""

NOT_VALIDATED = "not validated yet: all GPUs of the node are in use"
"""Reason of a validation that waits for a free GPU; a run does not fail because of it."""

STEADY_SECONDS = 30.0
"""How long a component has to be ready before its deadline starts over: in a crash loop it is ready for moments."""

_NODE_BY_NODE = frozenset({machine_config.NAME})
"""Components that roll out node by node: a node does not wait for the others, and each progress starts the deadline."""

_BUSY_SECONDS, _DEFAULT_SECONDS = 30, 300
_MAX_WAIT, _JUST_AFTER = 30.0, 0.05


@dataclass(slots=True)
class _Clock:
    """The time that a component takes on a node."""

    since: float | None = None  # when the clock started; None while it is stopped
    spent: float = 0.0  # seconds before the clock was stopped
    settled_at: float | None = None  # since when the component is settled; None if it is not
    overdue: str = ""  # reason of the missed deadline
    reason: str = ""  # where each progress is another reason: the one since which the clock runs

    def stop(self, now: float) -> None:
        """Stop and keep the time: a requirement that comes and goes must not extend the deadline for ever."""
        if self.since is not None:
            self.spent, self.since = now - self.since, None

    def run(self, now: float) -> float:
        """Continue, and return the start time as if the clock had never stopped."""
        if self.settled_at is not None and now - self.settled_at >= STEADY_SECONDS:
            self.spent = 0.0
        self.settled_at = None
        if self.since is None:
            self.since, self.spent = now - self.spent, 0.0
        return self.since


@dataclass(slots=True)
class DeadlineTracker:
    """Applies requirements and deadlines to states; remembers when each clock started."""

    requires: Mapping[str, tuple[str, ...]]  # component -> its enabled requirements
    timeouts: Mapping[str, int]  # component -> seconds
    # why the API server rejected a write; steps add to it
    rejected: dict[ComponentNode, str] = field(default_factory=dict)
    _clocks: dict[ComponentNode, _Clock] = field(default_factory=dict)
    _due: list[float] = field(default_factory=list)

    def settle(
        self, raw: Mapping[ComponentNode, NodeState], now: float, *, without_deadline: Collection[ComponentNode] = ()
    ) -> dict[ComponentNode, NodeState]:
        """Apply requirements and deadlines to states, which are in dependency order.

        ``without_deadline``: states with a deadline elsewhere, or that wait for a slot.
        """
        rejected, settled = dict(self.rejected), dict[ComponentNode, NodeState]()
        self._due = []
        for key, state in raw.items():
            if state.state in TERMINAL_STATES and key not in self._clocks and key not in rejected:
                settled[key] = state  # without calls: most states of a large fleet
            elif key not in rejected:
                settled[key] = self._settle_state(key, state, settled, now, is_timed=key not in without_deadline)
            else:
                settled[key] = replace(state, state=State.FAILED, reason=rejected[key])
        self._clocks = {key: clock for key, clock in self._clocks.items() if key in raw}
        for key in (key for key in rejected if key not in raw):  # such as the labels of a node without a GPU
            settled[key] = NodeState(component=key[0], node=key[1], state=State.FAILED, reason=rejected[key])
        return settled

    def _settle_state(
        self,
        key: ComponentNode,
        state: NodeState,
        known: Mapping[ComponentNode, NodeState],
        now: float,
        *,
        is_timed: bool,
    ) -> NodeState:
        clock = self._clocks.get(key)
        is_settled = state.state in TERMINAL_STATES
        waiting = None if is_settled else _waiting_state(state, self._find_required(key, known))
        if is_timed and not is_settled and waiting is None:
            return self._apply_deadline(key, state, now)
        if clock:
            clock.stop(now)
        if clock and is_settled:
            clock.overdue = ""
            clock.settled_at = now if clock.settled_at is None else clock.settled_at
        return waiting or state

    def _find_required(self, key: ComponentNode, known: Mapping[ComponentNode, NodeState]) -> dict[str, NodeState]:
        component, node = key
        required = dict[str, NodeState]()
        for name in self.requires.get(component, ()):
            for state in (known.get((name, "")) if name not in _NODE_BY_NODE else None, known.get((name, node))):
                if state is None or is_kept(state):  # a driver with previous content meets the requirement
                    continue
                if name not in required or state.state is not State.READY or state.reason:
                    required[name] = state
        stands_alone = component in _NODE_BY_NODE and (component, "") not in self.rejected
        shared = known.get((component, "")) if node and not stands_alone else None
        return required | ({component: shared} if shared else {})

    def _apply_deadline(self, key: ComponentNode, state: NodeState, now: float) -> NodeState:
        clock = self._clocks.setdefault(key, _Clock())
        if key[0] in _NODE_BY_NODE and clock.reason != state.reason:
            clock = self._clocks[key] = _Clock(reason=state.reason)
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
        """Return the seconds until the next deadline, at most 30."""
        return min([_MAX_WAIT, *(max(due - now, 0.0) + _JUST_AFTER for due in self._due)])


def _waiting_state(state: NodeState, required: Mapping[str, NodeState]) -> NodeState | None:
    if broken := next((name for name, state_of_required in required.items() if state_of_required.state in _BROKEN), ""):
        return replace(state, state=State.BLOCKED, reason=f"needs {broken}, which is not ready here")
    if waits := [name for name, state_of_required in required.items() if state_of_required.state is not State.READY]:
        return replace(state, state=State.PENDING, reason=f"waits for {', '.join(waits)}")
    if any(state_of_required.reason == NOT_VALIDATED for state_of_required in required.values()):
        return replace(state, state=State.READY, reason=NOT_VALIDATED)
    return None


def deadline_tracker(reading: ClusterPlan) -> DeadlineTracker:
    """Return the tracker for the components of a reading."""
    inventory = reading.context.inventory
    specs = {each.name: each.spec(inventory) for each in components.COMPONENTS if each.name in reading.desired}
    timeouts = {name: getattr(spec, "timeout", _DEFAULT_SECONDS) for name, spec in specs.items()}
    return DeadlineTracker(components.requirements(inventory), timeouts)


class ProgressReporter:
    """Reports changed states to listeners, and records them in the timeline."""

    def __init__(
        self, listen: Callable[[Event], None], began: float, *, known: Mapping[ComponentNode, NodeState] | None = None
    ) -> None:
        """Start without reports; ``known`` states are reported already. ``began`` is of a monotonic clock."""
        self._listen, self._timeline = listen, Timeline(began)
        self._known, self.states = known or {}, dict[ComponentNode, NodeState]()  # as reported last

    @property
    def timeline(self) -> tuple[Transition, ...]:
        """All changes so far."""
        return tuple(self._timeline.transitions)

    @property
    def is_settled(self) -> bool:
        """Whether all reported states are settled."""
        return all(state.state in TERMINAL_STATES for state in self.states.values())

    def report_message(self, message: str) -> None:
        """Report a message about the run as a whole."""
        self._listen(Event(component="", node="", state=State.PROGRESSING, message=message))

    def report_states(self, states: Mapping[ComponentNode, NodeState]) -> None:
        """Report the changed ones of all states."""
        known = self._known
        on_nodes = {component for component, node in states if node} if states.keys() != known.keys() else ()
        for key, state in states.items():
            if (before := known.get(key)) is state:
                continue
            if before is None and not state.node and state.component in on_nodes and state.state is State.READY:
                continue  # its nodes are reported
            if before != state:
                name, node, reason = state.component, state.node, state.reason
                event = Event(component=name, node=node, state=state.state, message=reason, step=state.step)
                self._timeline.observe(event, time.monotonic())
                self._listen(event)
        self._known = self.states = dict(states)


MAX_TRANSITIONS = 50_000
"""Maximum of recorded transitions: four of each of twelve components on a thousand nodes."""

_MAX_REASONS = 10_000  # beyond this number a new reason alone is not recorded


@dataclass(slots=True)
class Timeline:
    """Records events as transitions. ``began`` is on the clock of `observe`."""

    began: float
    transitions: list[Transition] = field(default_factory=list)
    _last: dict[ComponentNode, Transition] = field(default_factory=dict)

    def observe(self, event: Event, now: float) -> Transition | None:
        """Record an event and return its transition; None if nothing has changed, or the event has no component."""
        if not event.component or len(self.transitions) >= MAX_TRANSITIONS:
            return None
        before = self._last.get((event.component, event.node))
        stays = before is not None and (before.state, before.step) == (event.state, event.step)
        if before and stays and (before.reason == event.message or len(self.transitions) >= _MAX_REASONS):
            return None
        at, name, node = round(now - self.began, 3), event.component, event.node
        transition = Transition(
            at=at, component=name, node=node, state=event.state, step=event.step, reason=event.message
        )
        self._last[name, node] = transition
        self.transitions.append(transition)
        return transition


def with_steps(
    settled: Mapping[ComponentNode, NodeState], seen: ClusterState, ahead: Mapping[str, str] | None = None
) -> dict[ComponentNode, NodeState]:
    """Return states in which drivers have their rollout step, from the node's label.

    ``ahead``: node -> the label as written, where the watch may lag behind.
    """
    steps = {target.name: target.facts.labels.get(STATE, "") for target in seen.context.targets if target.facts}
    steps |= ahead or {}
    drivers = ((step, settled.get((DRIVER, node))) for node, step in steps.items() if step)
    changed = {
        (DRIVER, state.node): replace(state, step=step) for step, state in drivers if state and state.step != step
    }
    return {**settled, **changed}
