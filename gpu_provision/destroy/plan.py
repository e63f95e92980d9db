"""What is left of a stack, the stages in which it goes, and what stays and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from graphlib import TopologicalSorter

from gpu_provision.components import COMPONENTS, labels
from gpu_provision.destroy.nodes import NodeRemnants, StackIdentity, find_remnants, gpu_users, marked_nodes
from gpu_provision.model import codes
from gpu_provision.model.cluster import Manifest, ObjectRef, ref_of
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.plan import Action, Change, FieldChange
from gpu_provision.model.text import join_limited
from gpu_provision.planning.applyset import component_of
from gpu_provision.planning.diff import path_of
from gpu_provision.planning.managed_fields import other_managers, own_labels

# Components that give GPUs to pods; they go before anything that would break a pod, so that no new one comes.
ACCESS = frozenset({"device_plugin", "device_plugin_validation"})

# Kinds of objects that others may have made, or may use, too.
SHARED_KINDS = frozenset({"Namespace", "RuntimeClass", "CustomResourceDefinition"})

_WORKLOADS = frozenset({"DaemonSet", "Deployment"})
_DEFINITION = "CustomResourceDefinition"
_MAX_FOREIGN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class StackObjects:
    """What one reading found. All objects are live ones, by reference."""

    cluster: str  # context and version
    members: Mapping[ObjectRef, Manifest] = field(default_factory=dict)  # what carries the stack's membership
    records: Mapping[ObjectRef, Manifest] = field(default_factory=dict)  # its ConfigMap, validations and history
    lease: Mapping[ObjectRef, Manifest] = field(default_factory=dict)
    traces: Mapping[ObjectRef, Manifest] = field(default_factory=dict)  # what its components made while they ran
    pods: Mapping[ObjectRef, Manifest] = field(default_factory=dict)
    others: tuple[Manifest, ...] = ()  # pods that are neither the stack's nor traces of it
    claims: tuple[Manifest, ...] | None = ()  # ResourceClaims; None if pods have some, and they cannot be read
    nodes: tuple[Manifest, ...] = ()
    stacks: frozenset[str] = frozenset()  # names of the other stacks of this tool in the cluster
    foreign: Mapping[ObjectRef, tuple[str, ...]] = field(default_factory=dict)  # what others have in ours, in words

    @property
    def uids(self) -> frozenset[str]:
        """The uids of everything that is the stack's."""
        groups = (self.members, self.records, self.lease, self.traces, self.pods)
        return frozenset(item["metadata"]["uid"] for group in groups for item in group.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class DestroyStage:
    """Changes that are made at the same time, and awaited before the next stage."""

    title: str  # what goes, for people
    changes: tuple[Change, ...]
    components: frozenset[str] = frozenset()  # those whose pods have to be gone before the stage is over
    is_last: bool = False  # takes the ground on which the lock stands, which is given back before


@dataclass(frozen=True, slots=True, kw_only=True)
class DestroyPlan:
    """What is left of a stack, and all that its removal does, in order. ``kept`` are warnings about what stays."""

    objects: StackObjects
    stack: StackIdentity
    stages: tuple[DestroyStage, ...]
    kept: tuple[Finding, ...] = ()

    @property
    def changes(self) -> tuple[Change, ...]:
        """Everything that is written."""
        return tuple(change for stage in self.stages for change in stage.changes)

    @property
    def users(self) -> dict[str, tuple[Manifest, ...]]:
        """Pods of others that would lose their GPUs, by node."""
        if not any(stage.components & {*ACCESS, "driver", "toolkit"} for stage in self.stages):
            return {}
        nodes = marked_nodes(self.objects.nodes, self.stack.name)
        return gpu_users(self.objects.others, nodes, self.objects.claims)


def plan_destroy(found: StackObjects, stack: StackIdentity, *, crds: bool) -> DestroyPlan:
    """Return the stages in which a stack goes, with ``crds`` also definitions and all their objects that are ours."""
    shared = {
        ref: _plan_shared(item, found.foreign.get(ref, ()))
        for ref, item in found.members.items()
        if ref.kind in SHARED_KINDS and not item["metadata"].get("deletionTimestamp")
    }
    definitions = [ref for ref in shared if ref.kind == _DEFINITION]
    warnings = [finding for ref, (_, finding) in shared.items() if finding and (crds or ref not in definitions)]
    remnants = [find_remnants(node, stack) for node in found.nodes]
    running = frozenset().union(*waves())
    objects = _deletions(
        item
        for ref, item in found.members.items()
        if ref.kind not in SHARED_KINDS and not (ref.kind in _WORKLOADS and component_of(item) in running)
    )
    records = _deletions((*found.records.values(), *found.lease.values()), component="prerequisites")

    def shared_changes(kind: str) -> tuple[Change, ...]:
        return tuple(change for ref, (change, _) in shared.items() if change and ref.kind == kind)

    access = (*_workloads(found, ACCESS), *shared_changes("RuntimeClass"))
    stages = (
        DestroyStage(title="access to GPUs", changes=access, components=ACCESS),
        *(
            DestroyStage(title=", ".join(sorted(wave)), changes=_workloads(found, wave), components=wave)
            for wave in (each - ACCESS for each in waves())
        ),
        DestroyStage(title="nodes", changes=tuple(_node_change(node) for node in remnants if not node.is_clean)),
        DestroyStage(title="what components left", changes=_deletions(found.traces.values())),
        DestroyStage(title="objects", changes=objects),
        DestroyStage(title="custom resources", changes=shared_changes(_DEFINITION) if crds else ()),
        # What tells the next run that there is something to remove, and where that is, goes last.
        DestroyStage(title="records and namespaces", changes=(*records, *shared_changes("Namespace")), is_last=True),
    )
    present = {component_of(pod) for pod in found.pods.values()}
    if definitions and not crds:
        kept = Finding(
            code=codes.CRDS_KEPT,
            what="these stay, for with them all their objects would go",
            where="CustomResourceDefinition " + ", ".join(sorted(ref.name for ref in definitions)),
            fix="add --crds to remove them, too",
            severity=Severity.WARNING,
        )
        warnings.append(kept)
    return DestroyPlan(
        objects=found,
        stack=stack,
        stages=tuple(stage for stage in stages if stage.changes or stage.components & present),
        kept=(*warnings, *_taken_over(remnants)),
    )


def _taken_over(judged: Iterable[NodeRemnants]) -> Iterator[Finding]:
    """Yield a warning for each label and cordon that stays, those of several nodes together."""
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
            fix=f"if it is of no use to them: {command} {' '.join(sorted(names))}{f' {key}-' if key else ''}",
            severity=Severity.WARNING,
        )


