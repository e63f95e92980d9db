"""A stack between two runs, evaluated from live copies alone: where it stands, and whether it needs a run."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from gpu_provision.kube import lock, records
from gpu_provision.kube.client import Cluster
from gpu_provision.kube.informer import Mirror, Scope
from gpu_provision.kube.observe import (
    SERVICE_MONITORS,
    config_maps_of,
    named_config_maps,
    named_secrets,
    secrets_of,
)
from gpu_provision.model.cluster import Kind, Manifest, ObjectRef, ref_of
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.progress import NodeState, State
from gpu_provision.planning.applyset import PART_OF, applyset_id
from gpu_provision.planning.diff import manual_editors
from gpu_provision.planning.plan import deletions, object_change
from gpu_provision.planning.pod_metadata import pod_changes
from gpu_provision.planning.states import ClusterState, Key
from gpu_provision.planning.upgrades import between_runs, nodes_to_upgrade
from gpu_provision.reconcile import apply, situation
from gpu_provision.reconcile.actions import next_actions
from gpu_provision.reconcile.plan import ClusterPlan, build_plan
from gpu_provision.reconcile.situation import SituationBuilder
from gpu_provision.reconcile.states import deadline_tracker


class LiveState(NamedTuple):
    """Live copies of what a run follows, and what was worked out of them; for a thread of its own.

    Attributes:
        ready: What was ready when it was looked at last.
    """

    mirror: Mirror
    situations: SituationBuilder
    ready: Mapping[Key, NodeState]


CONFIG_MAP, SECRET = Kind("v1", "ConfigMap"), Kind("v1", "Secret")
_PER_NODE = frozenset({"Node", "Pod"})
_SERVED_SECONDS = 2.0  # after a definition is in force, until every API server says so

_Inputs = tuple[Mapping[str, Mapping[str, str]], Mapping[str, str]]
"""Contents of ConfigMaps and digests of Secrets, by name."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One look at a stack.

    Attributes:
        states: Where each component stands, as a whole and on each node.
        objects: Names of objects that are not as declared.
        edited: Those of them that were, and that were edited by hand or deleted since.
        steps: Names of what else a run would do: labels of a node, a validation, a driver to be replaced. What nothing
            can be done about is not among them.
    """

    seen: ClusterState
    states: Mapping[Key, NodeState]
    objects: frozenset[str]
    edited: frozenset[str]
    steps: frozenset[str]

    @property
    def needs(self) -> frozenset[str]:
        """All that a run would do."""
        return self.objects | self.steps


class StackObserver:
    """Looks at one stack; asks nothing."""

    def __init__(self, reading: ClusterPlan, mirror: Mirror) -> None:
        """Start from what was read; the mirror follows `followed` of it."""
        inventory = reading.context.inventory
        self._mirror, self._members = mirror, _members(reading)
        self._record, self._inputs = scope_of_object(records.validations_ref(inventory)), _inputs(inventory)
        self._inventory, self._resources = inventory, reading.context.facts.resources
        self._situations, self._settler = SituationBuilder(reading), deadline_tracker(reading)
        self._read_with: _Inputs = reading.context.facts.config_maps, reading.context.facts.secrets
        self._ready: dict[Key, NodeState] = {}
        self._held: dict[ObjectRef, Manifest] = {}
        self._began = time.monotonic()

    def look(self, now: float) -> Observation:
        """Return where everything stands. ``now`` is of a monotonic clock, for what has its time."""
        seen, raw = self._see()
        states = {key: between_runs(state) for key, state in self._settler.settle(raw, now).items()}
        different = frozenset(_different(seen))
        edited = self._edited(different, seen)
        objects = different | {change.ref for change in deletions(seen)}
        return Observation(seen, states, _named(objects), _named(edited), frozenset(_steps(seen, raw, states)))

    def _see(self) -> tuple[ClusterState, dict[Key, NodeState]]:
        record = next(iter(self._mirror.of(self._record).values()), {})
        passed = records.validations_of(record.get("data") or {})
        seen = self._situations.build(self._mirror, self._live(), passed)
        raw = self._situations.states(seen)
        self._ready = {key: state for key, state in raw.items() if state.state is State.READY}
        return seen, raw

    def live(self, reading: ClusterPlan) -> LiveState:
        """Return what a run of a reading goes on from."""
        return LiveState(self._mirror.shared(), self._situations.copy(reading), self._ready)

    def read(self, cluster: Cluster) -> ClusterPlan:
        """Return what is wanted and seen now, and the plan: one request, and one more for each object that differs.

        Raises:
            Unreachable, Refused, Rejected: As the API server answers.
        """
        lease = lock.read_lock(cluster, self._inventory)  # first: what others have written since then counts as theirs
        seen, raw = self._see()
        namespaces = seen.observed.namespaces | {ref.namespace for ref in seen.observed.members}
        observed = replace(seen.observed, namespaces=namespaces, lock=lease.lock, lock_version=lease.version)
        return build_plan(cluster, self._situations.desired, replace(seen, observed=observed), raw)

    def _edited(self, different: frozenset[ObjectRef], seen: ClusterState) -> frozenset[ObjectRef]:
        """Return what was as declared, and is not because of an edit that a run undoes."""
        wanted = {ref_of(manifest): manifest for _, manifest in _wanted(seen)}
        once_held = {ref for ref in different if self._held.get(ref) == wanted[ref]}
        self._held = {ref: wanted[ref] for ref in (wanted.keys() - different) | once_held}
        live = seen.observed.members
        return frozenset(ref for ref in once_held if ref not in live or manual_editors(live[ref]))

    def is_outdated(self) -> bool:
        """Whether what the inventory refers to, such as a ConfigMap, or what is served is not as it was read."""
        return self._inputs_now() != self._read_with or self._outdated_in(time.monotonic()) <= 0

    def next_deadline(self, now: float) -> float:
        """Return in how many seconds to look again although nothing has happened."""
        left = self._outdated_in(now)
        return min(self._settler.next_deadline(now), left if left > 0 else float("inf"))

    def _outdated_in(self, now: float) -> float:
        """Return in how many seconds to read again because of ServiceMonitors; infinity if there is no need."""
        inventory = self._inventory
        live = (
            self._mirror.of(scope_of_object(apply.DEFINITION)).values()
            if apply.wants_service_monitors(inventory)
            else None
        )
        if live is None or apply.serves_service_monitors(live) == (SERVICE_MONITORS in self._resources):
            return float("inf")
        return self._began + _SERVED_SECONDS - now

    def _live(self) -> dict[ObjectRef, Manifest]:
        return {ref: live for scope in self._members for ref, live in self._mirror.of(scope).items()}

    def _inputs_now(self) -> _Inputs:
        live = [item for scope in self._inputs for item in self._mirror.of(scope).values()]
        config_maps = config_maps_of(item for item in live if item["kind"] == CONFIG_MAP.kind)
        return config_maps, secrets_of(item for item in live if item["kind"] == SECRET.kind)


def watched_scopes(reading: ClusterPlan) -> tuple[Scope, ...]:
    """Return what a resident looks at: all that a run follows, the stack's objects, its record, and its inputs."""
    inventory = reading.context.inventory
    scopes = (
        *situation.run_scopes(inventory),
        *_members(reading),
        scope_of_object(records.validations_ref(inventory)),
        *_inputs(inventory),
    )
    definitions = (scope_of_object(apply.DEFINITION),) if apply.wants_service_monitors(inventory) else ()
    return tuple(dict.fromkeys((*scopes, *definitions)))


