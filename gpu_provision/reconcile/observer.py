"""The state of a stack from the informer cache, for each iteration of a run, and between runs the pending changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

from gpu_provision.components import machine_config
from gpu_provision.components.gpu_resources import resource_to_request
from gpu_provision.components.labels import DEPLOY_DRIVER, MIG_CAPABLE, PRE_INSTALLED, VALIDATED, WORKLOAD
from gpu_provision.components.monitoring import PROMETHEUS_RULES, SERVICE_MONITORS
from gpu_provision.kube import lock, observe
from gpu_provision.kube.client import KubeClient
from gpu_provision.kube.informer import InformerCache, Scope
from gpu_provision.kube.observe import NODE, POD
from gpu_provision.kube.openshift import (
    MACHINE_CONFIG_POOL,
    followed_objects,
    machine_pools,
    platform_facts,
    rendered_configs,
)
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
from gpu_provision.model.progress import NodeState, State
from gpu_provision.planning.applyset import PART_OF, STACK, applyset_id
from gpu_provision.planning.diff import differences
from gpu_provision.planning.managed_fields import manual_editors
from gpu_provision.planning.plan import pod_changes
from gpu_provision.planning.prepare import prepare
from gpu_provision.planning.prune import deletions
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
from gpu_provision.planning.upgrades import nodes_to_upgrade, state_between_runs
from gpu_provision.reconcile.plan import ClusterPlan, build_plan, void_failed_validations
from gpu_provision.reconcile.states import deadline_tracker
from gpu_provision.reconcile.steps import next_actions

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


CONFIG_MAP, SECRET = Kind("v1", "ConfigMap"), Kind("v1", "Secret")
_DEFINITIONS = Kind("apiextensions.k8s.io/v1", "CustomResourceDefinition")
WATCHED = (Kind("apps/v1", "DaemonSet"), Kind("apps/v1", "Deployment"), _DEFINITIONS)
"""Kinds whose objects a run watches."""

MONITOR_DEFINITION, RULE_DEFINITION = (
    ObjectRef(*_DEFINITIONS, "", name) for name in (SERVICE_MONITORS, PROMETHEUS_RULES)
)

# Labels that GPU Feature Discovery, a rollout or validations keep current; no manifest depends on them.
_KEPT_CURRENT = ("cuda.", "gfd.", "gpu.", "gpu-driver-upgrade", "mig.")
_IRRELEVANT = (*(f"nvidia.com/{label}" for label in _KEPT_CURRENT), VALIDATED)
_RELEVANT = ("nvidia.com/gpu.deploy.", "nvidia.com/gpu.present", MIG_CAPABLE, WORKLOAD)
_PER_NODE = frozenset({"Node", "Pod"})
_SERVED_SECONDS = 2.0  # from the establishment of a CRD until every API server serves its kind


def run_scopes(inventory: Inventory, *, machines: bool = False) -> tuple[Scope, ...]:
    """Return the scopes that a run watches: nodes, its pods, and its objects that become ready by themselves.

    ``machines``: whether it has MachineConfigs, which MachineConfigPools roll out.
    """
    members = (Scope(kind, _member_selector(inventory)) for kind in WATCHED)
    pools = (Scope(MACHINE_CONFIG_POOL),) if machines else ()
    return Scope(NODE), Scope(POD, f"{STACK}={inventory.name}"), *members, *pools


def follows_machines(openshift: OpenShiftFacts | None, desired: Desired) -> bool:
    """Whether a run follows MachineConfigPools: the cluster has some, and MachineConfigs are on."""
    return bool(openshift and openshift.pools and machine_config.NAME in desired)


def _member_selector(inventory: Inventory) -> str:
    return f"{PART_OF}={applyset_id(inventory.name, inventory.cluster.namespace)}"


class SituationBuilder:
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

    def copy(self, reading: ClusterPlan) -> SituationBuilder:
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
    situations: SituationBuilder
    ready: Mapping[ComponentNode, NodeState]


_Inputs = tuple[Mapping[str, Mapping[str, str]], Mapping[str, str]]
"""Contents of ConfigMaps and digests of Secrets, by name."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The state of a stack at one time, and its pending changes."""

    cluster_state: ClusterState
    states: Mapping[ComponentNode, NodeState]  # the state of each component, as a whole and on each node
    objects: frozenset[str]  # names of objects that are not as declared
    edited: frozenset[str]  # those that were as declared, and were edited by hand or deleted since
    steps: frozenset[str]  # names of other pending steps: labels, a validation, a driver to be replaced

    @property
    def needs(self) -> frozenset[str]:
        """Names of everything that a run would change."""
        return self.objects | self.steps


