"""What a node has from the stack: labels, annotations and cordons, and which of them others have taken over.

Ownership is read from `metadata.managedFields`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpu_provision.components import labels
from gpu_provision.components.node_labels import OPERANDS
from gpu_provision.model.cluster import Manifest
from gpu_provision.planning.diff import FIELD_MANAGER
from gpu_provision.rollout import states

OURS = frozenset({FIELD_MANAGER, f"{FIELD_MANAGER}-records"})
"""Field managers of this tool."""

# Where the server puts what it no longer tells apart: the eleventh writer of an object pushes the first one there.
_UNKNOWN = frozenset({"ancient-changes"})

# Programs that write to every object of a kind, whoever made it.
_SYSTEM = frozenset(
    {
        "cluster-policy-controller",
        "kube-apiserver",
        "kube-controller-manager",
        "openshift-controller-manager",
    }
)


def hands(item: Manifest, *path: str) -> frozenset[str]:
    """Return the field managers of one field, such as ``("metadata", "labels", "app")``; none if nobody knows."""
    found = (entry["manager"] for entry in _entries(item) if _has(entry.get("fieldsV1") or {}, path))
    return frozenset(found) - _UNKNOWN


def makers(item: Manifest) -> frozenset[str]:
    """Return everybody else who has written to an object that we apply: it was there before us, or is theirs, too."""
    return frozenset(entry["manager"] for entry in _entries(item)) - OURS - _SYSTEM - _UNKNOWN


def labels_of_ours(item: Manifest) -> dict[str, str]:
    """Return the labels that we, and nobody else, set on an object."""
    found: Mapping[str, str] = item["metadata"].get("labels") or {}
    writers = {key: hands(item, "metadata", "labels", key) for key in found}
    return {key: value for key, value in found.items() if writers[key] and writers[key] <= OURS}


def _entries(item: Manifest) -> Iterator[Mapping[str, Any]]:
    yield from (entry for entry in item["metadata"].get("managedFields") or () if entry.get("manager"))


def _has(fields: Mapping[str, Any], path: tuple[str, ...]) -> bool:
    for name in path:
        if f"f:{name}" not in fields:
            return False
        fields = fields[f"f:{name}"]
    return True


_OWN_LABELS = frozenset(
    {labels.DRIVER_GROUP, labels.HOST_DRIVER, labels.CONTAINER_RUNTIME, labels.VALIDATED, labels.INVENTORY}
)
_OWN_ANNOTATIONS = frozenset(
    {labels.CORDONED, *(key for key in states.ALL_ANNOTATIONS if key.startswith("gpu-provision.io/"))}
)
_SHARED_LABELS = frozenset({labels.GPU_PRESENT, states.STATE})  # the GPU Operator writes them as well
_OPERATOR = frozenset({"gpu-operator"})  # its field manager
_OPERAND_LABELS = frozenset(map(labels.deploy, OPERANDS))

_NFD = "nfd.node.kubernetes.io/"  # annotations in which Node Feature Discovery keeps its books
_NFD_LABELS, _NFD_ANNOTATIONS = f"{_NFD}feature-labels", f"{_NFD}feature-annotations"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """What a removal has to know of the stack to judge nodes.

    Attributes:
        name: The inventory's name, which is the stack's mark on nodes.
        declared: Node -> the labels that the inventory declares for it.
        brings_nfd: Whether Node Feature Discovery is the stack's own and goes with it.
        is_alone: Whether the cluster has no other stack of ours: the books do not tell them apart.
        operator: Pod of the GPU Operator, if one runs in the cluster: ``namespace/name``.
    """

    name: str
    declared: Mapping[str, Mapping[str, str]]
    brings_nfd: bool
    is_alone: bool
    operator: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnNode:
    """What is to be taken off one node, as it was looked at.

    Attributes:
        revision: The version that was looked at.
        labels: Labels of ours, with their values.
        discovered: Keys of labels that Node Feature Discovery wrote.
        annotations: Annotations of ours and of Node Feature Discovery, with their values.
        uncordon: Whether its cordon is ours.
        taints: Those that stay, if the startup taint goes; None if the node does not have it.
        kept: What stays (``label nvidia.com/gpu.present``) -> the evidence that others write it.
    """

    name: str
    revision: str
    labels: Mapping[str, str]
    discovered: tuple[str, ...] = ()
    annotations: Mapping[str, str]
    uncordon: bool = False
    taints: tuple[Mapping[str, Any], ...] | None = None
    kept: Mapping[str, str]

    @property
    def is_clean(self) -> bool:
        """Whether there is nothing to take off."""
        return not (self.labels or self.discovered or self.annotations or self.uncordon or self.is_freed)

    @property
    def is_freed(self) -> bool:
        """Whether the node loses its startup taint: with the stack goes whoever would take it off."""
        return self.taints is not None

    def patch(self) -> dict[str, Any]:
        """Return the merge patch that takes it off, from exactly the node that was looked at."""
        metadata: dict[str, Any] = {
            "resourceVersion": self.revision,
            "labels": dict.fromkeys((*self.labels, *self.discovered)),
            "annotations": dict.fromkeys(self.annotations),
        }
        spec: dict[str, Any] = {"unschedulable": None} if self.uncordon else {}
        spec |= {"taints": [dict(taint) for taint in self.taints] or None} if self.taints is not None else {}
        return {"metadata": metadata, **({"spec": spec} if spec else {})}


def on_node(node: Manifest, stack: Stack) -> OnNode:
    """Judge one node."""
    metadata = node["metadata"]
    present: Mapping[str, str] = metadata.get("labels") or {}
    notes: Mapping[str, str] = metadata.get("annotations") or {}
    found, kept = _labels(node, stack)
    cordoned, others = _cordon(node) if _may_be_ours(node, stack) else (False, "")
    kept |= {"cordon": others} if others else {}
    discovered = frozenset(_discovered(metadata, _NFD_LABELS, labels.NFD_PREFIX)) if stack.brings_nfd else frozenset()
    return OnNode(
        name=metadata["name"],
        revision=metadata["resourceVersion"],
        labels={key: present[key] for key in sorted(found - discovered)},
        discovered=tuple(sorted(discovered & present.keys())),
        annotations={key: notes[key] for key in sorted(_annotations(node, stack)) if key in notes},
        uncordon=cordoned,
        taints=_taints(node) if _may_be_ours(node, stack) else None,
        kept=kept,
    )


def is_marked(node: Manifest, stack: Stack) -> bool:
    """Whether a node carries the stack's mark."""
    return _mark(node) == stack.name


