"""The kubelets of all simulated machines: one watch for all pods, one worker for each pod of theirs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from pathlib import Path
from typing import Any

from gpu_provision.sandbox.nodes.faults import Fault, Faults
from gpu_provision.sandbox.nodes.machine import Machine
from gpu_provision.sandbox.nodes.pod import PodWorker
from gpu_provision.sandbox.nodes.runner import Puller
from gpu_provision.sandbox.nodes.world import World

_log = logging.getLogger(__name__)
_REBOOT_AGAIN = 60.0
_LOOK_SECONDS = 0.25  # between looks at the hosts, which are other processes'
Object = dict[str, Any]


class Kubelets:
    """Hands pods to their machines, and faults to both."""

    def __init__(self, world: World) -> None:
        """Follow the pods of ``world``."""
        self._world = world
        self._puller = Puller(world)
        self._workers: dict[str, PodWorker] = {}
        self._faults = Faults()
        self._reboots: dict[tuple[str, Fault], asyncio.Task[None]] = {}
        world.pods.on_change(self._pod_changed)

    def _pod_changed(self, before: Object | None, after: Object | None) -> None:
        if before is not None and (after is None or _uid(before) != _uid(after)):
            worker = self._workers.pop(_uid(before), None)
            if worker is not None:
                worker.kill()
        if after is not None:
            self._take(after)

    def _take(self, pod: Object) -> None:
        machine = self._world.machines.get(pod["spec"].get("nodeName") or "")
        if machine is None:
            return
        worker = self._workers.get(_uid(pod))
        if worker is None:
            worker = self._workers[_uid(pod)] = PodWorker(self._world, machine, pod, self._puller)
            worker.start()
        worker.update(pod)

    def set_faults(self, faults: Faults) -> None:
        """Put faults in force; those that are no longer declared end."""
        if faults == self._faults:
            return
        self._faults = faults
        for machine in self._world.machines.values():
            machine.set_faults(faults)
            self._schedule_reboots(machine)
        for worker in self._workers.values():
            worker.strike()

    def _schedule_reboots(self, machine: Machine) -> None:
        wanted = {(machine.name, f) for f in self._faults if f.kind == "node-reboots" and f.strikes(machine.name)}
        for key in [key for key in self._reboots if key[0] == machine.name and key not in wanted]:
            self._reboots.pop(key).cancel()
            machine.forget_fault(key[1])
        for key in wanted - set(self._reboots):
            self._reboots[key] = asyncio.create_task(self._reboot_as_declared(machine, key[1]))

    async def _reboot_as_declared(self, machine: Machine, fault: Fault) -> None:
        if fault.get("once", default=True):
            if machine.remember_fault(fault):
                await self.reboot(machine)
            return
        while True:
            await self.reboot(machine)
            await self._world.sleep(_REBOOT_AGAIN)

    async def reboot(self, machine: Machine) -> None:
        """Reboot a machine: its pods lose their containers and start again afterwards."""
        self._go_down(machine)
        await self._come_up(machine)

    def _go_down(self, machine: Machine) -> None:
        _log.info("%s reboots", machine.name)
        machine.rebooting = True
        for worker in [worker for worker in self._workers.values() if worker.machine is machine]:
            worker.reboot()
        machine.reboot()

    async def _come_up(self, machine: Machine) -> None:
        """A fault that ends meanwhile cuts it short."""
        try:
            await self._world.sleep(self._world.timings.reboot)
        finally:
            machine.rebooting = False
            machine.wake()

    async def follow_hosts(self) -> None:
        """Reboot machines whose simulated hosts have rebooted, until cancelled."""
        machines = {each.host.directory: each for each in self._world.machines.values() if each.host.directory}
        async with asyncio.TaskGroup() as group:
            while machines:
                await asyncio.sleep(_LOOK_SECONDS)
                for machine in (machines[host] for host in _in_use(machines)):
                    if not machine.rebooting and machine.host.boot_id() not in {"", machine.state.boot_id}:
                        self._go_down(machine)
                        group.create_task(self._come_up(machine))

    def abandon(self) -> None:
        """Stop simulating and leave everything as it is."""
        for worker in self._workers.values():
            worker.abandon()
        for task in self._reboots.values():
            task.cancel()


def _in_use(hosts: Collection[Path]) -> list[Path]:
    """Return those of many hosts that somebody has used."""
    homes = {host.parent for host in hosts}
    return [host for home in homes if home.is_dir() for host in home.iterdir() if host in hosts]


def _uid(pod: Object) -> str:
    return str(pod["metadata"]["uid"])
