"""From live objects to a situation, again and again: what has not changed is not worked out anew."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from gpu_provision.cluster.facts import node_facts
from gpu_provision.cluster.observe import NODE, POD
from gpu_provision.cluster.watching import Mirror, Scope
from gpu_provision.components.labels import DEPLOY_DRIVER, PRE_INSTALLED, VALIDATED
from gpu_provision.engine.groups import Groups
from gpu_provision.engine.reading import Reading
from gpu_provision.model.cluster import ClusterFacts, Context, Kind, Manifest, NodeFacts, ObjectRef, Target
from gpu_provision.model.inventory import Inventory
from gpu_provision.planning.membership import PART_OF, STACK, applyset_id
from gpu_provision.planning.prepare import prepare
from gpu_provision.planning.states import Desired, Key, PerNode, Situation, key_of, per_node, situation

WATCHED = (
    Kind("apps/v1", "DaemonSet"),
    Kind("apps/v1", "Deployment"),
    Kind("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
)
"""Kinds whose objects a run follows."""

# Labels that GPU Feature Discovery, a rollout or validations keep current; no manifest depends on them.
_KEPT_CURRENT = ("cuda.", "gfd.", "gpu.", "gpu-driver-upgrade", "mig.")
_IRRELEVANT = (*(f"nvidia.com/{label}" for label in _KEPT_CURRENT), VALIDATED)
_RELEVANT = ("nvidia.com/gpu.deploy.", "nvidia.com/gpu.present")


class _KnownNode(NamedTuple):
    """A node as last read; ``relevant`` is what manifests can depend on."""

    version: str
    facts: NodeFacts
    relevant: tuple[object, ...]


class _KnownTarget(NamedTuple):
    """A target as manifests were made for it, and with what is known of its node now."""

    prepared: Target
    now: Target


class _Prepared(NamedTuple):
    """Manifests, what they were made from, and which are about a node."""

    relevant: tuple[object, ...]
    context: Context
    desired: Desired
    parts: Mapping[str, PerNode]


def scopes(inventory: Inventory) -> tuple[Scope, ...]:
    """Return what a run follows: nodes, its pods, and its objects that get ready by themselves."""
    members = f"{PART_OF}={applyset_id(inventory.name, inventory.cluster.namespace)}"
    pods = f"{STACK}={inventory.name}"
    return Scope(NODE), Scope(POD, pods), *(Scope(kind, members) for kind in WATCHED)


class View:
    """Looks at the live objects of one run."""

    def __init__(self, reading: Reading) -> None:
        """Start from what was read."""
        self._reading = reading
        self._nodes: dict[str, _KnownNode] = {}
        self._host_drivers = dict(reading.context.facts.host_drivers)
        self._prepared = _prepared(map(_relevant, reading.context.facts.nodes), reading.context, reading.desired)
        self._targets: dict[str, _KnownTarget] = {}
        self._pods = Groups(key_of)

    @property
    def desired(self) -> Desired:
        """What is desired in the end, as of the last look; a situation has what is desired for now."""
        return self._prepared.desired

    def copy(self, reading: Reading) -> View:
        """Return the view of a run of a reading that was made of what is seen here."""
        other = copy.copy(self)
        other._continue(reading)  # noqa: SLF001 - of the same class
        return other

    def _continue(self, reading: Reading) -> None:
        """Take for our own what every look changes, and does not make anew."""
        self._reading, self._pods, self._host_drivers = reading, self._pods.copy(), dict(self._host_drivers)

    def look(self, mirror: Mirror, members: Mapping[ObjectRef, Manifest], passed: Mapping[Key, str]) -> Situation:
        """Return the situation as it is now."""
        known = [self._node(node) for node in sorted(mirror.of(NODE).values(), key=_name)]
        self._nodes = {node.facts.name: node for node in known}
        nodes = tuple(node.facts for node in known)
        facts = replace(self._reading.context.facts, nodes=nodes, host_drivers=dict(self._host_drivers))
        prepared = self._prepare(tuple(node.relevant for node in known), facts)
        observed = replace(
            self._reading.observed,
            facts=facts,
            members=_live(mirror, members),
            pods=mirror.of(POD),
            passed=dict(passed),
        )
        self._targets = {
            target.name: _known(target, self._nodes.get(target.name), self._targets.get(target.name))
            for target in prepared.context.targets
        }
        context = replace(prepared.context, facts=facts, targets=tuple(target for _, target in self._targets.values()))
        self._pods.update(observed.pods.values())
        return situation(context, prepared.desired, observed, self._pods.members, prepared.parts)

    def _prepare(self, relevant: tuple[object, ...], facts: ClusterFacts) -> _Prepared:
        if self._prepared.relevant != relevant:
            wanted = self._reading.context
            self._prepared = _prepared(relevant, *prepare(wanted.inventory, facts, wanted.part))
        return self._prepared

    def _node(self, node: Manifest) -> _KnownNode:
        name, version = node["metadata"]["name"], node["metadata"]["resourceVersion"]
        known = self._nodes.get(name)
        if known is None or known.version != version:
            facts = node_facts(node)
            self._believe_the_manager(known.facts.labels if known else {}, facts)
            return _KnownNode(version, facts, _relevant(facts))
        return known

    def _believe_the_manager(self, before: Mapping[str, str], node: NodeFacts) -> None:
        """Forget what was read of a host once the driver manager there has found a driver that works.

        It has run the host's nvidia-smi after we looked; to contradict it would start a quarrel without an end.
        """
        if before.get(DEPLOY_DRIVER) == "true" and node.labels.get(DEPLOY_DRIVER) == PRE_INSTALLED:
            self._host_drivers.pop(node.name, None)


def _prepared(relevant: Iterable[object], context: Context, desired: Desired) -> _Prepared:
    return _Prepared(tuple(relevant), context, desired, per_node(desired))


def _live(mirror: Mirror, members: Mapping[ObjectRef, Manifest]) -> dict[ObjectRef, Manifest]:
    """Objects that are followed are as the mirror shows them, so that one that somebody deletes is missed."""
    others = {ref: live for ref, live in members.items() if ref.type not in WATCHED}
    return others | {ref: live for kind in WATCHED for ref, live in mirror.of(kind).items()}


def _relevant(facts: NodeFacts) -> tuple[object, ...]:
    kept = tuple(
        (key, value)
        for key, value in sorted(facts.labels.items())
        if not key.startswith(_IRRELEVANT) or key.startswith(_RELEVANT)
    )
    return facts.name, facts.os, kept


def _name(item: Manifest) -> str:
    return str(item["metadata"]["name"])


def _known(target: Target, node: _KnownNode | None, before: _KnownTarget | None) -> _KnownTarget:
    """Return the very same as before where nothing has changed, also if manifests were made anew for another node."""
    facts = node.facts if node else None
    if before is not None and before.prepared is target and before.now.facts is facts:
        return before
    now = replace(target, facts=facts)
    return _KnownTarget(target, before.now if before is not None and before.now == now else now)
