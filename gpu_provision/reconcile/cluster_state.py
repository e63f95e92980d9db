"""The state of the cluster from the informer cache, in each iteration of a run; what has not changed is kept."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Generic, NamedTuple, TypeVar

from gpu_provision.components import machine_config
from gpu_provision.components.gpu_resources import resource_to_request
from gpu_provision.components.labels import DEPLOY_DRIVER, MIG_CAPABLE, PRE_INSTALLED, VALIDATED, WORKLOAD
from gpu_provision.kube import observe
from gpu_provision.kube.informer import InformerCache, Scope
from gpu_provision.kube.observe import CRD, NODE, POD
from gpu_provision.kube.openshift import MACHINE_CONFIG_POOL, machine_pools, rendered_configs
from gpu_provision.model.cluster import (
    ClusterFacts,
    Kind,
    Manifest,
    NodeFacts,
    NodeObjects,
    ObjectRef,
    ObservedState,
    ref_of,
)
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.openshift import OpenShiftFacts, RenderedConfig
from gpu_provision.model.progress import NodeState
from gpu_provision.planning.applyset import STACK, member_selector
from gpu_provision.planning.prepare import prepare
from gpu_provision.planning.states import (
    ClusterState,
    ComponentNode,
    Desired,
    cluster_state,
    evaluate_node,
    evaluate_states,
    inputs_of_states,
    key_of_pod,
    per_node,
)
from gpu_provision.reconcile.plan import ClusterPlan

Name = TypeVar("Name", bound=Hashable)
Value = TypeVar("Value")


class Memo(Generic[Name, Value]):
    """The results of one function by key, such as the name of a node.

    A watch replaces objects and never changes them, so most inputs are the same objects as before. Equal results are
    the same object as well, for the next memo.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._known: dict[Name, tuple[object, Value]] = {}  # replaced and never changed, so that a copy is another memo

    def get_all(self, inputs: Mapping[Name, object], work: Callable[[Name], Value]) -> dict[Name, Value]:
        """Return the result for each key; ``inputs`` has everything that ``work`` reads. Other results are dropped."""
        known: dict[Name, tuple[object, Value]] = {}
        for key, value in inputs.items():
            before = self._known.get(key)
            if before is not None and (before[0] is value or before[0] == value):
                known[key] = before
            else:
                result = work(key)
                known[key] = value, before[1] if before is not None and before[1] == result else result
        self._known = known
        return {key: value for key, (_, value) in known.items()}


class PodIndex:
    """The pods of an informer cache by component and node; an update reads only the pods that have changed."""

    def __init__(self) -> None:
        """Start empty."""
        self._pods: Mapping[ObjectRef, Manifest] = {}
        self._by_key: dict[ComponentNode, list[Manifest]] = {}  # replaced and never changed, as are the lists

    def update(self, pods: Mapping[ObjectRef, Manifest]) -> Mapping[ComponentNode, Sequence[Manifest]]:
        """Return all pods by component and node."""
        before, by_key = self._pods, dict(self._by_key)
        for ref in before.keys() - pods.keys():
            _replace_pod(by_key, before[ref], None)
        for ref, pod in pods.items():
            if (old := before.get(ref)) is not pod:
                _replace_pod(by_key, old, pod)
        self._pods, self._by_key = pods, by_key
        return by_key


def _replace_pod(by_key: dict[ComponentNode, list[Manifest]], old: Manifest | None, new: Manifest | None) -> None:
    before, after = key_of_pod(old) if old else None, key_of_pod(new) if new else None
    if old and new and before and before == after:
        by_key[before] = [new if each is old else each for each in by_key[before]]
        return
    if before and not (left := [each for each in by_key[before] if each is not old]):
        del by_key[before]
    elif before:
        by_key[before] = left
    if new and after:
        by_key[after] = [*by_key.get(after, ()), new]


