"""From live objects to the state of the cluster and its components, again and again."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Generic, TypeVar

from gpu_provision.components.labels import DEPLOY_DRIVER, PRE_INSTALLED, VALIDATED
from gpu_provision.kube.informer import Mirror, Scope
from gpu_provision.kube.observe import NODE, POD, node_facts
from gpu_provision.model.cluster import ClusterFacts, Context, Kind, Manifest, NodeFacts, ObjectRef, Target, ref_of
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.progress import NodeState
from gpu_provision.planning.applyset import PART_OF, STACK, applyset_id
from gpu_provision.planning.observed import NodeObjects, ObservedState
from gpu_provision.planning.prepare import prepare
from gpu_provision.planning.states import (
    ClusterState,
    Desired,
    Key,
    cluster_state,
    inputs_of_states,
    per_node,
    states,
    states_of,
)
from gpu_provision.reconcile.plan import ClusterPlan

Name = TypeVar("Name", bound=Hashable)


Value = TypeVar("Value")


class Memo(Generic[Name, Value]):
    """The results of one function by key, such as the name of a node.

    A watch replaces objects and never changes them. So most inputs are the very same objects as before, which costs
    nothing to see. Equal results are one object as well, so that a memo of what follows sees it as fast.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self._known: dict[Name, tuple[object, Value]] = {}

    def copy(self) -> Memo[Name, Value]:
        """Return a memo for another thread that starts with the same results."""
        other = Memo[Name, Value]()
        other._known = self._known
        return other

    def of(self, inputs: Mapping[Name, object], work: Callable[[Name], Value]) -> dict[Name, Value]:
        """Return the result for each key; results of other keys are forgotten.

        Args:
            inputs: Key -> all that ``work`` reads to answer for it.
            work: The function.
        """
        before = self._known
        self._known = {key: _kept(before.get(key), given, key, work) for key, given in inputs.items()}
        return {key: value for key, (_, value) in self._known.items()}


def _kept(
    known: tuple[object, Value] | None, given: object, key: Name, work: Callable[[Name], Value]
) -> tuple[object, Value]:
    if known is None:
        return given, work(key)
    before, value = known
    if before is given or before == given:
        return known
    found = work(key)
    return given, value if found == value else found


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


_Prepared = tuple[Context, Desired, Mapping[str, NodeObjects]]


def run_scopes(inventory: Inventory) -> tuple[Scope, ...]:
    """Return what a run follows: nodes, its pods, and its objects that get ready by themselves."""
    members = f"{PART_OF}={applyset_id(inventory.name, inventory.cluster.namespace)}"
    pods = f"{STACK}={inventory.name}"
    return Scope(NODE), Scope(POD, pods), *(Scope(kind, members) for kind in WATCHED)


