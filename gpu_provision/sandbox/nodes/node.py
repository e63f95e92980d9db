"""The Node object of a simulated machine, and its parts (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpu_provision.sandbox.fleet import MachineSpec
from gpu_provision.sandbox.nodes.machine import Machine
from gpu_provision.sandbox.nodes.status import now

Object = dict[str, Any]

SIMULATED = "gpu-provision.io/simulated"
GPU_RESOURCE = "nvidia.com/gpu"
_CONTROL_PLANE = {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}
_OS_IMAGES = {
    "ubuntu20.04": "Ubuntu 20.04.6 LTS",
    "ubuntu22.04": "Ubuntu 22.04.5 LTS",
    "ubuntu24.04": "Ubuntu 24.04.1 LTS",
    "debian12": "Debian GNU/Linux 12 (bookworm)",
    "rhel8.10": "Red Hat Enterprise Linux 8.10 (Ootpa)",
    "rhel9.4": "Red Hat Enterprise Linux 9.4 (Plow)",
    "rocky9.4": "Rocky Linux 9.4 (Blue Onyx)",
}
_PRESSURES = {
    "MemoryPressure": ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    "DiskPressure": ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    "PIDPressure": ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
}


def node_object(machine: Machine) -> Object:
    """Return the Node that a kubelet registers at its first start."""
    spec = machine.spec
    roles = {f"node-role.kubernetes.io/{role}": "" for role in spec.roles}
    taints = [*([_CONTROL_PLANE] if "control-plane" in spec.roles else []), *map(dict, spec.taints)]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": spec.name,
            "labels": {
                "beta.kubernetes.io/arch": spec.architecture,
                "beta.kubernetes.io/os": "linux",
                "kubernetes.io/arch": spec.architecture,
                "kubernetes.io/hostname": spec.name,
                "kubernetes.io/os": "linux",
                **roles,
                **spec.labels,
            },
            "annotations": {
                SIMULATED: "true",
                "volumes.kubernetes.io/controller-managed-attach-detach": "true",
            },
        },
        "spec": {"taints": taints} if taints else {},
    }


def node_info(machine: Machine) -> Object:
    """Return ``status.nodeInfo``."""
    spec = machine.spec
    return {
        "architecture": spec.architecture,
        "bootID": machine.state.boot_id,
        "containerRuntimeVersion": spec.runtime,
        "kernelVersion": spec.kernel,
        "kubeProxyVersion": spec.kubelet,
        "kubeletVersion": spec.kubelet,
        "machineID": machine.state.machine_id,
        "operatingSystem": "linux",
        "osImage": _OS_IMAGES.get(spec.os, f"{spec.os_id.capitalize()} {spec.os_version}"),
        "systemUUID": machine.state.machine_id,
    }


def resources(machine: Machine) -> tuple[Object, Object]:
    """Return capacity and allocatable; a resource that no plugin ever registered is not there."""
    spec, state = machine.spec, machine.state
    base = {
        "cpu": str(spec.cpus),
        "ephemeral-storage": "512Gi",
        "hugepages-2Mi": "0",
        "memory": spec.memory,
        "pods": str(spec.pods),
    }
    if state.devices is None:
        return base, dict(base)
    return {**base, GPU_RESOURCE: str(state.registered)}, {**base, GPU_RESOURCE: str(state.devices)}


def conditions(old: Sequence[Mapping[str, Any]], *, ready: bool) -> list[Object]:
    """Return the node's conditions, with the transition times of those that did not change."""
    before = {condition["type"]: condition for condition in old}
    wanted = {kind: ("False", *words) for kind, words in _PRESSURES.items()}
    wanted["Ready"] = (
        ("True", "KubeletReady", "kubelet is posting ready status")
        if ready
        else ("False", "KubeletNotReady", "container runtime network not ready: cni plugin not initialized")
    )
    return [_condition(kind, *words, before.get(kind, {})) for kind, words in wanted.items()]


def _condition(kind: str, status: str, reason: str, message: str, old: Mapping[str, Any]) -> Object:
    time = now()
    since = old.get("lastTransitionTime") if old.get("status") == status else None
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": time,
        "lastTransitionTime": since or time,
    }


def addresses(machine: Machine, *, kubelet_address: str) -> list[Object]:
    """Return the node's addresses; with a kubelet endpoint elsewhere, that one alone, so that logs find it."""
    if kubelet_address:
        return [{"type": "InternalIP", "address": kubelet_address}]
    return [{"type": "InternalIP", "address": machine.address}, {"type": "Hostname", "address": machine.name}]


def lease(spec: MachineSpec, owner_uid: str) -> Object:
    """Return the Lease of a node, without its times."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": spec.name,
            "namespace": "kube-node-lease",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": spec.name, "uid": owner_uid}],
        },
        "spec": {"holderIdentity": spec.name, "leaseDurationSeconds": 40},
    }
