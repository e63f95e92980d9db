"""Whose pods use GPUs on a stack's nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpu_provision.adoption.found import OPERATOR
from gpu_provision.components import labels
from gpu_provision.diagnose import pods as pod_view
from gpu_provision.model.cluster import Manifest
from gpu_provision.rollout.snapshot import Pod, Use
from gpu_provision.rollout.workloads import claims_of, is_ours, pod_of

_CERTAIN = frozenset({Use.REQUEST, Use.CLAIM})
_GENERATED = frozenset({"nvidia-cuda-validator", "nvidia-device-plugin-validator"})


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
    return not pod.is_over and pod.use is not Use.NONE and (not pod.is_daemon or pod.use in _CERTAIN)


def marked(nodes: Iterable[Manifest], stack: str) -> Iterator[str]:
    """Yield the names of the nodes that carry a stack's mark."""
    for node in nodes:
        if (node["metadata"].get("labels") or {}).get(labels.INVENTORY) == stack:
            yield node["metadata"]["name"]


def is_generated(pod: Manifest, home: str) -> bool:
    """Whether a pod is one that the operator validator makes and does not remove."""
    app = (pod["metadata"].get("labels") or {}).get(labels.APP)
    return pod["metadata"].get("namespace") == home and app in _GENERATED


def operator_of(pods: Iterable[Manifest]) -> str:
    """Return the pod of the GPU Operator among others, as ``namespace/name``; empty if it does not run."""
    metadata = next((pod["metadata"] for pod in pods if _is_operator(pod)), None)
    return f"{metadata['namespace']}/{metadata['name']}" if metadata else ""


def _is_operator(pod: Manifest) -> bool:
    said = pod["metadata"].get("labels") or {}
    is_named = OPERATOR in {said.get(labels.APP), said.get(labels.COMPONENT_OF_APP)}
    return is_named and not pod_of(pod).is_over
