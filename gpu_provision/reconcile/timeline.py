"""How a run went: every change of where a component stands on a node, with its time; bounded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from gpu_provision.model.progress import Event, NodeState, Transition
from gpu_provision.planning.states import Key, Situation
from gpu_provision.rollout import states

MOST = 50_000
"""Transitions that are kept: four of each of twelve components on a thousand nodes."""


_MOST_REASONS = 10_000  # from here on a new reason alone is not worth its memory


@dataclass(slots=True)
class Timeline:
    """Writes events down. ``began`` is on the clock that `observe` is told the time of."""

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
    settled: Mapping[Key, NodeState], seen: Situation, ahead: Mapping[str, str] = _NO_STATE
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