WATCHED = (Kind("apps/v1", "DaemonSet"), Kind("apps/v1", "Deployment"), CRD)
"""Kinds whose objects a run watches."""

# Labels that GPU Feature Discovery, a rollout or validations keep current; no manifest depends on them.
_KEPT_CURRENT = ("cuda.", "gfd.", "gpu.", "gpu-driver-upgrade", "mig.")
_IRRELEVANT = (*(f"nvidia.com/{label}" for label in _KEPT_CURRENT), VALIDATED)
_RELEVANT = ("nvidia.com/gpu.deploy.", "nvidia.com/gpu.present", MIG_CAPABLE, WORKLOAD)


def run_scopes(inventory: Inventory, *, machines: bool = False) -> tuple[Scope, ...]:
    """Return the scopes that a run watches: nodes, its pods, and its objects that become ready by themselves.

    ``machines``: whether it has MachineConfigs, which MachineConfigPools roll out.
    """
    members = (Scope(kind, member_selector(inventory)) for kind in WATCHED)
    pools = (Scope(MACHINE_CONFIG_POOL),) if machines else ()
    return Scope(NODE), Scope(POD, f"{STACK}={inventory.name}"), *members, *pools


def follows_machines(openshift: OpenShiftFacts | None, desired: Desired) -> bool:
    """Whether a run follows MachineConfigPools: the cluster has some, and MachineConfigs are on."""
    return bool(openshift and openshift.pools and machine_config.NAME in desired)


