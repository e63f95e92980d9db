"""Runs the simulated nodes of a fleet against a cluster."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

from gpu_provision.sandbox.api import Api
from gpu_provision.sandbox.fleet import Fleet
from gpu_provision.sandbox.informer import Informer
from gpu_provision.sandbox.nodes.events import EventRecorder
from gpu_provision.sandbox.nodes.faults import CONFIG_MAP, Faults, faults_of_config_map
from gpu_provision.sandbox.nodes.insistent import InsistentApi
from gpu_provision.sandbox.nodes.kubelet_server import LogSink
from gpu_provision.sandbox.nodes.kubelets import Kubelets
from gpu_provision.sandbox.nodes.machine import Machine
from gpu_provision.sandbox.nodes.registration import Registration, heartbeats
from gpu_provision.sandbox.nodes.world import CONFIG_MAPS, PODS, World

_log = logging.getLogger(__name__)
_AT_ONCE = 16
Object = dict[str, Any]


def _node_of(pod: Object) -> tuple[str, ...]:
    name = pod["spec"].get("nodeName")
    return (name,) if name else ()


def build_world(  # noqa: PLR0913  everything that differs between the embedded and a real API server
    api: Api,
    fleet: Fleet,
    logs: LogSink,
    *,
    home: Path | None = None,
    kubelet_address: str = "",
    kubelet_port: int = 10250,
) -> World:
    """Return the machines of a fleet, ready to run; their state is kept in ``home`` if there is one."""
    pods = Informer(api, PODS)
    pods.index("node", _node_of)
    machines = {spec.name: Machine(spec, index=i, home=home) for i, spec in enumerate(fleet.machines, 1)}
    return World(
        api=InsistentApi(api, pause=fleet.timings.scaled(fleet.timings.retry)),
        timings=fleet.timings,
        logs=logs,
        events=EventRecorder(api, everything=fleet.events == "all"),
        machines=machines,
        pods=pods,
        kubelet_address=kubelet_address,
        kubelet_port=kubelet_port,
    )


async def run_nodes(world: World, fleet: Fleet, *, registered: asyncio.Event | None = None) -> None:
    """Register the nodes and run their pods until cancelled; ``registered`` is set once all nodes are there."""
    kubelets = Kubelets(world)
    faults = Informer(world.api, CONFIG_MAPS, namespace=CONFIG_MAP[0], field_selector=f"metadata.name={CONFIG_MAP[1]}")

    def faults_changed(_: Object | None, config_map: Object | None) -> None:
        declared, findings = faults_of_config_map(config_map)
        for finding in findings:
            _log.warning("%s", finding)
            world.events.warning(config_map or {}, "InvalidFault", str(finding))
        kubelets.set_faults(Faults((*fleet.faults, *declared)))

    try:
        async with asyncio.TaskGroup() as group:
            registrations = await _register(world)
            faults.on_change(faults_changed)
            kubelets.set_faults(Faults(fleet.faults))
            group.create_task(faults.run())
            group.create_task(world.pods.run())
            group.create_task(world.events.run())
            group.create_task(kubelets.follow_hosts())
            group.create_task(heartbeats(registrations, world))
            if registered is not None:
                registered.set()
    finally:
        kubelets.abandon()


async def _register(world: World) -> list[Registration]:
    registrations = [Registration(machine, world) for machine in world.machines.values()]
    gate = asyncio.Semaphore(_AT_ONCE)

    async def register(registration: Registration) -> None:
        async with gate:
            await registration.register()

    await asyncio.gather(*(register(registration) for registration in registrations))
    return registrations
