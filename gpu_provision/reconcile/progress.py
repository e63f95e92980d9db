"""Report how a run goes to its listeners, and write down each change with its time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from gpu_provision.model.progress import Event, NodeState, State, Transition
from gpu_provision.planning.states import ClusterState, Key
from gpu_provision.reconcile.states import TERMINAL_STATES
from gpu_provision.rollout import states

_NOTHING: Mapping[Key, NodeState] = MappingProxyType({})


class ProgressReporter:
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
        return all(state.state in TERMINAL_STATES for state in self.states.values())

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


MOST = 50_000
"""Transitions that are kept: four of each of twelve components on a thousand nodes."""


_MOST_REASONS = 10_000  # from here on a new reason alone is not worth its memory


@dataclass(slots=True)
class Timeline:
    """Writes events down. ``began`` is on the clock of `observe`."""

    began: float
    transitions: list[Transition] = field(default_factory=list)
    _last: dict[Key, Transition] = field(default_factory=dict)

    def observe(self, event: Event, now: float) -> Transition | None:
        """Take an event in and return the transition; None if it says nothing new, or is the run's own word."""
        if not event.component or len(self.transitions) >= MOST:
            return None
        transition = Transition(
            at=round(now - self.began, 3),
            component=event.component,
            node=event.node,
            state=event.state,
            step=event.step,
            reason=event.message,
        )
        if not self._is_news(transition):
            return None
        self._last[event.component, event.node] = transition
        self.transitions.append(transition)
        return transition

    def _is_news(self, new: Transition) -> bool:
        before = self._last.get((new.component, new.node))
        if before is None or (before.state, before.step) != (new.state, new.step):
            return True
        return before.reason != new.reason and len(self.transitions) < _MOST_REASONS


_NO_STATE: Mapping[str, str] = MappingProxyType({})


def with_steps(
    settled: Mapping[Key, NodeState], seen: ClusterState, ahead: Mapping[str, str] = _NO_STATE
) -> dict[Key, NodeState]:
    """Return states in which that of a node's driver says how far its replacement is, as the node's label has it.

    Args:
        ahead: Node -> the label, where it has been written and the watch may not have shown that yet.
    """
    steps = {target.name: target.facts.labels.get(states.STATE, "") for target in seen.context.targets if target.facts}
    steps |= ahead
    drivers = ((step, settled.get((_DRIVER, node))) for node, step in steps.items() if step)
    return {
        **settled,
        **{(_DRIVER, state.node): replace(state, step=step) for step, state in drivers if state and state.step != step},
    }


_DRIVER = "driver"
