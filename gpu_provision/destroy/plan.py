"""Plan the removal of a stack: its stages, and warnings about all that stays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from graphlib import TopologicalSorter

from gpu_provision.components import COMPONENTS, labels, machine_config
from gpu_provision.destroy.nodes import NodeRemnants, StackIdentity, find_remnants, gpu_users, labelled_nodes
from gpu_provision.model import codes
from gpu_provision.model.cluster import Manifest, ObjectRef, ref_of
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.openshift import MachinePool, OpenShiftFacts
from gpu_provision.model.plan import Action, Change, FieldChange
from gpu_provision.model.text import join_limited
from gpu_provision.planning.applyset import component_of
from gpu_provision.planning.diff import path_of
from gpu_provision.planning.managed_fields import other_managers, own_labels

# Components that give GPUs to pods. Their removal comes first, so that no new pod starts before the driver is gone.
ACCESS = frozenset({"device_plugin", "device_plugin_validation"})

# Kinds of objects that other tools may have created or may use.
SHARED_KINDS = frozenset({"Namespace", "RuntimeClass", "CustomResourceDefinition"})

_WORKLOADS = frozenset({"DaemonSet", "Deployment"})
_DEFINITION = "CustomResourceDefinition"
_MAX_FOREIGN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class StackObjects:
    """The live objects of a stack, by reference."""

    cluster: str  # name and version
    members: Mapping[ObjectRef, Manifest] = field(default_factory=dict)  # members of the ApplySet
    records: Mapping[ObjectRef, Manifest] = field(default_factory=dict)  # its ConfigMap, validations and history
    lease: Mapping[ObjectRef, Manifest] = field(default_factory=dict)
    traces: Mapping[ObjectRef, Manifest] = field(default_factory=dict)  # objects that the components created
    pods: Mapping[ObjectRef, Manifest] = field(default_factory=dict)
    others: tuple[Manifest, ...] = ()  # all other pods
    claims: tuple[Manifest, ...] | None = ()  # ResourceClaims of pods; None if they are unreadable
    nodes: tuple[Manifest, ...] = ()
    machine_pools: tuple[MachinePool, ...] = ()  # only of a stack with MachineConfigs
    stacks: frozenset[str] = frozenset()  # other stacks in the cluster
    foreign: Mapping[ObjectRef, tuple[str, ...]] = field(default_factory=dict)  # own object -> foreign ones in it

    @property
    def uids(self) -> frozenset[str]:
        """The uids of the stack's objects."""
        groups = (self.members, self.records, self.lease, self.traces, self.pods)
        return frozenset(item["metadata"]["uid"] for group in groups for item in group.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class DestroyStage:
    """Changes written in parallel; the next stage waits for their completion."""

    title: str  # for progress messages
    changes: tuple[Change, ...]
    components: frozenset[str] = frozenset()  # components whose pods have to end before the stage ends
    is_last: bool = False  # deletes the lock and its namespace, after the lock is released


@dataclass(frozen=True, slots=True, kw_only=True)
class DestroyPlan:
    """The objects of a stack and the stages of their removal. ``kept`` are warnings about all that stays."""

    objects: StackObjects
    stack: StackIdentity
    stages: tuple[DestroyStage, ...]
    kept: tuple[Finding, ...] = ()

    @property
    def changes(self) -> tuple[Change, ...]:
        """All writes."""
        return tuple(change for stage in self.stages for change in stage.changes)

    @property
    def users(self) -> dict[str, tuple[Manifest, ...]]:
        """Foreign pods that would lose their GPUs, by node."""
        if not any(stage.components & {*ACCESS, "driver", "toolkit"} for stage in self.stages):
            return {}
        nodes = labelled_nodes(self.objects.nodes, self.stack.name)
        return gpu_users(self.objects.others, nodes, self.objects.claims)


def plan_destroy(found: StackObjects, stack: StackIdentity, *, crds: bool) -> DestroyPlan:
    """Plan the removal of a stack; ``crds`` includes definitions without foreign objects."""
    shared = {
        ref: _plan_shared(item, found.foreign.get(ref, ()))
        for ref, item in found.members.items()
        if ref.kind in SHARED_KINDS and not item["metadata"].get("deletionTimestamp")
    }
    definitions = [ref for ref in shared if ref.kind == _DEFINITION]
    warnings = [finding for ref, (_, finding) in shared.items() if finding and (crds or ref not in definitions)]
    remnants = [find_remnants(node, stack) for node in found.nodes]
    running = frozenset().union(*waves())
    objects = _delete_changes(
        item
        for ref, item in found.members.items()
        if ref.kind not in SHARED_KINDS and not (ref.kind in _WORKLOADS and component_of(item) in running)
        if component_of(item) != machine_config.NAME
    )
    records = _delete_changes((*found.records.values(), *found.lease.values()), component="prerequisites")

    def shared_changes(kind: str) -> tuple[Change, ...]:
        return tuple(change for ref, (change, _) in shared.items() if change and ref.kind == kind)

    access = (*_delete_workloads(found, ACCESS), *shared_changes("RuntimeClass"))
    stages = (
        DestroyStage(title="access to GPUs", changes=access, components=ACCESS),
        *(
            DestroyStage(title=", ".join(sorted(wave)), changes=_delete_workloads(found, wave), components=wave)
            for wave in (each - ACCESS for each in waves())
        ),
        DestroyStage(title="nodes", changes=tuple(_node_change(node) for node in remnants if not node.is_clean)),
        DestroyStage(title="what components left", changes=_delete_changes(found.traces.values())),
        DestroyStage(title="objects", changes=objects),
        DestroyStage(title="custom resources", changes=shared_changes(_DEFINITION) if crds else ()),
        _machine_config_stage(found),
        # Objects that mark unfinished work are deleted last, so an interrupted run can be resumed.
        DestroyStage(title="records and namespaces", changes=(*records, *shared_changes("Namespace")), is_last=True),
    )
    present = {component_of(pod) for pod in found.pods.values()}
    if definitions and not crds:
        kept = Finding(
            code=codes.CRDS_KEPT,
            what="these stay: deleting them would delete all their objects",
            where="CustomResourceDefinition " + ", ".join(sorted(ref.name for ref in definitions)),
            fix="add --crds to remove them, too",
            severity=Severity.WARNING,
        )
        warnings.append(kept)
    return DestroyPlan(
        objects=found,
        stack=stack,
        stages=tuple(stage for stage in stages if stage.changes or stage.components & present),
        kept=(*warnings, *_kept_findings(remnants)),
    )


def _kept_findings(judged: Iterable[NodeRemnants]) -> Iterator[Finding]:
    """Yield a warning for each kept label and cordon, with all its nodes."""
    nodes: dict[tuple[str, str], list[str]] = {}
    for node in judged:
        for what, evidence in node.kept.items():
            nodes.setdefault((what, evidence), []).append(node.name)
    for (what, evidence), names in sorted(nodes.items()):
        kind, _, key = what.partition(" ")
        command = "kubectl uncordon" if kind == "cordon" else "kubectl label node"
        yield Finding(
            code=codes.TAKEN_OVER,
            what=f"{what} stays, since others write it, too",
            where=f"Node {', '.join(sorted(names))}",
            evidence=evidence,
            fix=f"if they do not need it: {command} {' '.join(sorted(names))}{f' {key}-' if key else ''}",
            severity=Severity.WARNING,
        )


def waves() -> list[frozenset[str]]:
    """Return the components in waves; one wave is removed in parallel."""
    dependents = {each.name: {other.name for other in COMPONENTS if each.name in other.requires} for each in COMPONENTS}
    order = TopologicalSorter(dependents)
    order.prepare()
    result = []
    while wave := order.get_ready():
        order.done(*wave)
        result.append(frozenset(wave))
    return result


def _delete_workloads(objects: StackObjects, components: frozenset[str]) -> tuple[Change, ...]:
    """Return the deletions of DaemonSets, Deployments and pods without an owner."""
    running = (item for ref, item in objects.members.items() if ref.kind in _WORKLOADS)
    single = (pod for pod in objects.pods.values() if not pod["metadata"].get("ownerReferences"))
    return _delete_changes(item for item in (*running, *single) if component_of(item) in components)


def _delete_changes(items: Iterable[Manifest], *, component: str = "") -> tuple[Change, ...]:
    return tuple(
        Change(component=component_of(item) or component, action=Action.DELETE, ref=ref_of(item))
        for item in items
        if not item["metadata"].get("deletionTimestamp")
    )


def _machine_config_stage(objects: StackObjects) -> DestroyStage:
    """Return the deletions of MachineConfigs with the nodes that reboot; nothing waits for these reboots."""
    configs = (item for item in objects.members.values() if component_of(item) == machine_config.NAME)
    openshift = OpenShiftFacts(pools=objects.machine_pools)
    changes = tuple(
        replace(change, effects=machine_config.reboot_effects(objects.members[change.ref], openshift))
        for change in _delete_changes(configs)
    )
    effects = dict.fromkeys(effect for change in changes for effect in change.effects)
    return DestroyStage(
        title=f"MachineConfigs, which {', '.join(effects)}" if effects else "MachineConfigs", changes=changes
    )


def _node_change(node: NodeRemnants) -> Change:
    fields = (
        *_removed_fields("labels", node.labels),
        *_removed_fields("annotations", node.annotations),
        *((FieldChange("spec.unschedulable", True, None),) if node.uncordon else ()),  # noqa: FBT003 - a value
        *((FieldChange("spec.taints", labels.NOT_VALIDATED, None),) if node.loses_taint else ()),
    )
    count = len(node.discovered)
    effects = (f"removes {count} labels of Node Feature Discovery",) if count else ()
    ref = ObjectRef("v1", "Node", "", node.name)
    return Change(component="node_labels", action=Action.UPDATE, ref=ref, fields=fields, effects=effects)


def _removed_fields(part: str, values: Mapping[str, str]) -> Iterator[FieldChange]:
    yield from (FieldChange(path_of("metadata", part, key), value, None) for key, value in values.items())


def _plan_shared(item: Manifest, foreign: tuple[str, ...]) -> tuple[Change | None, Finding | None]:
    """Return the change of an object of SHARED_KINDS, if any, and a warning if the object stays.

    An update removes the labels that only gpu-provision has set; its manifest is the merge patch.
    """
    ref = ref_of(item)
    if managers := other_managers(item):
        why, evidence = "other field managers have written to it", f"field managers: {', '.join(sorted(managers))}"
        fix = f"if nothing else uses it: kubectl delete {ref.kind.lower()} {ref.name}"
    elif foreign:
        why, evidence = "deleting it would delete objects of others in it", join_limited(foreign, _MAX_FOREIGN)
        fix = f"once these are gone: kubectl delete {ref.kind.lower()} {ref.name}"
    else:
        return Change(component=component_of(item), action=Action.DELETE, ref=ref), None
    what = f"it stays without gpu-provision's labels: {why}"
    warning = Finding(
        code=codes.SHARED_OBJECT_STAYS, what=what, where=str(ref), evidence=evidence, fix=fix, severity=Severity.WARNING
    )
    own = own_labels(item)
    if not own:
        return None, warning
    patch = {"metadata": {"uid": item["metadata"]["uid"], "labels": dict.fromkeys(own)}}
    fields = tuple(_removed_fields("labels", dict(sorted(own.items()))))
    update = Change(component=component_of(item), action=Action.UPDATE, ref=ref, fields=fields, manifest=patch)
    return update, warning


def hosts_skipped_finding() -> Finding:
    """Return the error that the host phase was skipped, since containers may still use the hosts' packages."""
    return Finding(
        code=codes.HOSTS_HELD_BACK,
        what="hosts were not changed: the cluster still has objects of the stack, which may need their packages",
        fix="remove these objects and run again; hosts alone: --hosts-only, or deploys/host_teardown.py",
    )
