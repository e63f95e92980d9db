"""The kubelets of all simulated machines: they register nodes, run bound pods, and apply faults."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import CONFIG_MAPS, PODS, Api, Object
from gpu_provision.sandbox.events import EventRecorder
from gpu_provision.sandbox.faults import CONFIG_MAP, NodeFault, NodeFaults, read_config_map
from gpu_provision.sandbox.fleet import Fleet
from gpu_provision.sandbox.informer import Informer
from gpu_provision.sandbox.kubelet.logs import LogSink
from gpu_provision.sandbox.kubelet.machine import Machine
from gpu_provision.sandbox.kubelet.machine_config_daemon import MachineConfigDaemons
from gpu_provision.sandbox.kubelet.node import Registration, heartbeats
from gpu_provision.sandbox.kubelet.pod import PodWorker
from gpu_provision.sandbox.kubelet.simulation import Simulation

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 0.25  # between looks at the hosts, which are other processes'
_AT_ONCE = 16


class Kubelets:
    """Hands pods to their machines, and faults to both."""

    def __init__(self, simulation: Simulation) -> None:
        """Follow the pods of ``simulation``."""
        self._simulation = simulation
        self._workers: dict[str, PodWorker] = {}
        self._faults = NodeFaults()
        self._reboots: dict[tuple[str, NodeFault], asyncio.Task[None]] = {}
        simulation.pods.on_change(self._pod_changed)

    def _pod_changed(self, before: Object | None, after: Object | None) -> None:
        if before is not None and (after is None or objects.uid(before) != objects.uid(after)):
            worker = self._workers.pop(objects.uid(before), None)
            if worker is not None:
                worker.kill()
        machine = self._simulation.machines.get(objects.node_of(after)) if after else None
        if after is None or machine is None:
            return
        worker = self._workers.get(objects.uid(after))
        if worker is None:
            worker = self._workers[objects.uid(after)] = PodWorker(self._simulation, machine, after)
            worker.start()
        worker.update(after)

    def set_faults(self, faults: NodeFaults) -> None:
        """Put faults in force; those that are no longer declared end."""
        if faults == self._faults:
            return
        self._faults = faults
        for machine in self._simulation.machines.values():
            machine.set_faults(faults)
            self._schedule_reboots(machine)
        for worker in self._workers.values():
            worker.runner.inject_crash()

    def _schedule_reboots(self, machine: Machine) -> None:
        reboots = (fault for fault in self._faults.all if fault.kind == "node-reboots")
        wanted = {(machine.name, fault) for fault in reboots if fault.applies_to(machine.name)}
        for key in [key for key in self._reboots if key[0] == machine.name and key not in wanted]:
            self._reboots.pop(key).cancel()
            machine.note_fault(key[1], struck=False)
        for key in wanted - set(self._reboots):
            self._reboots[key] = asyncio.create_task(self._reboot_once(machine, key[1]))

    async def _reboot_once(self, machine: Machine, fault: NodeFault) -> None:
        if machine.note_fault(fault, struck=True):
            kernel = str(fault.get("kernel", "")) or machine.spec.kernel
            machine.spec = replace(machine.spec, kernel=kernel)
            await self.reboot(machine)

    async def reboot(self, machine: Machine) -> None:
        """Reboot a machine, and wait until it is back."""
        self._start_reboot(machine)
        await self._finish_reboot(machine)

    def _start_reboot(self, machine: Machine) -> None:
        """Reboot a machine: its pods lose their containers and start again afterwards."""
        _log.info("%s reboots", machine.name)
        machine.rebooting = True
        for worker in self._workers.values():
            if worker.machine is machine:
                worker.reboot()
        machine.reboot()

    async def _finish_reboot(self, machine: Machine) -> None:
        """A fault that ends meanwhile cuts it short."""
        try:
            await self._simulation.sleep(self._simulation.timings.reboot)
        finally:
            machine.rebooting = False
            machine.wake()

    async def follow_hosts(self) -> None:
        """Reboot machines whose simulated hosts have rebooted, until cancelled."""
        machines = {each.host.directory: each for each in self._simulation.machines.values() if each.host.directory}
        homes = {host.parent for host in machines}
        async with asyncio.TaskGroup() as group:
            while machines:
                await asyncio.sleep(_LOOK_SECONDS)
                used = [host for home in homes if home.is_dir() for host in home.iterdir() if host in machines]
                for machine in (machines[host] for host in used):
                    if not machine.rebooting and machine.host.boot_id() not in {"", machine.state.boot_id}:
                        self._start_reboot(machine)
                        group.create_task(self._finish_reboot(machine))

    def abandon(self) -> None:
        """Stop simulating and leave everything as it is."""
        for worker in self._workers.values():
            worker.abandon()
        for task in self._reboots.values():
            task.cancel()


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
    pods.index("node", lambda pod: [node] if (node := objects.node_of(pod)) else [])
    return Simulation(
        api=api,
        timings=fleet.timings,
        write_log=write_log,
        recorder=EventRecorder(api),
        all_events=fleet.events == "all",
        machines={spec.name: Machine(spec, index=i, home=home) for i, spec in enumerate(fleet.machines, 1)},
        pods=pods,
        kubelet_address=kubelet_address,
        kubelet_port=kubelet_port,
    )


async def run_nodes(simulation: Simulation, fleet: Fleet, *, registered: asyncio.Event | None = None) -> None:
    """Register the nodes and run their pods until cancelled; ``registered`` is set once all nodes are there."""
    kubelets = Kubelets(simulation)
    namespace, name = CONFIG_MAP
    faults = Informer(simulation.api, CONFIG_MAPS, namespace=namespace, field_selector=f"metadata.name={name}")

    def faults_changed(_: Object | None, config_map: Object | None) -> None:
        declared, problems = read_config_map(config_map)
        for problem in problems:
            _log.warning("%s", problem)
            simulation.event(config_map or {}, "InvalidFault", str(problem), warning=True)
        kubelets.set_faults(NodeFaults((*fleet.faults, *declared)))

    registrations = [Registration(machine, simulation) for machine in simulation.machines.values()]
    gate = asyncio.Semaphore(_AT_ONCE)

    async def register(registration: Registration) -> None:
        async with gate:
            await registration.register()

    try:
        async with asyncio.TaskGroup() as group:
            await asyncio.gather(*map(register, registrations))
            faults.on_change(faults_changed)
            kubelets.set_faults(NodeFaults(fleet.faults))
            group.create_task(faults.run())
            group.create_task(simulation.pods.run())
            group.create_task(simulation.recorder.run())
            group.create_task(kubelets.follow_hosts())
            group.create_task(heartbeats(registrations, simulation))
            if fleet.openshift:
                group.create_task(MachineConfigDaemons(simulation, kubelets.reboot).run())
            if registered is not None:
                registered.set()
    finally:
        kubelets.abandon()