class ClusterStateBuilder:
    """Builds the state of the cluster in each iteration; memos keep what depends on one node only."""

    def __init__(self, reading: ClusterPlan) -> None:
        """Start from the observed state; watched objects come from the informer cache instead."""
        self._read, self._host_drivers = _unwatched_state(reading), dict(reading.context.facts.host_drivers)
        self._nodes: Mapping[str, NodeFacts] = {}
        self._facts = Memo[str, tuple[NodeFacts, object]]()
        self._manifests = Memo[tuple[str, ObjectRef], Manifest]()
        self._states = Memo[str, Mapping[str, NodeState]]()
        self._pods = PodIndex()
        self._pools_seen: Mapping[ObjectRef, Manifest] = {}
        self._openshift = reading.context.facts.openshift
        # Reads rendered MachineConfigs by name; without it their sources decide.
        self.read_rendered: Callable[[Iterable[str]], Mapping[str, RenderedConfig]] = lambda _names: {}
        self._prepared_for: object = None
        self._context, self.desired = reading.context, reading.desired  # in the end; states have it for now
        self._parts: Mapping[str, NodeObjects] = {}

    def copy(self, reading: ClusterPlan) -> ClusterStateBuilder:
        """Return a builder for a run of this stack in another thread."""
        other = copy(self)
        memos = {name: copy(value) for name, value in vars(self).items() if isinstance(value, (Memo, PodIndex))}
        vars(other).update(memos, _read=_unwatched_state(reading), _host_drivers=dict(self._host_drivers))
        return other

    def build(
        self, cache: InformerCache, members: Mapping[ObjectRef, Manifest], passed: Mapping[ComponentNode, str]
    ) -> ClusterState:
        """Return the state of the cluster.

        ``members``: objects of the stack; objects of watched kinds come from the cache. ``passed``: from the record.
        """
        live = {ref.name: node for ref, node in sorted(cache.list(NODE).items())}
        by_name = self._facts.get_all(live, lambda name: _facts_with_inputs(observe.node_facts(live[name])))
        nodes = {name: facts for name, (facts, _) in by_name.items()}
        self._drop_outdated_host_drivers(nodes)
        known = replace(self._read.facts, openshift=self._follow_pools(cache, nodes))
        facts = replace(known, nodes=tuple(nodes.values()), host_drivers=dict(self._host_drivers))
        self._prepare(facts, [needs for _, needs in by_name.values()])
        now = ((target, nodes.get(target.name)) for target in self._context.targets)
        targets = tuple(each if each.facts is known else replace(each, facts=known) for each, known in now)
        self._context = replace(self._context, facts=facts, targets=targets)
        followed = {ref: item for kind in WATCHED for ref, item in cache.list(kind).items()}  # a deleted one is missed
        members = {ref: item for ref, item in members.items() if ref.type not in WATCHED} | followed
        pods = cache.list(POD)
        observed = replace(self._read, facts=facts, members=members, pods=pods, verdicts=dict(passed))
        return cluster_state(self._context, self.desired, observed, self._parts, self._pods.update(pods))

    def _follow_pools(self, cache: InformerCache, nodes: Mapping[str, NodeFacts]) -> OpenShiftFacts | None:
        """Return the facts of OpenShift with the MachineConfigPools as they are now, if the run follows them."""
        known = self._openshift
        if known is None or not follows_machines(known, self.desired):
            return known
        found = cache.list(MACHINE_CONFIG_POOL)
        if found != self._pools_seen:
            self._pools_seen, known = found, replace(known, pools=machine_pools(found.values(), nodes.values()))
        names = rendered_configs(known.pools, nodes.values()) - known.rendered.keys()
        if names and (rendered := self.read_rendered(names)):
            known = replace(known, rendered={**known.rendered, **rendered})
        self._openshift = known
        return known

    def states(self, seen: ClusterState) -> dict[ComponentNode, NodeState]:
        """Return the state of every component; see `planning.states.evaluate_states`."""
        targets = {target.name: target for target in seen.context.targets}
        on_nodes = self._states.get_all(inputs_of_states(seen), lambda name: evaluate_node(targets[name], seen))
        return evaluate_states(seen, on_nodes)

    def _prepare(self, facts: ClusterFacts, needs: list[object]) -> None:
        inputs = replace(facts, nodes=()), needs
        is_known, self._prepared_for = self._prepared_for == inputs, inputs
        if is_known:
            return
        self._context, desired = prepare(self._context.inventory, facts, self._context.selection)
        # By component as well: two write labels to one Node.
        made = {(component, ref_of(item)): item for component, items in desired.items() for item in items}
        manifests = self._manifests.get_all(made, made.__getitem__)
        self.desired = {name: [manifests[name, ref_of(item)] for item in items] for name, items in desired.items()}
        self._parts = per_node(self.desired)

    def _drop_outdated_host_drivers(self, nodes: Mapping[str, NodeFacts]) -> None:
        """Forget the driver read from a host once its driver manager has found a working driver.

        The driver manager ran the host's nvidia-smi after the host phase.
        """
        before, self._nodes = self._nodes, nodes
        for name in [name for name in self._host_drivers if name in before and name in nodes]:
            then, now = before[name].labels.get(DEPLOY_DRIVER), nodes[name].labels.get(DEPLOY_DRIVER)
            if then == "true" and now == PRE_INSTALLED:
                del self._host_drivers[name]


def _unwatched_state(reading: ClusterPlan) -> ObservedState:
    facts = replace(reading.context.facts, nodes=())
    return replace(reading.observed, facts=facts, members={}, pods={}, verdicts={}, names={})


def _facts_with_inputs(facts: NodeFacts) -> tuple[NodeFacts, object]:
    needed = (key for key in facts.labels if not key.startswith(_IRRELEVANT) or key.startswith(_RELEVANT))
    inputs = {key: facts.labels[key] for key in needed}
    machine = facts.name, facts.os, facts.kernel, facts.ostree, facts.container_runtime, facts.distribution
    return facts, (*machine, resource_to_request(facts.devices), VALIDATED in facts.labels, inputs)


class LiveState(NamedTuple):
    """The informer cache of a run and the results derived from it; ``ready``: the ready states of the last look."""

    cache: InformerCache
    builder: ClusterStateBuilder
    ready: Mapping[ComponentNode, NodeState]
