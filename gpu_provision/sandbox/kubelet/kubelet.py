"""The kubelets of all simulated machines: they register nodes, run bound pods, and apply faults."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from pathlib import Path

from gpu_provision.sandbox.api import CONFIG_MAPS, PODS, Api, Object
from gpu_provision.sandbox.events import EventRecorder
from gpu_provision.sandbox.faults import CONFIG_MAP, NodeFault, NodeFaults, read_config_map
from gpu_provision.sandbox.fleet import Fleet
from gpu_provision.sandbox.informer import Informer
from gpu_provision.sandbox.kubelet.logs import LogSink
from gpu_provision.sandbox.kubelet.machine import Machine
from gpu_provision.sandbox.kubelet.node import Registration, heartbeats
from gpu_provision.sandbox.kubelet.pod import PodWorker
from gpu_provision.sandbox.kubelet.runner import Puller
from gpu_provision.sandbox.kubelet.simulation import KubeletEvents, Simulation

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 0.25  # between looks at the hosts, which are other processes'


class Kubelets:
    """Hands pods to their machines, and faults to both."""

    def __init__(self, simulation: Simulation) -> None:
        """Follow the pods of ``simulation``."""
        self._simulation = simulation
        self._puller = Puller()
        self._workers: dict[str, PodWorker] = {}
        self._faults = NodeFaults()
        self._reboots: dict[tuple[str, NodeFault], asyncio.Task[None]] = {}
        simulation.pods.on_change(self._pod_changed)

    def _pod_changed(self, before: Object | None, after: Object | None) -> None:
        if before is not None and (after is None or _uid(before) != _uid(after)):
            worker = self._workers.pop(_uid(before), None)
            if worker is not None:
                worker.kill()
        if after is not None:
            self._take(after)

    def _take(self, pod: Object) -> None:
        machine = self._simulation.machines.get(pod["spec"].get("nodeName") or "")
        if machine is None:
            return
        worker = self._workers.get(_uid(pod))
        if worker is None:
            worker = self._workers[_uid(pod)] = PodWorker(self._simulation, machine, pod, self._puller)
            worker.start()
        worker.update(pod)

    def set_faults(self, faults: NodeFaults) -> None:
        """Put faults in force; those that are no longer declared end."""
        if faults == self._faults:
            return
        self._faults = faults
        for machine in self._simulation.machines.values():
            machine.set_faults(faults)
            self._schedule_reboots(machine)
        for worker in self._workers.values():
            worker.strike()

    def _schedule_reboots(self, machine: Machine) -> None:
        reboots = (fault for fault in self._faults.all if fault.kind == "node-reboots")
        wanted = {(machine.name, fault) for fault in reboots if fault.applies_to(machine.name)}
        for key in [key for key in self._reboots if key[0] == machine.name and key not in wanted]:
            self._reboots.pop(key).cancel()
            machine.forget_fault(key[1])
        for key in wanted - set(self._reboots):
            self._reboots[key] = asyncio.create_task(self._reboot_once(machine, key[1]))

    async def _reboot_once(self, machine: Machine, fault: NodeFault) -> None:
        if machine.remember_fault(fault):
            await self.reboot(machine)

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
            await self._simulation.sleep(self._simulation.timings.reboot)
        finally:
            machine.rebooting = False
            machine.wake()

    async def follow_hosts(self) -> None:
        """Reboot machines whose simulated hosts have rebooted, until cancelled."""
        machines = {each.host.directory: each for each in self._simulation.machines.values() if each.host.directory}
        async with asyncio.TaskGroup() as group:
            while machines:
                await asyncio.sleep(_LOOK_SECONDS)
                for machine in (machines[host] for host in _used_hosts(machines)):
                    if not machine.rebooting and machine.host.boot_id() not in {"", machine.state.boot_id}:
                        self._go_down(machine)
                        group.create_task(self._come_up(machine))

    def abandon(self) -> None:
        """Stop simulating and leave everything as it is."""
        for worker in self._workers.values():
            worker.abandon()
        for task in self._reboots.values():
            task.cancel()


def _used_hosts(hosts: Collection[Path]) -> list[Path]:
    """Return those of many hosts that have a state."""
    homes = {host.parent for host in hosts}
    return [host for home in homes if home.is_dir() for host in home.iterdir() if host in hosts]


def _uid(pod: Object) -> str:
    return str(pod["metadata"]["uid"])


_AT_ONCE = 16


def _node_of(pod: Object) -> tuple[str, ...]:
    name = pod["spec"].get("nodeName")
    return (name,) if name else ()


def build_simulation(  # noqa: PLR0913  everything that differs between the embedded and a real API server
    api: Api,
    fleet: Fleet,
    write_log: LogSink,
    *,
    home: Path | None = None,
    kubelet_address: str = "",
    kubelet_port: int = 10250,
) -> Simulation:
    """Return the machines of a fleet, ready to run; their state is kept in ``home`` if there is one."""
    pods = Informer(api, PODS)
    pods.index("node", _node_of)
    machines = {spec.name: Machine(spec, index=i, home=home) for i, spec in enumerate(fleet.machines, 1)}
    return Simulation(
        api=api,
        timings=fleet.timings,
        write_log=write_log,
        events=KubeletEvents(EventRecorder(api), everything=fleet.events == "all"),
        machines=machines,
        pods=pods,
        kubelet_address=kubelet_address,
        kubelet_port=kubelet_port,
    )


async def run_nodes(simulation: Simulation, fleet: Fleet, *, registered: asyncio.Event | None = None) -> None:
    """Register the nodes and run their pods until cancelled; ``registered`` is set once all nodes are there."""
    kubelets = Kubelets(simulation)
    faults = Informer(
        simulation.api, CONFIG_MAPS, namespace=CONFIG_MAP[0], field_selector=f"metadata.name={CONFIG_MAP[1]}"
    )

    def faults_changed(_: Object | None, config_map: Object | None) -> None:
        declared, findings = read_config_map(config_map)
        for finding in findings:
            _log.warning("%s", finding)
            simulation.events.warning(config_map or {}, "InvalidFault", str(finding))
        kubelets.set_faults(NodeFaults((*fleet.faults, *declared)))

    try:
        async with asyncio.TaskGroup() as group:
            registrations = await _register(simulation)
            faults.on_change(faults_changed)
            kubelets.set_faults(NodeFaults(fleet.faults))
            group.create_task(faults.run())
            group.create_task(simulation.pods.run())
            group.create_task(simulation.events.run())
            group.create_task(kubelets.follow_hosts())
            group.create_task(heartbeats(registrations, simulation))
            if registered is not None:
                registered.set()
    finally:
        kubelets.abandon()


async def _register(simulation: Simulation) -> list[Registration]:
    registrations = [Registration(machine, simulation) for machine in simulation.machines.values()]
    gate = asyncio.Semaphore(_AT_ONCE)

    async def register(registration: Registration) -> None:
        async with gate:
            await registration.register()

    await asyncio.gather(*(register(registration) for registration in registrations))
    return registrations