def _mark(node: Manifest) -> str:
    return str((node["metadata"].get("labels") or {}).get(labels.INVENTORY, ""))


def _may_be_ours(node: Manifest, stack: Stack) -> bool:
    """Whether what we wrote on a node was for this stack."""
    declared = node["metadata"]["name"] in stack.declared
    return is_marked(node, stack) or (not _mark(node) and (declared or stack.is_alone))


def _labels(node: Manifest, stack: Stack) -> tuple[set[str], dict[str, str]]:
    """Return the keys that go, and those that stay with those who wrote them."""
    going: set[str] = set()
    kept: dict[str, str] = {}
    if not _may_be_ours(node, stack):
        return going, kept
    declared, marked = stack.declared.get(node["metadata"]["name"], {}), is_marked(node, stack)
    for key, value in (node["metadata"].get("labels") or {}).items():
        writers, is_shared = hands(node, "metadata", "labels", key), marked and key in _SHARED_LABELS
        if is_shared and stack.operator:
            kept[f"label {key}"] = f"Pod {stack.operator} of the GPU Operator"
            continue
        writers -= _OPERATOR if is_shared else frozenset()  # it does not run: what it left has no other use
        others, as_declared = writers - OURS, declared.get(key) == value
        by_books = bool(writers & OURS) and not others
        by_meaning = not writers and (as_declared or is_shared)
        if key in _OWN_LABELS or by_books or by_meaning or (marked and _is_a_programs_word(key, value)):
            going.add(key)
        elif others and (writers & OURS or as_declared or (marked and key in _SHARED_LABELS | _OPERAND_LABELS)):
            kept[f"label {key}"] = _managers(others)
    return going, kept


def _is_a_programs_word(key: str, value: str) -> bool:
    """Whether an operand's label has a value of ours, or one that the driver manager gives it for a while."""
    if key not in _OPERAND_LABELS:
        return False
    is_on_host = (key, value) == (labels.DEPLOY_DRIVER, labels.PRE_INSTALLED)
    return value == "true" or value.startswith(labels.PAUSED) or is_on_host


def _annotations(node: Manifest, stack: Stack) -> Iterator[str]:
    metadata = node["metadata"]
    if stack.brings_nfd:
        yield from _discovered(metadata, _NFD_ANNOTATIONS, labels.NFD_PREFIX)
    for key in metadata.get("annotations") or {}:
        writers = hands(node, "metadata", "annotations", key)
        lost = is_marked(node, stack) and key in states.ALL_ANNOTATIONS and not writers
        ours = _may_be_ours(node, stack) and (key in _OWN_ANNOTATIONS or (writers and writers <= OURS) or lost)
        if ours or (stack.brings_nfd and key.startswith(_NFD)):
            yield key


def _discovered(metadata: Mapping[str, Any], book: str, prefix: str) -> Iterator[str]:
    """Yield the keys that one of Node Feature Discovery's books lists; it leaves its own prefix out."""
    listed = str((metadata.get("annotations") or {}).get(book, ""))
    yield from (name if "/" in name else f"{prefix}{name}" for name in listed.split(",") if name)


def _taints(node: Manifest) -> tuple[Mapping[str, Any], ...] | None:
    """Return the taints that a node keeps; None if it does not have the startup taint, whose key is ours alone."""
    present = tuple(node.get("spec", {}).get("taints") or ())
    others = tuple(taint for taint in present if taint.get("key") != labels.NOT_VALIDATED)
    return None if len(others) == len(present) else others


def _cordon(node: Manifest) -> tuple[bool, str]:
    """Return whether a node's cordon is ours to lift; if it was, and is not any more, the evidence whose it is."""
    annotations = node["metadata"].get("annotations") or {}
    marks = {annotations[key] for key in (states.CORDONED,) if key in annotations}
    was_there = annotations.get(states.WAS_CORDONED) == "true"
    if not node.get("spec", {}).get("unschedulable") or was_there or not (marks or labels.CORDONED in annotations):
        return False, ""
    others = hands(node, "spec", "unschedulable") - OURS - marks
    return not others, _managers(others) if others else ""


def _managers(names: frozenset[str]) -> str:
    return f"field managers: {', '.join(sorted(names))}"
