"""What nodes have from the stack, which of it others have taken over, and which pods there use GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpu_provision.components import labels
from gpu_provision.components.node_labels import OPERANDS
from gpu_provision.diagnostics import pods as pod_view
from gpu_provision.model.cluster import Manifest
from gpu_provision.planning.managed_fields import OWN_MANAGERS, managers_of
from gpu_provision.rollout import states
from gpu_provision.rollout.observe import claims_of, is_stack_pod, pod_of
from gpu_provision.rollout.snapshot import GpuUse

_OWN_LABELS = frozenset(
    {labels.DRIVER_GROUP, labels.HOST_DRIVER, labels.CONTAINER_RUNTIME, labels.VALIDATED, labels.INVENTORY}
)
_OWN_ANNOTATIONS = frozenset(
    {labels.CORDONED, *(key for key in states.ALL_ANNOTATIONS if key.startswith("gpu-provision.io/"))}
)
_SHARED_LABELS = frozenset({labels.GPU_PRESENT, states.STATE})  # the GPU Operator writes them as well
_OPERAND_LABELS = frozenset(map(labels.deploy, OPERANDS))

_NFD = "nfd.node.kubernetes.io/"  # prefix of annotations in which Node Feature Discovery lists what it wrote
_NFD_LABELS, _NFD_ANNOTATIONS = f"{_NFD}feature-labels", f"{_NFD}feature-annotations"
_CERTAIN = frozenset({GpuUse.REQUEST, GpuUse.CLAIM})
_USES = frozenset(GpuUse) - {GpuUse.NONE}


@dataclass(frozen=True, slots=True, kw_only=True)
class StackIdentity:
    """What a removal has to know of the stack to judge nodes."""

    name: str  # name of the inventory, and mark on nodes
    declared: Mapping[str, Mapping[str, str]]  # node -> the labels that the inventory declares for it
    brings_nfd: bool  # whether Node Feature Discovery is the stack's own and goes with it
    is_alone: bool  # whether the cluster has no other stack of this tool: field managers do not tell them apart
    operator: str = ""  # Pod of the GPU Operator, if one runs in the cluster: `namespace/name`


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRemnants:
    """What a removal takes off one node."""

    name: str
    revision: str
    labels: Mapping[str, str]  # ours
    discovered: tuple[str, ...] = ()  # keys of labels that Node Feature Discovery wrote
    annotations: Mapping[str, str]  # ours, and those of Node Feature Discovery
    uncordon: bool = False  # whether its cordon is ours
    taints: tuple[Mapping[str, Any], ...] | None = None  # those that stay, if the startup taint goes
    kept: Mapping[str, str]  # what stays (`label nvidia.com/gpu.present`) -> the evidence that others write it

    @property
    def is_clean(self) -> bool:
        """Whether nothing is left on the node."""
        return not (self.labels or self.discovered or self.annotations or self.uncordon or self.is_freed)

    @property
    def is_freed(self) -> bool:
        """Whether the node loses its startup taint: the stack, which would remove it later, goes."""
        return self.taints is not None

    def patch(self) -> dict[str, Any]:
        """Return the merge patch that takes it off, from exactly this version of the node."""
        metadata: dict[str, Any] = {
            "resourceVersion": self.revision,
            "labels": dict.fromkeys((*self.labels, *self.discovered)),
            "annotations": dict.fromkeys(self.annotations),
        }
        spec: dict[str, Any] = {"unschedulable": None} if self.uncordon else {}
        spec |= {"taints": [dict(taint) for taint in self.taints] or None} if self.taints is not None else {}
        return {"metadata": metadata, **({"spec": spec} if spec else {})}


def find_remnants(node: Manifest, stack: StackIdentity) -> NodeRemnants:
    """Return what a removal takes off a node, and what it leaves to others."""
    metadata = node["metadata"]
    present: Mapping[str, str] = metadata.get("labels") or {}
    notes: Mapping[str, str] = metadata.get("annotations") or {}
    found, kept = _labels(node, stack)
    may_be_ours = _may_be_ours(node, stack)
    cordoned, others = _cordon(node) if may_be_ours else (False, "")
    kept |= {"cordon": others} if others else {}
    discovered = frozenset(_discovered(metadata, _NFD_LABELS, labels.NFD_PREFIX)) if stack.brings_nfd else frozenset()
    taints = tuple(node.get("spec", {}).get("taints") or ())
    left = tuple(
        taint for taint in taints if taint.get("key") != labels.NOT_VALIDATED
    )  # a key that only this tool sets
    return NodeRemnants(
        name=metadata["name"],
        revision=metadata["resourceVersion"],
        labels={key: present[key] for key in sorted(found - discovered)},
        discovered=tuple(sorted(discovered & present.keys())),
        annotations={key: notes[key] for key in sorted(_annotations(node, stack)) if key in notes},
        uncordon=cordoned,
        taints=left if may_be_ours and len(left) < len(taints) else None,
        kept=kept,
    )


def _mark(node: Manifest) -> str:
    return str((node["metadata"].get("labels") or {}).get(labels.INVENTORY, ""))


def _may_be_ours(node: Manifest, stack: StackIdentity) -> bool:
    """Whether what we wrote on a node was for this stack."""
    declared = node["metadata"]["name"] in stack.declared
    return _mark(node) == stack.name or (not _mark(node) and (declared or stack.is_alone))


def _labels(node: Manifest, stack: StackIdentity) -> tuple[set[str], dict[str, str]]:
    """Return the keys that go, and those that stay with those who wrote them."""
    going: set[str] = set()
    kept: dict[str, str] = {}
    if not _may_be_ours(node, stack):
        return going, kept
    declared, marked = stack.declared.get(node["metadata"]["name"], {}), _mark(node) == stack.name
    for key, value in (node["metadata"].get("labels") or {}).items():
        writers, is_shared = managers_of(node, "metadata", "labels", key), marked and key in _SHARED_LABELS
        if is_shared and stack.operator:
            kept[f"label {key}"] = f"Pod {stack.operator} of the GPU Operator"
            continue
        writers -= {labels.OPERATOR} if is_shared else frozenset()  # it does not run: what it left has no other use
        others, as_declared = writers - OWN_MANAGERS, declared.get(key) == value
        by_books = bool(writers & OWN_MANAGERS) and not others
        by_meaning = not writers and (as_declared or is_shared)
        if key in _OWN_LABELS or by_books or by_meaning or (marked and _is_operand_value(key, value)):
            going.add(key)
        elif others and (writers & OWN_MANAGERS or as_declared or (marked and key in _SHARED_LABELS | _OPERAND_LABELS)):
            kept[f"label {key}"] = _managers(others)
    return going, kept


def _is_operand_value(key: str, value: str) -> bool:
    """Whether an operand's label has one of our values, or one that the driver manager gives it for a while."""
    if key not in _OPERAND_LABELS:
        return False
    is_on_host = (key, value) == (labels.DEPLOY_DRIVER, labels.PRE_INSTALLED)
    return value == "true" or value.startswith(labels.PAUSED) or is_on_host


