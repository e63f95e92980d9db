"""What a kubelet checks before it takes a pod."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_provision.sandbox.informer import Informer
from gpu_provision.sandbox.nodes.machine import Machine
from gpu_provision.sandbox.nodes.node import GPU_RESOURCE

_ENDED = {"Succeeded", "Failed"}


def gpus_asked(container: Mapping[str, Any]) -> int:
    """Return how many GPUs a container's limits ask for."""
    return int(((container.get("resources") or {}).get("limits") or {}).get(GPU_RESOURCE, 0))


def refusal(pod: Mapping[str, Any], machine: Machine, pods: Informer) -> str:
    """Return ``Reason: message`` if the machine does not take the pod; empty if it does, with its devices granted."""
    others = sum(
        1
        for other in pods.by("node", machine.name)
        if (other.get("status") or {}).get("phase") not in _ENDED and other["metadata"]["uid"] != pod["metadata"]["uid"]
    )
    if others >= machine.spec.pods:
        return (
            f"OutOfpods: Node didn't have enough resource: pods, requested: 1, used: {others}, "
            f"capacity: {machine.spec.pods}"
        )
    return _grant(pod, machine)


def _grant(pod: Mapping[str, Any], machine: Machine) -> str:
    if machine.state.devices is None:
        return ""  # no plugin ever registered: a kubelet does not know the resource and ignores the request
    spec = pod["spec"]
    for container in (*(spec.get("initContainers") or ()), *spec["containers"]):
        count = gpus_asked(container)
        if count and not machine.grant(f"{pod['metadata']['uid']}/{container['name']}", count):
            machine.release(pod["metadata"]["uid"])
            held = sum(map(len, machine.state.granted.values()))
            return (
                f"UnexpectedAdmissionError: Allocate failed due to requested number of devices unavailable for "
                f"{GPU_RESOURCE}. Requested: {count}, Available: {(machine.state.devices or 0) - held}, "
                "which is unexpected"
            )
    return ""
