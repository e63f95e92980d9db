"""Find labels, annotations, taints and cordons of the stack on nodes, and the pods that use GPUs."""

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
from gpu_provision.rollout.gpu_use import claims_of
from gpu_provision.rollout.observe import is_stack_pod, pod_of
from gpu_provision.rollout.snapshot import GpuUse

_OWN_LABELS = frozenset(
    {
        labels.DRIVER_GROUP,
        labels.HOST_DRIVER,
        labels.PLUGIN_CHOICE,
        labels.CONTAINER_RUNTIME,
        labels.VALIDATED,
        labels.INVENTORY,
    }
)
_OWN_ANNOTATIONS = frozenset(
    {labels.CORDONED, *(key for key in states.ALL_ANNOTATIONS if key.startswith("gpu-provision.io/"))}
)
_SHARED_LABELS = frozenset({labels.GPU_PRESENT, states.STATE})  # the GPU Operator writes them as well
_OPERAND_LABELS = frozenset(map(labels.deploy_label, OPERANDS))

_NFD = "nfd.node.kubernetes.io/"  # prefix of annotations in which Node Feature Discovery lists what it wrote
_NFD_LABELS, _NFD_ANNOTATIONS = f"{_NFD}feature-labels", f"{_NFD}feature-annotations"
_CERTAIN = frozenset({GpuUse.REQUEST, GpuUse.CLAIM})
_USES = frozenset(GpuUse) - {GpuUse.NONE}


@dataclass(frozen=True, slots=True, kw_only=True)
class StackIdentity:
    """The stack whose labels and cordons a removal looks for on nodes."""

    name: str  # name of the inventory, and value of the node label
    declared: Mapping[str, Mapping[str, str]]  # node -> the labels that the inventory declares for it
    brings_nfd: bool  # whether the stack includes Node Feature Discovery
    is_only_stack: bool  # whether the cluster has no other stack: all stacks share one field manager
    operator: str = ""  # running Pod of the GPU Operator, as `namespace/name`


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRemnants:
    """All that a removal deletes from one node."""

    name: str
    revision: str
    labels: Mapping[str, str]  # the stack's
    discovered: tuple[str, ...] = ()  # label keys of Node Feature Discovery
    annotations: Mapping[str, str]  # the stack's, and those of Node Feature Discovery
    uncordon: bool = False  # whether gpu-provision has cordoned the node
    taints: tuple[Mapping[str, Any], ...] | None = None  # the remaining taints, if the startup taint is removed
    kept: Mapping[str, str]  # kept field (`label nvidia.com/gpu.present`) -> evidence of its other writers

    @property
    def is_clean(self) -> bool:
        """Whether the node has nothing of the stack."""
        return not (self.labels or self.discovered or self.annotations or self.uncordon or self.loses_taint)

    @property
    def loses_taint(self) -> bool:
        """Whether the removal deletes the startup taint, since no later run would."""
        return self.taints is not None

    def patch(self) -> dict[str, Any]:
        """Return the merge patch of the removal, for exactly this version of the node."""
        metadata: dict[str, Any] = {
            "resourceVersion": self.revision,
            "labels": dict.fromkeys((*self.labels, *self.discovered)),
            "annotations": dict.fromkeys(self.annotations),
        }
        spec: dict[str, Any] = {"unschedulable": None} if self.uncordon else {}
        spec |= {"taints": [dict(taint) for taint in self.taints] or None} if self.taints is not None else {}
        return {"metadata": metadata, **({"spec": spec} if spec else {})}


def find_remnants(node: Manifest, stack: StackIdentity) -> NodeRemnants:
    """Find all that a removal deletes from a node, and what it keeps for other writers."""
    metadata = node["metadata"]
    present: Mapping[str, str] = metadata.get("labels") or {}
    notes: Mapping[str, str] = metadata.get("annotations") or {}
    found, kept = _split_labels(node, stack)
    may_be_own = _may_be_own(node, stack)
    cordoned, others = _own_cordon(node) if may_be_own else (False, "")
    kept |= {"cordon": others} if others else {}
    discovered = frozenset(_listed_keys(metadata, _NFD_LABELS, labels.NFD_PREFIX)) if stack.brings_nfd else frozenset()
    taints = tuple(node.get("spec", {}).get("taints") or ())
    left = tuple(
        taint for taint in taints if taint.get("key") != labels.NOT_VALIDATED
    )  # only gpu-provision sets this key
    return NodeRemnants(
        name=metadata["name"],
        revision=metadata["resourceVersion"],
        labels={key: present[key] for key in sorted(found - discovered)},
        discovered=tuple(sorted(discovered & present.keys())),
        annotations={key: notes[key] for key in sorted(_own_annotations(node, stack)) if key in notes},
        uncordon=cordoned,
        taints=left if may_be_own and len(left) < len(taints) else None,
        kept=kept,
    )


def _stack_name(node: Manifest) -> str:
    return str((node["metadata"].get("labels") or {}).get(labels.INVENTORY, ""))


def _may_be_own(node: Manifest, stack: StackIdentity) -> bool:
    """Whether gpu-provision's fields on a node belong to this stack."""
    declared = node["metadata"]["name"] in stack.declared
    return _stack_name(node) == stack.name or (not _stack_name(node) and (declared or stack.is_only_stack))


