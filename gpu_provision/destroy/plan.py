"""What is left of a stack -> the stages in which it goes, and what stays. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from gpu_provision.components import COMPONENTS, labels
from gpu_provision.destroy import findings
from gpu_provision.destroy.discovery import Remains
from gpu_provision.destroy.nodes import OnNode, Stack, labels_of_ours, makers, on_node
from gpu_provision.model import codes
from gpu_provision.model.cluster import Manifest, ObjectRef, ref_of
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.plan import Action, Change, FieldChange
from gpu_provision.planning.applyset import component_of
from gpu_provision.planning.diff import path_of

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
        ref: change_of(item, remains.strangers.get(ref, ()))
        for ref, item in remains.members.items()
        if ref.kind in KINDS and not _is_going(item)
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
        kept=(*told, *findings.taken_over(judged), *(() if crds else findings.kept_definitions(definitions))),
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
            if ref.kind not in KINDS and not (ref.kind in _WORKLOADS and component_of(item) in known)
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


def waves() -> tuple[tuple[str, ...], ...]:
    """Return the components in waves; those of one wave may go at the same time."""
    heights = {component.name: _height(component.name) for component in COMPONENTS}
    return tuple(
        tuple(name for name, height in heights.items() if height == level) for level in range(max(heights.values()) + 1)
    )


@cache
def _height(name: str) -> int:
    """Return how many components stand on top of one another above this one."""
    above = (component.name for component in COMPONENTS if name in component.requires)
    return max((_height(each) + 1 for each in above), default=0)


KINDS = frozenset({"Namespace", "RuntimeClass", "CustomResourceDefinition"})
_NAMED = 5


def change_of(item: Manifest, strangers: tuple[str, ...]) -> tuple[Change | None, Finding | None]:
    """Return what happens to an object, if anything, and what a reader should know of it.

    The manifest of an update is the merge patch that makes it.

    Args:
        item: A live object of one of KINDS.
        strangers: What others have in it, in words.
    """
    ref = ref_of(item)
    others = ", ".join(sorted(makers(item)))
    if others:
        return _released(item), _made_by_others(ref, others)
    if strangers:
        return _released(item), _not_empty(ref, strangers)
    return Change(component=component_of(item), action=Action.DELETE, ref=ref), None


def _released(item: Manifest) -> Change | None:
    """Take off the labels that we alone have set."""
    ours = labels_of_ours(item)
    if not ours:
        return None
    patch = {"metadata": {"uid": item["metadata"]["uid"], "labels": dict.fromkeys(ours)}}
    fields = tuple(FieldChange(path_of("metadata", "labels", key), value, None) for key, value in sorted(ours.items()))
    return Change(component=component_of(item), action=Action.UPDATE, ref=ref_of(item), fields=fields, manifest=patch)


def _made_by_others(ref: ObjectRef, others: str) -> Finding:
    return Finding(
        code=codes.NOT_OURS_ALONE,
        what="it stays without our labels: others have made it, or written to it",
        where=str(ref),
        evidence=f"field managers: {others}",
        fix=f"if nobody needs it: kubectl delete {ref.kind.lower()} {ref.name}",
        severity=Severity.WARNING,
    )


def _not_empty(ref: ObjectRef, strangers: tuple[str, ...]) -> Finding:
    more = f" and {len(strangers) - _NAMED} more" if len(strangers) > _NAMED else ""
    return Finding(
        code=codes.NOT_OURS_ALONE,
        what="it stays without our labels, for it would take what others have in it along",
        where=str(ref),
        evidence=", ".join(strangers[:_NAMED]) + more,
        fix=f"when that is gone: kubectl delete {ref.kind.lower()} {ref.name}",
        severity=Severity.WARNING,
    )
