"""Binding a pod to a node."""

from __future__ import annotations

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.objects import now
from gpu_provision.sandbox.apiserver.resources import ResourceInfo
from gpu_provision.sandbox.apiserver.status import conflict


def bound(pod: Object, node: str, info: ResourceInfo) -> Object:
    """Return the pod as bound to ``node``. Raises StatusError 409 if it is bound or being deleted."""
    name, current = pod["metadata"]["name"], pod["spec"].get("nodeName")
    if current:
        raise conflict(info, name, f'pod {name} is already assigned to node "{current}"')
    if pod["metadata"].get("deletionTimestamp"):
        raise conflict(info, name, f"pod {name} is being deleted, cannot be assigned to a host")
    status = pod.get("status") or {}
    others = [row for row in status.get("conditions") or () if row.get("type") != "PodScheduled"]
    scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": now()}
    return {
        **pod,
        "spec": {**pod["spec"], "nodeName": node},
        "status": {**status, "conditions": [*others, scheduled]},
    }
