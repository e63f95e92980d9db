"""Registers a machine as a Node, keeps its status true and its heartbeat going."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any

from gpu_provision.sandbox.api import ApiError
from gpu_provision.sandbox.nodes import node as nodes
from gpu_provision.sandbox.nodes.machine import Machine
from gpu_provision.sandbox.nodes.world import CONFLICT, LEASES, NODES, NOT_FOUND, World

_log = logging.getLogger(__name__)
_TICK = 1.0
_LEASE_NAMESPACE = "kube-node-lease"
Object = dict[str, Any]


class Registration:
    """The Node object and the Lease of one machine."""

    def __init__(self, machine: Machine, world: World) -> None:
        """Nothing is written before ``register``."""
        self._machine, self._world = machine, world
        self._shown: Object = {}
        self._conditions: list[Object] = []
        self._task: asyncio.Task[None] | None = None
        self._uid = ""

    async def register(self) -> None:
        """Create the Node, or take over the one that is there, and report its status from now on."""
        body = nodes.node_object(self._machine)
        try:
            # With its status, as kubelets do: without one it would lose its not-ready taint for a moment.
            made = await self._world.api.create(NODES, {**body, **self._body(self._status())})
        except ApiError as refusal:
            if refusal.code != CONFLICT:
                raise
            patch = {"metadata": {"labels": body["metadata"]["labels"]}}
            made = await self._world.api.patch(NODES, self._machine.name, patch)
        self._uid = made["metadata"].get("uid", "")
        self._conditions = list((made.get("status") or {}).get("conditions") or ())
        self._recall_devices(made)
        await self.beat()
        await self._write()
        self._machine.on_change(self._changed)

    def _recall_devices(self, node: Object) -> None:
        """A kubelet that restarts knows the resource, but no device is healthy until the plugin is back."""
        if nodes.GPU_RESOURCE in ((node.get("status") or {}).get("capacity") or {}):
            self._machine.state.devices = self._machine.state.devices or 0

    def _changed(self) -> None:
        idle = self._task is None or self._task.done()
        if idle and self._status() != self._shown:
            self._task = asyncio.create_task(self._write_all())

    async def _write_all(self) -> None:
        try:
            while self._status() != self._shown:
                await self._write()
        except ApiError as refusal:
            if refusal.code != NOT_FOUND:
                _log.warning("status of node %s: %s", self._machine.name, refusal)

    @property
    def ready(self) -> bool:
        """Whether the node reports itself as ready."""
        away = self._machine.rebooting or self._machine.faults.of("node-not-ready", self._machine.name)
        return not away

    def _status(self) -> Object:
        """Return the status without what time alone changes."""
        machine, world = self._machine, self._world
        capacity, allocatable = nodes.resources(machine)
        return {
            "ready": self.ready,
            "status": {
                "capacity": capacity,
                "allocatable": allocatable,
                "nodeInfo": nodes.node_info(machine),
                "addresses": nodes.addresses(machine, kubelet_address=world.kubelet_address),
                "daemonEndpoints": {"kubeletEndpoint": {"Port": world.kubelet_port}},
                "images": [],
            },
        }

    async def _write(self) -> None:
        shown = self._status()
        await self._world.api.patch(NODES, self._machine.name, self._body(shown), subresource="status")
        self._shown = shown

    def _body(self, shown: Object) -> Object:
        self._conditions = nodes.conditions(self._conditions, ready=shown["ready"])
        return {"status": {**shown["status"], "conditions": self._conditions}}

    async def beat(self) -> None:
        """Renew the lease, unless the machine is away."""
        if self._machine.rebooting:
            return
        body = nodes.lease(self._machine.spec, self._uid)
        body["spec"]["renewTime"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        patch = {"spec": {"renewTime": body["spec"]["renewTime"]}}
        api = self._world.api
        try:
            await api.patch(LEASES, self._machine.name, patch, _LEASE_NAMESPACE)
        except ApiError as refusal:
            if refusal.code != NOT_FOUND:
                raise
            await api.create(LEASES, body, _LEASE_NAMESPACE)


async def heartbeats(registrations: list[Registration], world: World) -> None:
    """Renew every node's lease in time, until cancelled; those that are due at once are renewed at once."""
    period, clock = world.timings.lease, asyncio.get_running_loop().time
    start = clock()
    due = {one: start + period * n / len(registrations) for n, one in enumerate(registrations)}
    while True:
        await asyncio.sleep(min(_TICK, period))
        now = clock()
        late = [registration for registration, time in due.items() if time <= now]
        due |= dict.fromkeys(late, now + period)
        for outcome in await asyncio.gather(*(one.beat() for one in late), return_exceptions=True):
            if isinstance(outcome, BaseException):
                _log.warning("heartbeat: %s", outcome)