class StackObserver:
    """Observes one stack between two runs; sends no request."""

    def __init__(self, reading: ClusterPlan, cache: InformerCache) -> None:
        """Start from the observed state; the cache watches its `watched_scopes`."""
        inventory = reading.context.inventory
        self._cache, self._members = cache, _member_scopes(reading)
        self._record, self._inputs = scope_of_object(observe.validations_ref(inventory)), _input_scopes(inventory)
        self._inventory, self._resources = inventory, reading.context.facts.resources
        self._situations, self._deadlines = SituationBuilder(reading), deadline_tracker(reading)
        self._openshift = known = reading.context.facts.openshift
        self._platform = replace(known, pools=(), rendered={}, unreadable=frozenset()) if known else OpenShiftFacts()
        self._read_with: _Inputs = reading.context.facts.config_maps, reading.context.facts.secrets
        self._raw: Mapping[ComponentNode, NodeState] = {}
        self._different = Memo[ObjectRef, bool]()
        self._as_declared: dict[ObjectRef, Manifest] = {}
        self._began = time.monotonic()

    def observe(self, now: float) -> Observation:
        """Return the state of the stack. ``now`` is of a monotonic clock, for deadlines."""
        seen, raw = self._read_state()
        settled = self._deadlines.settle(raw, now)
        settled |= {key: state_between_runs(state) for key, state in settled.items() if state.reason}
        of_stack = {ref_of(each): each for items in seen.desired.values() for each in filter(_is_of_stack, items)}
        inputs = {ref: (item, seen.observed.members.get(ref)) for ref, item in of_stack.items()}
        is_different = self._different.get_all(inputs, lambda ref: _is_different(*inputs[ref]))
        different = frozenset(ref for ref in inputs if is_different[ref])
        objects = different | {change.ref for change in deletions(seen)}
        edited = self._find_edited(different, of_stack, seen)
        steps = frozenset(_step_names(seen, raw, settled))
        return Observation(seen, settled, frozenset(map(str, objects)), frozenset(map(str, edited)), steps)

    def _read_state(self) -> tuple[ClusterState, dict[ComponentNode, NodeState]]:
        record = next(iter(self._cache.list(self._record).values()), {})
        members = {ref: live for scope in self._members for ref, live in self._cache.list(scope).items()}
        seen = self._situations.build(self._cache, members, observe.validations_of(record.get("data") or {}))
        raw = self._situations.states(seen)
        self._raw = raw
        return seen, raw

    def live_state(self, reading: ClusterPlan) -> LiveState:
        """Return the live state for a run; failed validations are void, so that the run repeats them."""
        ready = {key: state for key, state in self._raw.items() if state.state is State.READY}
        return LiveState(self._cache.new_reader(), self._situations.copy(void_failed_validations(reading)), ready)

    def read(self, cluster: KubeClient) -> ClusterPlan:
        """Return desired and observed state and the plan: one request, and one more for each changed object.

        Raises UnreachableError, ForbiddenError, InvalidError.
        """
        lease = lock.read_lock(cluster, self._inventory)  # first: a run since then makes the plan outdated
        seen, raw = self._read_state()
        namespaces = seen.observed.namespaces | {ref.namespace for ref in seen.observed.members}
        observed = replace(seen.observed, namespaces=namespaces, lock=lease.lock, lock_version=lease.version)
        return build_plan(cluster, self._situations.desired, replace(seen, observed=observed), raw)

    def _find_edited(
        self, different: frozenset[ObjectRef], wanted: Mapping[ObjectRef, Manifest], seen: ClusterState
    ) -> Iterator[ObjectRef]:
        once_held = {ref for ref in different if self._as_declared.get(ref) == wanted[ref]}
        self._as_declared = {ref: wanted[ref] for ref in (wanted.keys() - different) | once_held}
        live = seen.observed.members
        return (ref for ref in once_held if ref not in live or manual_editors(live[ref]))

    def is_outdated(self) -> bool:
        """Whether a ConfigMap or Secret of the inventory, OpenShift, or the set of served kinds has changed."""
        live = [item for scope in self._inputs for item in self._cache.list(scope).values()]
        config_maps = observe.config_maps_of(item for item in live if item["kind"] == CONFIG_MAP.kind)
        inputs = config_maps, observe.secrets_of(item for item in live if item["kind"] == SECRET.kind)
        is_same = inputs == self._read_with and self._live_platform() == self._platform
        return not is_same or self._seconds_until_outdated(time.monotonic()) <= 0

    def _live_platform(self) -> OpenShiftFacts:
        found = {ref: self._cache.list(scope_of_object(ref)) for ref in followed_objects(self._openshift)}
        return platform_facts({ref: next(iter(items.values()), {}) for ref, items in found.items()})

    def next_deadline(self, now: float) -> float:
        """Return the seconds until the next look without an event."""
        left = self._seconds_until_outdated(now)
        return min(self._deadlines.next_deadline(now), left if left > 0 else float("inf"))

    def _seconds_until_outdated(self, now: float) -> float:
        for ref in _optional_definitions(self._inventory):
            live = self._cache.list(scope_of_object(ref)).values()
            if any(map(_serves_kind, live)) != (ref.name in self._resources):
                return self._began + _SERVED_SECONDS - now
        return float("inf")


