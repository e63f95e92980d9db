"""Where components stand, again and again: a node of which nothing has changed is not judged anew."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gpu_provision.model.cluster import Target
from gpu_provision.model.progress import NodeState
from gpu_provision.planning.states import Desired, Key, PerNode, Situation, joined, per_node, states_of


@dataclass(slots=True)
class Standing:
    """Has the answers of `planning.states.states` for the situations of one run."""

    _desired: Desired = field(default_factory=dict)
    _parts: dict[str, PerNode] = field(default_factory=dict)
    _known: dict[str, tuple[tuple[Any, ...], dict[str, NodeState]]] = field(default_factory=dict)

    def states(self, seen: Situation) -> dict[Key, NodeState]:
        """Return the state of every component as a whole, and on every node that it concerns."""
        if seen.desired is not self._desired:
            self._take(seen.desired)
        return joined(seen, {target.name: self._states_of(target, seen) for target in seen.context.targets})

    def _take(self, desired: Desired) -> None:
        parts = per_node(desired)
        daemonsets = {component: part.daemonsets for component, part in parts.items()}
        if daemonsets != {component: part.daemonsets for component, part in self._parts.items()}:
            self._known.clear()
        self._desired, self._parts = desired, parts

    def _states_of(self, target: Target, seen: Situation) -> dict[str, NodeState]:
        basis = self._basis(target, seen)
        known = self._known.get(target.name)
        if known is None or known[0] != basis:
            known = self._known[target.name] = basis, states_of(target, self._parts, seen)
        return known[1]

    def _basis(self, target: Target, seen: Situation) -> tuple[Any, ...]:
        """Return all that the states on a node are read off, besides the DaemonSets."""
        name, pods, passed = target.name, seen.pods, seen.observed.passed
        return (
            target,
            [pods.get((component, name)) for component in self._parts],
            [
                (part.single.get(name), passed.get((component, name)))
                for component, part in self._parts.items()
                if part.single
            ],
        )