class SituationBuilder:
    """Builds the situations of one stack. Each is worked out whole; what a node alone decides is kept in memos.

    Attributes:
        desired: What is desired in the end, as of the last situation, which has what is desired for now.
    """

    def __init__(self, reading: ClusterPlan) -> None:
        """Start from what was read."""
        self._inventory, self._part, self._read = (
            reading.context.inventory,
            reading.context.part,
            _not_followed(reading),
        )
        self._host_drivers = dict(reading.context.facts.host_drivers)
        self._facts = Memo[str, NodeFacts]()
        self._needs = Memo[str, object]()
        self._prepared = Memo[str, _Prepared]()
        self._manifests = Memo[tuple[str, ObjectRef], Manifest]()
        self._targets = Memo[str, Target]()
        self._states = Memo[str, Mapping[str, NodeState]]()
        self._nodes: Mapping[str, NodeFacts] = {}
        self.desired: Desired = reading.desired

    def copy(self, reading: ClusterPlan) -> SituationBuilder:
        """Return a builder for the run of a reading that was made of what this one sees."""
        other = SituationBuilder(reading)
        memos = {name: value.copy() for name, value in vars(self).items() if isinstance(value, Memo)}
        vars(other).update(memos, _host_drivers=dict(self._host_drivers), _nodes=self._nodes)
        return other

    def build(self, mirror: Mirror, members: Mapping[ObjectRef, Manifest], passed: Mapping[Key, str]) -> ClusterState:
        """Return the situation as it is now.

        Args:
            members: Objects of the stack; of kinds that are followed the mirror's count.
            passed: Validations on record.
        """
        live = {ref.name: node for ref, node in sorted(mirror.of(NODE).items())}
        nodes = self._facts.of(live, lambda name: node_facts(live[name]))
        self._believe_the_manager(nodes)
        facts = replace(self._read.facts, nodes=tuple(nodes.values()), host_drivers=dict(self._host_drivers))
        needs = tuple(self._needs.of(nodes, lambda name: _needs(nodes[name])).values())
        inputs = {"": (replace(facts, nodes=()), needs)}
        context, self.desired, parts = self._prepared.of(inputs, lambda _: self._prepare(facts))[""]
        wanted = {target.name: target for target in context.targets}
        known = {name: (target, nodes.get(name)) for name, target in wanted.items()}
        targets = self._targets.of(known, lambda name: replace(wanted[name], facts=nodes.get(name)))
        context = replace(context, facts=facts, targets=tuple(targets.values()))
        observed = replace(
            self._read, facts=facts, members=_live(mirror, members), pods=mirror.of(POD), passed=dict(passed)
        )
        return cluster_state(context, self.desired, observed, parts)

    def states(self, seen: ClusterState) -> dict[Key, NodeState]:
        """Return where every component stands in a situation; see `planning.states.states`."""
        targets = {target.name: target for target in seen.context.targets}
        inputs = inputs_of_states(seen)
        return states(seen, self._states.of(inputs, lambda name: states_of(targets[name], seen)))

    def _prepare(self, facts: ClusterFacts) -> _Prepared:
        context, desired = prepare(self._inventory, facts, self._part)
        # Two components write labels to one Node.
        made = {(component, ref_of(item)): item for component, items in desired.items() for item in items}
        kept = self._manifests.of(made, made.__getitem__)
        desired = {component: [kept[component, ref_of(item)] for item in items] for component, items in desired.items()}
        return context, desired, per_node(desired)

    def _believe_the_manager(self, nodes: Mapping[str, NodeFacts]) -> None:
        """Forget what was read of a host once the driver manager there has found a driver that works.

        It ran the host's nvidia-smi later than the host phase, so its answer counts.
        """
        before, self._nodes = self._nodes, nodes
        for name in [name for name in self._host_drivers if name in before and name in nodes]:
            then, now = before[name].labels.get(DEPLOY_DRIVER), nodes[name].labels.get(DEPLOY_DRIVER)
            if then == "true" and now == PRE_INSTALLED:
                del self._host_drivers[name]


def _not_followed(reading: ClusterPlan) -> ObservedState:
    """Return what was observed and is not followed; a builder has its own copies of the rest, which stay current."""
    facts = replace(reading.context.facts, nodes=())
    return replace(reading.observed, facts=facts, members={}, pods={}, passed={}, names={})


def _live(mirror: Mirror, members: Mapping[ObjectRef, Manifest]) -> dict[ObjectRef, Manifest]:
    """Return live objects; those that are followed as the mirror shows them, so that a deleted one is missed."""
    others = {ref: live for ref, live in members.items() if ref.type not in WATCHED}
    return others | {ref: live for kind in WATCHED for ref, live in mirror.of(kind).items()}


def _needs(facts: NodeFacts) -> object:
    """Return what manifests depend on."""
    kept = {
        key: value
        for key, value in facts.labels.items()
        if not key.startswith(_IRRELEVANT) or key.startswith(_RELEVANT)
    }
    return facts.name, facts.os, facts.container_runtime, facts.distribution, VALIDATED in facts.labels, kept