def _optional_definitions(inventory: Inventory) -> tuple[ObjectRef, ...]:
    """Return the CRDs of the Prometheus Operator that decide whether the stack has an object of their kind."""
    exporter, status = inventory.specs.dcgm_exporter, inventory.specs.node_status_exporter
    of_user = any(each["apiVersion"].startswith("monitoring.coreos.com/") for each in inventory.extra_objects)
    wanted = (
        (MONITOR_DEFINITION, status.enabled or (exporter.enabled and exporter.service_monitor.enabled)),
        (RULE_DEFINITION, exporter.enabled and exporter.prometheus_rule.enabled),
    )
    return tuple(ref for ref, is_wanted in wanted if of_user or is_wanted)


def _serves_kind(definition: Manifest) -> bool:
    conditions = (definition.get("status") or {}).get("conditions") or ()
    is_established = any(each["type"] == "Established" and each["status"] == "True" for each in conditions)
    return is_established and any(each["name"] == "v1" and each["served"] for each in definition["spec"]["versions"])


def watched_scopes(reading: ClusterPlan) -> tuple[Scope, ...]:
    """Return the scopes of an observer: those of a run, the stack's objects, its record, and its inputs."""
    inventory = reading.context.inventory
    platform = followed_objects(reading.context.facts.openshift)
    single = (observe.validations_ref(inventory), *_optional_definitions(inventory), *platform)
    objects = (*_member_scopes(reading), *map(scope_of_object, single), *_input_scopes(inventory))
    machines = follows_machines(reading.context.facts.openshift, reading.desired)
    return tuple(dict.fromkeys((*run_scopes(inventory, machines=machines), *objects)))


def scope_of_object(ref: ObjectRef) -> Scope:
    """Return the scope of one object."""
    place = f",metadata.namespace={ref.namespace}" if ref.namespace else ""
    return Scope(ref.type, field_selector=f"metadata.name={ref.name}{place}")


def _member_scopes(reading: ClusterPlan) -> tuple[Scope, ...]:
    selector = _member_selector(reading.context.inventory)
    wanted = {ref_of(item).type for items in reading.desired.values() for item in filter(_is_of_stack, items)}
    kinds = wanted | {ref.type for ref in reading.observed.members}
    parent = ref_of(reading.desired["prerequisites"][-1])
    return (*(Scope(kind, selector) for kind in sorted(kinds)), scope_of_object(parent))


def _input_scopes(inventory: Inventory) -> tuple[Scope, ...]:
    named, home = (
        ((CONFIG_MAP, observe.named_config_maps), (SECRET, observe.named_secrets)),
        inventory.cluster.namespace,
    )
    refs = (ObjectRef(*kind, home, name) for kind, names in named for name in sorted(names(inventory)))
    return tuple(map(scope_of_object, refs))


def _is_different(manifest: Manifest, live: Manifest | None) -> bool:
    return live is None or bool(differences(manifest, live))


def _is_of_stack(manifest: Manifest) -> bool:
    return manifest["kind"] not in _PER_NODE


def _step_names(
    seen: ClusterState, raw: Mapping[ComponentNode, NodeState], settled: Mapping[ComponentNode, NodeState]
) -> Iterator[str]:
    yield from (f"{type(step).__name__} {step.ref}" for step in next_actions(seen, settled))
    yield from (f"driver of {node}" for node in nodes_to_upgrade(raw))
    yield from (f"metadata of {change.ref}" for change in pod_changes(seen))
