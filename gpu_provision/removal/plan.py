"""What is left of a stack -> the stages in which it goes, and what stays. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from gpu_provision.components import labels
from gpu_provision.model.cluster import Manifest, ObjectRef, ref_of
from gpu_provision.model.findings import Finding
from gpu_provision.model.plan import Action, Change, FieldChange
from gpu_provision.planning.compare import path_of
from gpu_provision.planning.membership import component_of
from gpu_provision.removal import shared, telling
from gpu_provision.removal.nodes import OnNode, Stack, on_node
from gpu_provision.removal.order import waves
from gpu_provision.removal.remains import Remains

ACCESS = ("device_plugin", "device_plugin_validation")
"""Components that give GPUs to pods; they go before anything that would break a pod, so that none comes anew."""

_WORKLOADS = frozenset({"DaemonSet", "Deployment"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Changes that are made at the same time, and awaited before the next stage.

    Attributes:
        title: What goes, for people.
        components: Those whose pods have to be gone before the stage is over.
        is_last: Whether it takes the ground on which the lock stands, so that it has to be given back before.
    """

    title: str
    changes: tuple[Change, ...]
    components: frozenset[str] = frozenset()
    is_last: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """All that a removal does, in order, and what stays. ``kept`` are warnings."""

    stages: tuple[Stage, ...]
    kept: tuple[Finding, ...] = ()

    @property
    def changes(self) -> tuple[Change, ...]:
        """Everything that is written."""
        return tuple(change for stage in self.stages for change in stage.changes)


def removal(remains: Remains, stack: Stack, *, crds: bool) -> Removal:
    """Return how a stack goes. Stages without anything to do are left out.

    Args:
        crds: Whether CustomResourceDefinitions go, too, with all objects of them that are ours.
    """
    fates = {
        ref: shared.change_of(item, remains.strangers.get(ref, ()))
        for ref, item in remains.members.items()
        if ref.kind in shared.KINDS and not _is_going(item)
    }
    changes = {ref: change for ref, (change, _) in fates.items() if change}
    definitions = [ref for ref in fates if ref.kind == "CustomResourceDefinition"]
    told = [finding for ref, (_, finding) in fates.items() if finding and (crds or ref not in definitions)]
    judged = [on_node(node, stack) for node in remains.nodes]
    stages = [
        _access(remains, changes),
        *_components(remains),
        Stage(title="nodes", changes=tuple(_node_change(node) for node in judged if not node.is_clean)),
        Stage(title="what components left", changes=_deletions(remains.traces.values(), "")),
        Stage(title="objects", changes=_objects(remains)),
        Stage(title="custom resources", changes=_chosen(changes, definitions) if crds else ()),
        _ground(remains, changes),
    ]
    return Removal(
        stages=tuple(stage for stage in stages if _is_needed(stage, remains)),
        kept=(*told, *telling.taken_over(judged), *(() if crds else telling.kept_definitions(definitions))),
    )


def takes_gpus(plan: Removal) -> bool:
    """Whether a removal takes anything that pods need to use GPUs."""
    awaited = frozenset().union(*(stage.components for stage in plan.stages))
    return bool(awaited & {*ACCESS, *_BELOW})


_BELOW = frozenset({"driver", "toolkit"})


def _access(remains: Remains, changes: Mapping[ObjectRef, Change]) -> Stage:
    classes = tuple(change for ref, change in changes.items() if ref.kind == "RuntimeClass")
    own = _workloads(remains, frozenset(ACCESS))
    return Stage(title="access to GPUs", changes=(*own, *classes), components=frozenset(ACCESS))


def _components(remains: Remains) -> Iterator[Stage]:
    for wave in waves():
        names = frozenset(wave) - frozenset(ACCESS)
        yield Stage(title=", ".join(sorted(names)), changes=_workloads(remains, names), components=names)


def _workloads(remains: Remains, components: frozenset[str]) -> tuple[Change, ...]:
    """Return the deletions of all that runs, but for pods that go with their DaemonSet or Deployment."""
    running = (item for ref, item in remains.members.items() if ref.kind in _WORKLOADS)
    single = (pod for pod in remains.pods.values() if not pod["metadata"].get("ownerReferences"))
    return _deletions((item for item in (*running, *single) if component_of(item) in components), "")


def _objects(remains: Remains) -> tuple[Change, ...]:
    known = {component for wave in waves() for component in wave}
    return _deletions(
        (
            item
            for ref, item in remains.members.items()
            if ref.kind not in shared.KINDS and not (ref.kind in _WORKLOADS and component_of(item) in known)
        ),
        "",
    )


def _ground(remains: Remains, changes: Mapping[ObjectRef, Change]) -> Stage:
    """Return the end: what tells the next run that there is something to remove, and where that is."""
    namespaces = tuple(change for ref, change in changes.items() if ref.kind == "Namespace")
    records = _deletions((*remains.records.values(), *remains.lease.values()), "prerequisites")
    return Stage(title="records and namespaces", changes=(*records, *namespaces), is_last=True)


def _chosen(changes: Mapping[ObjectRef, Change], refs: Iterable[ObjectRef]) -> tuple[Change, ...]:
    return tuple(changes[ref] for ref in refs if ref in changes)


def _deletions(items: Iterable[Manifest], component: str) -> tuple[Change, ...]:
    return tuple(
        Change(component=component_of(item) or component, action=Action.DELETE, ref=ref_of(item))
        for item in items
        if not _is_going(item)
    )


def _is_going(item: Manifest) -> bool:
    return bool(item["metadata"].get("deletionTimestamp"))


def _is_needed(stage: Stage, remains: Remains) -> bool:
    return bool(stage.changes) or any(component_of(pod) in stage.components for pod in remains.pods.values())


def _node_change(node: OnNode) -> Change:
    fields = (
        *(FieldChange(path_of("metadata", "labels", key), value, None) for key, value in node.labels.items()),
        *(FieldChange(path_of("metadata", "annotations", key), value, None) for key, value in node.annotations.items()),
        *((FieldChange("spec.unschedulable", True, None),) if node.uncordon else ()),  # noqa: FBT003 - a value
        *((FieldChange("spec.taints", labels.NOT_VALIDATED, None),) if node.is_freed else ()),
    )
    found = len(node.discovered)
    effects = (f"removes {found} labels of Node Feature Discovery",) if found else ()
    ref = ObjectRef("v1", "Node", "", node.name)
    return Change(component="node_labels", action=Action.UPDATE, ref=ref, fields=fields, effects=effects)
