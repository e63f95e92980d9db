"""What of a stack is in a cluster, as one reading found it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gpu_provision.adopt.discovery import OPERATOR
from gpu_provision.components import labels, validator
from gpu_provision.diagnostics import pods as pod_view
from gpu_provision.model.cluster import Manifest, ObjectRef
from gpu_provision.rollout.observe import claims_of, is_ours, pod_of
from gpu_provision.rollout.snapshot import GpuUse, Pod


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """One reading. All objects are live ones, by reference.

    Attributes:
        cluster: The cluster as people name it: its context and version.
        members: What carries the stack's membership, of every kind that the tool ever applies.
        records: The stack's own objects: its ConfigMap, validations on record, history.
        lease: Its lock; empty if there is none.
        traces: What its components made while they ran: NodeFeatures, pods of the validator, leases.
        pods: The stack's own pods.
        others: Pods that are neither the stack's nor traces of it.
        claims: ResourceClaims; None if pods have some, and they cannot be read.
        nodes: All nodes.
        stacks: Names of the other stacks of this tool in the cluster.
        strangers: Namespace or CustomResourceDefinition of ours -> what others have in it, in words.
    """

    cluster: str
    members: Mapping[ObjectRef, Manifest] = field(default_factory=dict)
    records: Mapping[ObjectRef, Manifest] = field(default_factory=dict)
    lease: Mapping[ObjectRef, Manifest] = field(default_factory=dict)
    traces: Mapping[ObjectRef, Manifest] = field(default_factory=dict)
    pods: Mapping[ObjectRef, Manifest] = field(default_factory=dict)
    others: tuple[Manifest, ...] = ()
    claims: tuple[Manifest, ...] | None = ()
    nodes: tuple[Manifest, ...] = ()
    stacks: frozenset[str] = frozenset()
    strangers: Mapping[ObjectRef, tuple[str, ...]] = field(default_factory=dict)


_CERTAIN = frozenset({GpuUse.REQUEST, GpuUse.CLAIM})


def users(
    pods: Iterable[Manifest], nodes: Iterable[str], claims: Iterable[Manifest] | None = ()
) -> dict[str, tuple[Manifest, ...]]:
    """Return the pods that would lose a GPU, by node, of those nodes that have any.

    A DaemonSet's pod that merely may use GPUs, such as a monitor, is none: it would be back at once.

    Args:
        claims: ResourceClaims; None if nobody could look at them: a pod that has any then counts.
    """
    known, held = frozenset(nodes), claims_of(claims)
    found: dict[str, tuple[Manifest, ...]] = {}
    for pod in sorted(pods, key=lambda each: (each["metadata"].get("namespace", ""), each["metadata"]["name"])):
        node = pod_view.node_of(pod) if pod["spec"].get("nodeName") else ""
        if node in known and not is_ours(pod) and _loses(pod_of(pod, claims=held)):
            found[node] = (*found.get(node, ()), pod)
    return dict(sorted(found.items()))


def _loses(pod: Pod) -> bool:
    return not pod.is_over and pod.use is not GpuUse.NONE and (not pod.is_daemon or pod.use in _CERTAIN)


def marked(nodes: Iterable[Manifest], stack: str) -> Iterator[str]:
    """Yield the names of the nodes that carry a stack's mark."""
    for node in nodes:
        if (node["metadata"].get("labels") or {}).get(labels.INVENTORY) == stack:
            yield node["metadata"]["name"]


def is_generated(pod: Manifest, home: str) -> bool:
    """Whether a pod is one that the operator validator makes and does not remove."""
    return pod["metadata"].get("namespace") == home and validator.has_made(pod)


def operator_of(pods: Iterable[Manifest]) -> str:
    """Return the pod of the GPU Operator among others, as ``namespace/name``; empty if it does not run."""
    metadata = next((pod["metadata"] for pod in pods if _is_operator(pod)), None)
    return f"{metadata['namespace']}/{metadata['name']}" if metadata else ""


def _is_operator(pod: Manifest) -> bool:
    said = pod["metadata"].get("labels") or {}
    is_named = OPERATOR in {said.get(labels.APP), said.get(labels.COMPONENT_OF_APP)}
    return is_named and not pod_of(pod).is_over
