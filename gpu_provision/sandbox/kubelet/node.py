"""The Node object and the Lease of a simulated machine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import CONFLICT, LEASES, NODES, NOT_FOUND, ApiError, Object
from gpu_provision.sandbox.fleet import MachineSpec
from gpu_provision.sandbox.kubelet.machine import Machine
from gpu_provision.sandbox.kubelet.simulation import Simulation

SIMULATED = "gpu-provision.io/simulated"
_CONTROL_PLANES = ("master", "control-plane")
"""Roles whose nodes have a taint of that name; OpenShift's have both roles and the first taint."""

_OS_IMAGES = {
    "ubuntu20.04": "Ubuntu 20.04.6 LTS",
    "ubuntu22.04": "Ubuntu 22.04.5 LTS",
    "ubuntu24.04": "Ubuntu 24.04.1 LTS",
    "ubuntu26.04": "Ubuntu 26.04 LTS",
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

_NOT_READY = ("KubeletNotReady", "container runtime network not ready: cni plugin not initialized")
_TICK = 1.0
_LEASE_NAMESPACE = "kube-node-lease"
_log = logging.getLogger(__name__)


def _os_image(spec: MachineSpec) -> str:
    if spec.release:
        return spec.release.os_image
    return _OS_IMAGES.get(spec.os, f"{spec.os_id.capitalize()} {spec.os_version}")


def node_object(machine: Machine) -> Object:
    """Return the Node that a kubelet registers at its first start."""
    spec = machine.spec
    roles = {f"node-role.kubernetes.io/{role}": "" for role in spec.roles}
    tainted = [role for role in _CONTROL_PLANES if role in spec.roles][:1]
    own = [{"key": f"node-role.kubernetes.io/{role}", "effect": "NoSchedule"} for role in tainted]
    taints = [*own, *map(dict, spec.taints)]
    system = {"node.openshift.io/os_id": spec.os_id} if spec.release else {}
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
                **system,
                **spec.labels,
            },
            "annotations": {SIMULATED: "true", "volumes.kubernetes.io/controller-managed-attach-detach": "true"},
        },
        "spec": {"taints": taints} if taints else {},
    }


def node_conditions(old: Sequence[Mapping[str, Any]], *, ready: bool) -> list[Object]:
    """Return the node's conditions, with the transition times of those that did not change."""
    before, time = {condition["type"]: condition for condition in old}, objects.timestamp()
    words = ("KubeletReady", "kubelet is posting ready status") if ready else _NOT_READY
    states = {**{kind: ("False", *pressure) for kind, pressure in _PRESSURES.items()}, "Ready": (str(ready), *words)}
    conditions = []
    for kind, (status, reason, message) in states.items():
        known = before.get(kind, {})
        since = known.get("lastTransitionTime") if known.get("status") == status else None
        said = {"type": kind, "status": status, "reason": reason, "message": message}
        conditions.append({**said, "lastHeartbeatTime": time, "lastTransitionTime": since or time})
    return conditions