def scope_of_object(ref: ObjectRef) -> Scope:
    """Return the scope of one object."""
    place = f",metadata.namespace={ref.namespace}" if ref.namespace else ""
    return Scope(ref.type, field_selector=f"metadata.name={ref.name}{place}")


def _members(reading: ClusterPlan) -> tuple[Scope, ...]:
    inventory = reading.context.inventory
    selector = f"{PART_OF}={applyset_id(inventory.name, inventory.cluster.namespace)}"
    wanted = {
        ref_of(item).type for items in reading.desired.values() for item in items if item["kind"] not in _PER_NODE
    }
    kinds = wanted | {ref.type for ref in reading.observed.members}
    parent = ref_of(reading.desired["prerequisites"][-1])
    return (*(Scope(kind, selector) for kind in sorted(kinds)), scope_of_object(parent))


def _inputs(inventory: Inventory) -> tuple[Scope, ...]:
    named = {CONFIG_MAP: named_config_maps(inventory), SECRET: named_secrets(inventory)}
    home = inventory.cluster.namespace
    refs = (
        ObjectRef(kind.api_version, kind.kind, home, name) for kind, names in named.items() for name in sorted(names)
    )
    return tuple(map(scope_of_object, refs))


def _wanted(seen: ClusterState) -> Iterator[tuple[str, Manifest]]:
    """Yield the manifests of the stack's own objects, with their components."""
    for component, manifests in seen.desired.items():
        yield from ((component, manifest) for manifest in manifests if manifest["kind"] not in _PER_NODE)


def _different(seen: ClusterState) -> Iterator[ObjectRef]:
    for component, manifest in _wanted(seen):
        yield from (change.ref for change in object_change(component, manifest, seen))


def _named(refs: Iterable[ObjectRef]) -> frozenset[str]:
    return frozenset(map(str, refs))


def _steps(seen: ClusterState, raw: Mapping[Key, NodeState], states: Mapping[Key, NodeState]) -> Iterator[str]:
    """Yield what a run would do on nodes."""
    yield from (f"{type(step).__name__} {step.ref}" for step in next_actions(seen, states))
    yield from (f"driver of {node}" for node in nodes_to_upgrade(raw))
    yield from (f"metadata of {change.ref}" for change in pod_changes(seen))
