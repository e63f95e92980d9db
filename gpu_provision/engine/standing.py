"""Where components stand, again and again: a node of which nothing has changed is not judged anew."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NamedTuple

from gpu_provision.model.cluster import Manifest, Target
from gpu_provision.model.progress import NodeState, State
from gpu_provision.planning.states import (
    Desired,
    Key,
    PerNode,
    Situation,
    joined,
    shared_state,
    states_of,
    states_of_leaving,
)


class _Basis(NamedTuple):
    """All that states on nodes are read off."""

    desired: Desired
    parts: Mapping[str, PerNode]
    targets: Mapping[str, Target]
    pods: Mapping[Key, tuple[Manifest, ...]]
    passed: Mapping[Key, str]


_NOTHING = _Basis({}, {}, {}, {}, {})


@dataclass(slots=True)
class Standing:
    """Has the answers of `planning.states.states` for the situations of one run."""

    _basis: _Basis = _NOTHING
    _on_nodes: dict[str, dict[str, NodeState]] = field(default_factory=dict)
    _all: dict[Key, NodeState] = field(default_factory=dict)

    @property
    def ready(self) -> dict[Key, NodeState]:
        """What was ready when it was judged last."""
        return {key: state for key, state in self._all.items() if state.state is State.READY}

    def copy(self) -> Standing:
        """Return one that goes on from here."""
        return replace(self, _all=dict(self._all))

    def states(self, seen: Situation) -> dict[Key, NodeState]:
        """Return the state of every component as a whole, and on every node that it concerns."""
        before, now = self._basis, _basis_of(seen)
        changed = _changed(before, now)
        new = {name: states_of(now.targets[name], seen) for name in changed}
        is_alike = (
            list(before.desired) == list(now.desired)
            and list(before.targets) == list(now.targets)
            and all(self._on_nodes[name].keys() == found.keys() for name, found in new.items())
        )
        standing = {**self._on_nodes, **new}
        self._basis, self._on_nodes = now, {name: standing[name] for name in now.targets}
        if is_alike:  # then each state has its place, and takes it at a cost that goes by what has changed
            self._all |= {(component, ""): shared_state(component, seen) for component in seen.desired}
            self._all |= {(component, name): state for name in new for component, state in new[name].items()}
        else:
            self._all = joined(seen, self._on_nodes)
        return self._all | states_of_leaving(seen)


def _basis_of(seen: Situation) -> _Basis:
    targets = {target.name: target for target in seen.context.targets}
    return _Basis(seen.desired, seen.parts, targets, seen.pods, dict(seen.observed.passed))


def _changed(before: _Basis, now: _Basis) -> Collection[str]:
    """Return the nodes of which something is not as it was."""
    if now.parts is not before.parts and _daemonsets(now) != _daemonsets(before):
        return now.targets.keys()
    names = {name for name, target in now.targets.items() if before.targets.get(name) is not target}
    if now.parts is not before.parts:
        names.update(*(_with_other_manifests(before.parts[name], now.parts[name]) for name in now.parts))
    keys = chain(
        (key for key, pods in now.pods.items() if before.pods.get(key) is not pods),
        before.pods.keys() - now.pods.keys(),
        (key for key, _ in now.passed.items() ^ before.passed.items()),
    )
    return names.union(node for _, node in keys) & now.targets.keys()


def _daemonsets(basis: _Basis) -> dict[str, tuple[Manifest, ...]]:
    return {component: part.daemonsets for component, part in basis.parts.items()}


def _with_other_manifests(before: PerNode, now: PerNode) -> set[str]:
    """Return the nodes that a component has something else on, or nothing any more."""
    both = before.single.keys() | now.single.keys()
    return {name for name in both if before.single.get(name) != now.single.get(name)}
