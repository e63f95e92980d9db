"""The manifests of a fleet, kept current: a node that changes has its own made again, and no other node."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeVar

from gpu_provision.components import node_labels
from gpu_provision.components.targets import context, targets
from gpu_provision.components.toolkit_runtimes import runtime_of
from gpu_provision.model.cluster import ClusterFacts, Context, DriverChoice, Manifest, NodeFacts, Target
from gpu_provision.model.inventory import Inventory, OperatingSystem
from gpu_provision.planning.prepare import prepare, prepare_of_nodes
from gpu_provision.planning.states import Desired, PerNode, node_named, per_node

_ABOUT_A_NODE = frozenset({"Node", "Pod"})
_Value = TypeVar("_Value")


class _Needs(NamedTuple):
    """All of a target that manifests depend on which are about no node alone."""

    pool: str
    os: OperatingSystem | None
    driver: DriverChoice
    driver_group: str
    runtime: str


class Manifests:
    """Has the answers of `planning.prepare.prepare` for one fleet while its nodes change.

    Attributes:
        desired: Component -> its manifests.
        of_nodes: The components all of whose manifests are about one node each.
        parts: Component -> what it has on nodes; see `planning.states.per_node`.
        node_labels: Node -> the labels that it is to have.
        targets: Name -> target, in order; another mapping once all manifests have been made again.
    """

    def __init__(self, known: Context, desired: Desired) -> None:
        """Start from manifests that were made."""
        self._inventory, self._part = known.inventory, known.part
        self._listed = {node.name: node for node in known.inventory.nodes}
        self._take(known, desired)

    def _take(self, known: Context, desired: Desired) -> None:
        self.context, self.desired, self.parts = known, desired, per_node(desired)
        self.node_labels = {item["metadata"]["name"]: _labels(item) for item in desired.get("node_labels", ())}
        self.targets = {target.name: target for target in known.targets}
        self.of_nodes = frozenset(name for name, items in desired.items() if all(map(_is_about_a_node, items)))
        self._alike: dict[_Needs, dict[str, None]] = {}
        for name, target in self.targets.items():
            self._alike.setdefault(_needs(target), {})[name] = None

    def copy(self) -> Manifests:
        """Return manifests that go on from here."""
        other = copy.copy(self)
        other.parts = {name: PerNode(part.daemonsets, dict(part.single)) for name, part in self.parts.items()}
        other.node_labels, other.targets = dict(self.node_labels), dict(self.targets)
        other._alike = {needs: dict(names) for needs, names in self._alike.items()}  # noqa: SLF001 - of the same class
        return other

    def update(
        self, facts: ClusterFacts, nodes: Mapping[str, NodeFacts], changed: Collection[str]
    ) -> Collection[str] | None:
        """Make manifests again; return the nodes of which something is another one, None for all of them.

        Args:
            facts: The cluster as it is now, without its nodes.
            nodes: Its nodes by name, in order.
            changed: Those that have changed, come or gone in what manifests depend on.
        """
        if self._part.nodes or self._needs_others(facts, nodes, changed):
            return self._make_all(replace(facts, nodes=tuple(nodes.values())))
        alike = (next(iter(names)) for names in self._alike.values())
        known = context(*self._fleet_of({*changed, *alike}, facts, nodes))
        for component, made in prepare_of_nodes(known, self.of_nodes, self._part).items():
            self._merge(component, {node_named(item): item for item in made}, changed)
        return changed

    def _fleet_of(
        self, names: Collection[str], facts: ClusterFacts, nodes: Mapping[str, NodeFacts]
    ) -> tuple[Inventory, ClusterFacts]:
        """Return an inventory and a cluster of these nodes alone."""
        order = sorted(names)
        listed = tuple(self._listed[name] for name in order if name in self._listed)
        some = tuple(nodes[name] for name in order if name in nodes)
        return replace(self._inventory, nodes=listed), replace(facts, nodes=some)

    def _needs_others(self, facts: ClusterFacts, nodes: Mapping[str, NodeFacts], changed: Collection[str]) -> bool:
        """Take the targets in that have changed; say whether the fleet has come to need what it did not, or no more."""
        found = {target.name: target for target in targets(*self._fleet_of(changed, facts, nodes))}
        before = set(self._alike)
        for name in changed:
            if name in self.targets:
                needs = _needs(self.targets[name])
                del self._alike[needs][name]
                if not self._alike[needs]:
                    del self._alike[needs]
            if name in found:
                self._alike.setdefault(_needs(found[name]), {})[name] = None
        self.targets = _merged(self.targets, found, changed)
        return self._alike.keys() != before

    def _make_all(self, facts: ClusterFacts) -> Collection[str] | None:
        before = self.parts
        self._take(*prepare(self._inventory, facts, self._part))
        if _daemonsets(before) != _daemonsets(self.parts):
            return None
        return {name for component, part in self.parts.items() for name in _differing(before[component], part)}

    def _merge(self, component: str, made: Mapping[str, Manifest], changed: Collection[str]) -> None:
        before = self.parts.get(component, PerNode((), {}))
        single = _merged(before.single, made, changed)
        self.desired = {**self.desired, component: list(single.values())}
        found = {**self.parts, component: PerNode((), single)}
        kept = ((name, found[name]) for name in self.desired if name in found)
        self.parts = {name: part for name, part in kept if part.daemonsets or part.single}
        if component == node_labels.NAME:
            wanted = {name: _labels(item) for name, item in made.items()}
            self.node_labels = _merged(self.node_labels, wanted, changed)


def _merged(known: Mapping[str, _Value], new: Mapping[str, _Value], names: Collection[str]) -> dict[str, _Value]:
    """Return what is known of nodes, by name, with what is new of some; the same mapping unless one comes."""
    found = known if isinstance(known, dict) else dict(known)
    has_come = any(name in new and name not in found for name in names)
    for name in names:
        if name in new:
            found[name] = new[name]
        else:
            found.pop(name, None)
    return dict(sorted(found.items())) if has_come else found


def _needs(target: Target) -> _Needs:
    return _Needs(target.pool.name, target.os, target.driver, target.driver_group, runtime_of(target))


def _labels(node: Manifest) -> dict[str, str | None]:
    found: dict[str, str | None] = node["metadata"]["labels"]
    return found


def _is_about_a_node(manifest: Manifest) -> bool:
    return manifest["kind"] in _ABOUT_A_NODE


def _daemonsets(parts: Mapping[str, PerNode]) -> dict[str, tuple[Manifest, ...]]:
    return {component: part.daemonsets for component, part in parts.items()}


def _differing(before: PerNode, now: PerNode) -> set[str]:
    """Return the nodes that a component has something else on, or nothing any more."""
    both = before.single.keys() | now.single.keys()
    return {name for name in both if before.single.get(name) != now.single.get(name)}