def _split_labels(node: Manifest, stack: StackIdentity) -> tuple[set[str], dict[str, str]]:
    """Return the label keys to remove, and the kept ones with the evidence of their writers."""
    going: set[str] = set()
    kept: dict[str, str] = {}
    if not _may_be_own(node, stack):
        return going, kept
    declared, marked = stack.declared.get(node["metadata"]["name"], {}), _stack_name(node) == stack.name
    # The MIG manager answers a request in another label, which no other program removes.
    requests_mig = bool(managers_of(node, "metadata", "labels", labels.MIG_CONFIG) & OWN_MANAGERS)
    for key, value in (node["metadata"].get("labels") or {}).items():
        writers, is_shared = managers_of(node, "metadata", "labels", key), marked and key in _SHARED_LABELS
        if is_shared and stack.operator:
            kept[f"label {key}"] = f"Pod {stack.operator} of the GPU Operator"
            continue
        writers -= {labels.OPERATOR} if is_shared else frozenset()  # the GPU Operator does not run
        others, as_declared = writers - OWN_MANAGERS, declared.get(key) == value
        is_only_writer = bool(writers & OWN_MANAGERS) and not others
        is_unowned = not writers and (as_declared or is_shared)
        is_answer = key == labels.MIG_STATE and requests_mig and not stack.operator
        is_own = key in _OWN_LABELS or is_answer or (marked and _is_operand_value(key, value))
        if is_own or is_only_writer or is_unowned:
            going.add(key)
        elif others and (writers & OWN_MANAGERS or as_declared or (marked and key in _SHARED_LABELS | _OPERAND_LABELS)):
            kept[f"label {key}"] = _describe_managers(others)
    return going, kept


def _is_operand_value(key: str, value: str) -> bool:
    """Whether an operand's label has a value of gpu-provision, or a temporary one of the driver manager."""
    if key not in _OPERAND_LABELS:
        return False
    is_on_host = (key, value) == (labels.DEPLOY_DRIVER, labels.PRE_INSTALLED)
    return value == "true" or value.startswith(labels.PAUSED) or is_on_host


def _own_annotations(node: Manifest, stack: StackIdentity) -> Iterator[str]:
    metadata = node["metadata"]
    if stack.brings_nfd:
        yield from _listed_keys(metadata, _NFD_ANNOTATIONS, labels.NFD_PREFIX)
    for key in metadata.get("annotations") or {}:
        writers = managers_of(node, "metadata", "annotations", key)
        lost = _stack_name(node) == stack.name and key in states.ALL_ANNOTATIONS and not writers
        is_own = _may_be_own(node, stack) and (key in _OWN_ANNOTATIONS or (writers and writers <= OWN_MANAGERS) or lost)
        if is_own or (stack.brings_nfd and key.startswith(_NFD)):
            yield key


def _listed_keys(metadata: Mapping[str, Any], annotation: str, prefix: str) -> Iterator[str]:
    """Yield the keys that an annotation of Node Feature Discovery lists, with the prefix that it omits."""
    listed = str((metadata.get("annotations") or {}).get(annotation, ""))
    yield from (name if "/" in name else f"{prefix}{name}" for name in listed.split(",") if name)


def _own_cordon(node: Manifest) -> tuple[bool, str]:
    """Return whether to uncordon a node; for a cordon that another manager has taken over, the evidence."""
    annotations = node["metadata"].get("annotations") or {}
    is_marked = bool({states.CORDONED, labels.CORDONED} & annotations.keys())
    was_there = annotations.get(states.WAS_CORDONED) == "true"
    if not node.get("spec", {}).get("unschedulable") or was_there or not is_marked:
        return False, ""
    others = managers_of(node, "spec", "unschedulable") - OWN_MANAGERS - {annotations.get(states.CORDONED)}
    return not others, _describe_managers(others) if others else ""


def _describe_managers(names: frozenset[str]) -> str:
    return f"field managers: {', '.join(sorted(names))}"


def labelled_nodes(nodes: Iterable[Manifest], stack: str) -> Iterator[str]:
    """Yield the names of the nodes with a stack's label."""
    return (node["metadata"]["name"] for node in nodes if _stack_name(node) == stack)


def gpu_users(
    pods: Iterable[Manifest], nodes: Iterable[str], claims: Iterable[Manifest] | None = ()
) -> dict[str, tuple[Manifest, ...]]:
    """Return the pods that would lose a GPU, by node. With unreadable ``claims`` (None), a pod with claims counts.

    A DaemonSet's pod that only may use GPUs, such as a monitor, does not count: its controller would recreate it.
    """
    known, held = frozenset(nodes), claims_of(claims)
    users: dict[str, tuple[Manifest, ...]] = {}
    for pod in sorted(pods, key=lambda each: (each["metadata"].get("namespace", ""), each["metadata"]["name"])):
        node = pod_view.node_of(pod) if pod["spec"].get("nodeName") else ""
        if node not in known or is_stack_pod(pod):
            continue
        seen = pod_of(pod, claims=held)
        if not seen.is_finished and seen.use in (_CERTAIN if seen.is_daemon else _USES):
            users[node] = (*users.get(node, ()), pod)
    return dict(sorted(users.items()))


def running_operator(pods: Iterable[Manifest]) -> str:
    """Return the running pod of the GPU Operator, as ``namespace/name``; empty if none runs."""
    for pod in pods:
        present = pod["metadata"].get("labels") or {}
        is_named = labels.OPERATOR in {present.get(labels.APP), present.get(labels.COMPONENT_OF_APP)}
        if is_named and not pod_of(pod).is_finished:
            return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
    return ""
