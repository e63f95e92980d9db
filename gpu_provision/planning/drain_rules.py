"""The pods that a drain evicts, and those that block it.

The rules are those of ``kubectl drain --ignore-daemonsets``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpu_provision.components import labels, validator
from gpu_provision.diagnostics.pods import phase
from gpu_provision.model import codes
from gpu_provision.model.cluster import Manifest
from gpu_provision.model.findings import Finding
from gpu_provision.model.hosts import Drain
from gpu_provision.model.text import join_limited, pluralize

_MIRROR = "kubernetes.io/config.mirror"  # annotation of a mirror pod, which shows a static pod
_TEMPLATE_HASH = "pod-template-hash"
_OVER = frozenset({"Succeeded", "Failed"})
MAX_NAMED = 12


@dataclass(frozen=True, slots=True)
class DrainPlan:
    """The pods of one node in a drain; ``blocking`` has pods that would be lost or lose data, with the reason."""

    evict: tuple[Manifest, ...] = ()
    ending: tuple[Manifest, ...] = ()
    blocking: tuple[tuple[Manifest, str], ...] = ()

    @property
    def leaving(self) -> tuple[Manifest, ...]:
        """The pods that a drain waits for."""
        return (*self.evict, *self.ending)


def plan_drain(pods: Iterable[Manifest], terms: Drain) -> DrainPlan:
    """Sort the pods of one node."""
    concerned = sorted((pod for pod in pods if not _is_ignored(pod)), key=_name)
    ending = tuple(pod for pod in concerned if pod["metadata"].get("deletionTimestamp"))
    others = [(pod, _loss_reason(pod, terms)) for pod in concerned if pod not in ending]
    return DrainPlan(tuple(pod for pod, why in others if not why), ending, tuple(each for each in others if each[1]))


def _is_ignored(pod: Manifest) -> bool:
    """Whether a drain ignores a pod: it has ended, returns to the node at once, or is a helper pod."""
    metadata = pod["metadata"]
    is_helper = labels.HELPER in (metadata.get("labels") or {})
    returns_at_once = _MIRROR in (metadata.get("annotations") or {}) or _controller(pod).get("kind") == "DaemonSet"
    return is_helper or returns_at_once or phase(pod) in _OVER


def _loss_reason(pod: Manifest, terms: Drain) -> str:
    is_managed = (pod["metadata"].get("labels") or {}).get(labels.MANAGED_BY) == "gpu-provision"
    is_own = is_managed or validator.runs_vector_add(pod)
    has_empty_dir = any("emptyDir" in volume for volume in pod.get("spec", {}).get("volumes") or ())
    losses = (
        (not (_controller(pod) or is_own or terms.force), "no controller would bring it back"),
        (not terms.delete_empty_dir and has_empty_dir, "its emptyDir volumes would be lost"),
    )
    return " and ".join(loss for applies, loss in losses if applies)


def _controller(pod: Manifest) -> Mapping[str, Any]:
    owners = pod["metadata"].get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), {})


def describe_pod(pod: Manifest) -> str:
    """Return ``namespace/name (Deployment name)``; the owner of a ReplicaSet is its Deployment."""
    owner = _controller(pod)
    if not owner:
        return _name(pod)
    kind, name = owner.get("kind"), str(owner.get("name"))
    template = (pod["metadata"].get("labels") or {}).get(_TEMPLATE_HASH)
    if kind == "ReplicaSet" and template and name.endswith(f"-{template}"):
        kind, name = "Deployment", name.removesuffix(f"-{template}")
    return f"{_name(pod)} ({kind} {name})"


def _name(pod: Manifest) -> str:
    return f"{pod['metadata'].get('namespace', '')}/{pod['metadata']['name']}"


def data_loss_finding(node: str, left: DrainPlan) -> Finding | None:
    """Return the error about pods that block a drain; None if none does."""
    if not left.blocking:
        return None
    number = f"{len(left.blocking)} pods" if len(left.blocking) > 1 else "a pod"
    return Finding(
        code=codes.PODS_WOULD_BE_LOST,
        what=f"the node is left as it is: {number} on it would be lost for good, or lose data",
        where=node,
        evidence=join_limited((f"{describe_pod(pod)}: {why}" for pod, why in left.blocking), MAX_NAMED),
        fix="move or delete these pods, or allow it: drain: {force: true} for pods without a controller, "
        "{delete_empty_dir: true} for emptyDir volumes",
    )


def not_drained_finding(node: str, seconds: int, left: DrainPlan, refusals: Mapping[str, str]) -> Finding:
    """Return the error about a drain that timed out; ``refusals``: UID of a pod -> why it was not evicted."""
    waiting = [f"{describe_pod(pod)}: {refusals.get(pod['metadata']['uid'], 'still ending')}" for pod in left.leaving]
    return Finding(
        code=codes.NOT_DRAINED,
        what=f"{pluralize(len(waiting), 'pod')} did not leave the node within {seconds} s",
        where=node,
        evidence=join_limited(waiting, MAX_NAMED),
        fix="have more replicas run elsewhere, or give it more time: drain: {timeout_seconds: ...}",
    )
