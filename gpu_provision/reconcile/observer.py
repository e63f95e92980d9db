"""A stack between two runs: its state from the informer cache, and the pending changes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from gpu_provision.components.monitoring import PROMETHEUS_RULES, SERVICE_MONITORS
from gpu_provision.kube import lock, observe
from gpu_provision.kube.client import KubeClient
from gpu_provision.kube.informer import InformerCache, Scope, scope_of_object
from gpu_provision.kube.observe import CONFIG_MAP, CRD, SECRET
from gpu_provision.kube.openshift import followed_objects, platform_facts
from gpu_provision.model.cluster import Manifest, ObjectRef, ref_of
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.openshift import OpenShiftFacts
from gpu_provision.model.progress import NodeState, State
from gpu_provision.planning.applyset import member_selector
from gpu_provision.planning.diff import differences
from gpu_provision.planning.managed_fields import manual_editors
from gpu_provision.planning.plan import pod_changes
from gpu_provision.planning.prune import deletions
from gpu_provision.planning.states import ClusterState, ComponentNode
from gpu_provision.planning.upgrades import nodes_to_upgrade, state_between_runs
from gpu_provision.reconcile.cluster_state import ClusterStateBuilder, LiveState, Memo, follows_machines, run_scopes
from gpu_provision.reconcile.plan import ClusterPlan, build_plan, void_failed_validations
from gpu_provision.reconcile.states import deadline_tracker
from gpu_provision.reconcile.steps import next_actions

MONITOR_DEFINITION, RULE_DEFINITION = (ObjectRef(*CRD, "", name) for name in (SERVICE_MONITORS, PROMETHEUS_RULES))

_PER_NODE = frozenset({"Node", "Pod"})
_SERVED_SECONDS = 2.0  # from the establishment of a CRD until every API server serves its kind

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
        self._builder, self._deadlines = ClusterStateBuilder(reading), deadline_tracker(reading)
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
        seen = self._builder.build(self._cache, members, observe.validations_of(record.get("data") or {}))
        raw = self._builder.states(seen)
        self._raw = raw
        return seen, raw

    def live_state(self, reading: ClusterPlan) -> LiveState:
        """Return the live state for a run; failed validations are void, so that the run repeats them."""
        ready = {key: state for key, state in self._raw.items() if state.state is State.READY}
        return LiveState(self._cache.new_reader(), self._builder.copy(void_failed_validations(reading)), ready)

    def read(self, cluster: KubeClient) -> ClusterPlan:
        """Return desired and observed state and the plan: one request, and one more for each changed object.

        Raises UnreachableError, ForbiddenError, InvalidError.
        """
        lease = lock.read_lock(cluster, self._inventory)  # first: a run since then makes the plan outdated
        seen, raw = self._read_state()
        namespaces = seen.observed.namespaces | {ref.namespace for ref in seen.observed.members}
        observed = replace(seen.observed, namespaces=namespaces, lock=lease.lock, lock_version=lease.version)
        return build_plan(cluster, self._builder.desired, replace(seen, observed=observed), raw)

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


def _member_scopes(reading: ClusterPlan) -> tuple[Scope, ...]:
    selector = member_selector(reading.context.inventory)
    wanted = {ref_of(item).type for items in reading.desired.values() for item in filter(_is_of_stack, items)}
    kinds = wanted | {ref.type for ref in reading.observed.members}
    parent = ref_of(reading.desired["prerequisites"][-1])
    return (*(Scope(kind, selector) for kind in sorted(kinds)), scope_of_object(parent))


def _input_scopes(inventory: Inventory) -> tuple[Scope, ...]:
    named = (CONFIG_MAP, observe.named_config_maps(inventory)), (SECRET, observe.named_secrets(inventory))
    refs = (ObjectRef(*kind, inventory.cluster.namespace, name) for kind, names in named for name in sorted(names))
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