class Registration:
    """The Node object and the Lease of one machine."""

    def __init__(self, machine: Machine, simulation: Simulation) -> None:
        """Nothing is written before ``register``."""
        self._machine, self._simulation = machine, simulation
        self._reported: Object = {}
        self._conditions: list[Object] = []
        self._task: asyncio.Task[None] | None = None
        self._uid = ""

    async def register(self) -> None:
        """Create the Node, or take over the one that is there, and report its status from now on."""
        body = node_object(self._machine)
        try:
            # With its status, as kubelets do: without one it would lose its not-ready taint for a moment.
            made = await self._simulation.api.create(NODES, {**body, **self._body(self._status())})
        except ApiError as refusal:
            if refusal.code != CONFLICT:
                raise
            patch = {"metadata": {"labels": body["metadata"]["labels"]}}
            made = await self._simulation.api.patch(NODES, self._machine.name, patch)
        self._uid = made["metadata"].get("uid", "")
        self._conditions = list((made.get("status") or {}).get("conditions") or ())
        if self._machine.state.resource in ((made.get("status") or {}).get("capacity") or {}):
            # A kubelet that restarts knows the resource, but no device is healthy until the plugin is back.
            self._machine.state.devices = self._machine.state.devices or 0
        await self.renew_lease()
        await self._write()
        self._machine.on_change(self._on_change)

    def _on_change(self) -> None:
        idle = self._task is None or self._task.done()
        if idle and self._status() != self._reported:
            self._task = asyncio.create_task(self._write_all())

    async def _write_all(self) -> None:
        try:
            while self._status() != self._reported:
                await self._write()
        except ApiError as refusal:
            if refusal.code != NOT_FOUND:
                _log.warning("status of node %s: %s", self._machine.name, refusal)

    def _status(self) -> Object:
        """Return the status without what time alone changes; a resource that no plugin ever registered is not there."""
        machine, simulation = self._machine, self._simulation
        spec, state = machine.spec, machine.state
        base = {
            "cpu": str(spec.cpus),
            "ephemeral-storage": "512Gi",
            "hugepages-2Mi": "0",
            "memory": spec.memory,
            "pods": str(spec.pods),
        }
        plugged, former = state.devices is not None, dict.fromkeys(state.former, "0")
        addresses = [{"type": "InternalIP", "address": simulation.kubelet_address or machine.address}]
        if not simulation.kubelet_address:  # with a kubelet endpoint elsewhere, logs are to find that one alone
            addresses.append({"type": "Hostname", "address": machine.name})
        return {
            "ready": not (machine.rebooting or machine.faults.find("node-not-ready", machine.name)),
            "status": {
                "capacity": {**base, **former, **({state.resource: str(state.registered)} if plugged else {})},
                "allocatable": {**base, **former, **({state.resource: str(state.devices)} if plugged else {})},
                "nodeInfo": {
                    "architecture": spec.architecture,
                    "bootID": state.boot_id,
                    "containerRuntimeVersion": spec.runtime,
                    "kernelVersion": spec.kernel,
                    "kubeProxyVersion": spec.kubelet,
                    "kubeletVersion": spec.kubelet,
                    "machineID": state.machine_id,
                    "operatingSystem": "linux",
                    "osImage": _os_image(spec),
                    "systemUUID": state.machine_id,
                },
                "addresses": addresses,
                "daemonEndpoints": {"kubeletEndpoint": {"Port": simulation.kubelet_port}},
                "images": [],
            },
        }

    async def _write(self) -> None:
        shown = self._status()
        await self._simulation.api.patch(NODES, self._machine.name, self._body(shown), subresource="status")
        self._reported = shown

    def _body(self, shown: Object) -> Object:
        self._conditions = node_conditions(self._conditions, ready=shown["ready"])
        return {"status": {**shown["status"], "conditions": self._conditions}}

    async def renew_lease(self) -> None:
        """Renew the lease, unless the machine is away; a Node that was registered again gets status and lease."""
        if self._machine.rebooting:
            return
        renewed = {"renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")}
        try:
            await self._simulation.api.patch(LEASES, self._machine.name, {"spec": renewed}, _LEASE_NAMESPACE)
        except ApiError as refusal:
            if refusal.code != NOT_FOUND:
                raise
            await self._begin_lease(renewed)

    async def _begin_lease(self, renewed: Object) -> None:
        """Create the lease, which goes with its Node: without one, the Node may be another one than before."""
        api, name = self._simulation.api, self._machine.name
        node = await self._simulation.api.find(NODES, name)
        if node is None:
            return
        uid = node["metadata"].get("uid", "")
        if uid != self._uid:
            self._conditions = list((node.get("status") or {}).get("conditions") or ())
            await self._write()
            self._uid = uid
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": name,
                "namespace": _LEASE_NAMESPACE,
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}],
            },
            "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, **renewed},
        }
        await api.create(LEASES, lease, _LEASE_NAMESPACE)


async def heartbeats(registrations: list[Registration], simulation: Simulation) -> None:
    """Renew every node's lease in time, until cancelled; those that are due at once are renewed at once."""
    period, clock = simulation.timings.lease, asyncio.get_running_loop().time
    start = clock()
    due = {one: start + period * n / len(registrations) for n, one in enumerate(registrations)}
    while True:
        await asyncio.sleep(min(_TICK, period))
        now = clock()
        late = [registration for registration, time in due.items() if time <= now]
        due |= dict.fromkeys(late, now + period)
        for outcome in await asyncio.gather(*(one.renew_lease() for one in late), return_exceptions=True):
            if isinstance(outcome, BaseException):
                _log.warning("heartbeat: %s", outcome)