def _annotations(node: Manifest, stack: StackIdentity) -> Iterator[str]:
    metadata = node["metadata"]
    if stack.brings_nfd:
        yield from _discovered(metadata, _NFD_ANNOTATIONS, labels.NFD_PREFIX)
    for key in metadata.get("annotations") or {}:
        writers = managers_of(node, "metadata", "annotations", key)
        lost = _mark(node) == stack.name and key in states.ALL_ANNOTATIONS and not writers
        ours = _may_be_ours(node, stack) and (key in _OWN_ANNOTATIONS or (writers and writers <= OWN_MANAGERS) or lost)
        if ours or (stack.brings_nfd and key.startswith(_NFD)):
            yield key


def _discovered(metadata: Mapping[str, Any], annotation: str, prefix: str) -> Iterator[str]:
    """Yield the keys that one of Node Feature Discovery's annotations lists; it leaves its own prefix out."""
    listed = str((metadata.get("annotations") or {}).get(annotation, ""))
    yield from (name if "/" in name else f"{prefix}{name}" for name in listed.split(",") if name)


def _cordon(node: Manifest) -> tuple[bool, str]:
    """Return whether a node's cordon is ours to lift; if it was, and is not any more, the evidence whose it is."""
    annotations = node["metadata"].get("annotations") or {}
    is_marked = bool({states.CORDONED, labels.CORDONED} & annotations.keys())
    was_there = annotations.get(states.WAS_CORDONED) == "true"
    if not node.get("spec", {}).get("unschedulable") or was_there or not is_marked:
        return False, ""
    others = managers_of(node, "spec", "unschedulable") - OWN_MANAGERS - {annotations.get(states.CORDONED)}
    return not others, _managers(others) if others else ""


def _managers(names: frozenset[str]) -> str:
    return f"field managers: {', '.join(sorted(names))}"


def marked_nodes(nodes: Iterable[Manifest], stack: str) -> Iterator[str]:
    """Yield the names of the nodes that carry a stack's mark."""
    return (node["metadata"]["name"] for node in nodes if _mark(node) == stack)


def gpu_users(
    pods: Iterable[Manifest], nodes: Iterable[str], claims: Iterable[Manifest] | None = ()
) -> dict[str, tuple[Manifest, ...]]:
    """Return the pods that would lose a GPU, by node. If ``claims`` cannot be read (None), a pod that has any counts.

    A DaemonSet's pod that merely may use GPUs, such as a monitor, is none: it would be back at once.
    """
    known, held = frozenset(nodes), claims_of(claims)
    found: dict[str, tuple[Manifest, ...]] = {}
    for pod in sorted(pods, key=lambda each: (each["metadata"].get("namespace", ""), each["metadata"]["name"])):
        node = pod_view.node_of(pod) if pod["spec"].get("nodeName") else ""
        if node not in known or is_stack_pod(pod):
            continue
        seen = pod_of(pod, claims=held)
        if not seen.is_over and seen.use in (_CERTAIN if seen.is_daemon else _USES):
            found[node] = (*found.get(node, ()), pod)
    return dict(sorted(found.items()))


def running_operator(pods: Iterable[Manifest]) -> str:
    """Return the pod of the GPU Operator among others, as ``namespace/name``; empty if it does not run."""
    for pod in pods:
        said = pod["metadata"].get("labels") or {}
        is_named = labels.OPERATOR in {said.get(labels.APP), said.get(labels.COMPONENT_OF_APP)}
        if is_named and not pod_of(pod).is_over:
            return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
    return ""