def waves() -> list[frozenset[str]]:
    """Return the components in waves; those of one wave may go at the same time."""
    dependents = {each.name: {other.name for other in COMPONENTS if each.name in other.requires} for each in COMPONENTS}
    order = TopologicalSorter(dependents)
    order.prepare()
    found = []
    while wave := order.get_ready():
        order.done(*wave)
        found.append(frozenset(wave))
    return found


def _workloads(found: StackObjects, components: frozenset[str]) -> tuple[Change, ...]:
    """Return the deletions of all that runs, but for pods that go with their DaemonSet or Deployment."""
    running = (item for ref, item in found.members.items() if ref.kind in _WORKLOADS)
    single = (pod for pod in found.pods.values() if not pod["metadata"].get("ownerReferences"))
    return _deletions(item for item in (*running, *single) if component_of(item) in components)


def _deletions(items: Iterable[Manifest], *, component: str = "") -> tuple[Change, ...]:
    return tuple(
        Change(component=component_of(item) or component, action=Action.DELETE, ref=ref_of(item))
        for item in items
        if not item["metadata"].get("deletionTimestamp")
    )


def _node_change(node: NodeRemnants) -> Change:
    fields = (
        *_removed_fields("labels", node.labels),
        *_removed_fields("annotations", node.annotations),
        *((FieldChange("spec.unschedulable", True, None),) if node.uncordon else ()),  # noqa: FBT003 - a value
        *((FieldChange("spec.taints", labels.NOT_VALIDATED, None),) if node.is_freed else ()),
    )
    count = len(node.discovered)
    effects = (f"removes {count} labels of Node Feature Discovery",) if count else ()
    ref = ObjectRef("v1", "Node", "", node.name)
    return Change(component="node_labels", action=Action.UPDATE, ref=ref, fields=fields, effects=effects)


def _removed_fields(part: str, values: Mapping[str, str]) -> Iterator[FieldChange]:
    yield from (FieldChange(path_of("metadata", part, key), value, None) for key, value in values.items())


def _plan_shared(item: Manifest, foreign: tuple[str, ...]) -> tuple[Change | None, Finding | None]:
    """Return what happens to an object of SHARED_KINDS, if anything, and a warning if it stays.

    An update removes the labels that only this tool has set; its manifest is the merge patch.
    """
    ref = ref_of(item)
    if managers := other_managers(item):
        why, evidence = "others have made it, or written to it", f"field managers: {', '.join(sorted(managers))}"
        fix = f"if it has no other use: kubectl delete {ref.kind.lower()} {ref.name}"
    elif foreign:
        why, evidence = "deleting it would delete what others have in it", join_limited(foreign, _MAX_FOREIGN)
        fix = f"when that is gone: kubectl delete {ref.kind.lower()} {ref.name}"
    else:
        return Change(component=component_of(item), action=Action.DELETE, ref=ref), None
    what = f"it stays without our labels: {why}"
    warning = Finding(
        code=codes.SHARED_OBJECT_STAYS, what=what, where=str(ref), evidence=evidence, fix=fix, severity=Severity.WARNING
    )
    ours = own_labels(item)
    if not ours:
        return None, warning
    patch = {"metadata": {"uid": item["metadata"]["uid"], "labels": dict.fromkeys(ours)}}
    fields = tuple(_removed_fields("labels", dict(sorted(ours.items()))))
    update = Change(component=component_of(item), action=Action.UPDATE, ref=ref, fields=fields, manifest=patch)
    return update, warning


def hosts_held_back() -> Finding:
    """Return the error about hosts that keep what the host phase did, since containers may still use it."""
    return Finding(
        code=codes.HOSTS_HELD_BACK,
        what="hosts were left as they are: the cluster still has something of the stack, which may need them",
        fix="see to what is left there and run again; hosts alone: --hosts-only, or deploys/host_teardown.py",
    )
