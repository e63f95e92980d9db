"""DCGM and its exporter: they need a GPU to start and serve until they are stopped."""

from __future__ import annotations

from gpu_provision.sandbox.nodes.behaviours.behaviour import Behaviour
from gpu_provision.sandbox.nodes.container import Container


async def _dcgm(container: Container) -> int:
    if not container.visible_gpus:
        container.log("Error: Unable to start host engine: libnvidia-ml.so.1 was not found")
        return 1
    container.hold_gpu()
    container.log("Started host engine version 4 using port number: 5555")
    return await container.for_ever()


async def _exporter(container: Container) -> int:
    container.log("Starting dcgm-exporter")
    if not container.visible_gpus and not container.env.get("DCGM_REMOTE_HOSTENGINE_INFO"):
        container.log('level=fatal msg="Error starting nv-hostengine: DCGM initialization error"')
        return 1
    container.hold_gpu()
    listen = container.env.get("DCGM_EXPORTER_LISTEN", ":9400")
    container.log("DCGM successfully initialized!", f"Starting webserver listening on {listen}")
    return await container.for_ever()


DCGM = Behaviour(_dcgm)
DCGM_EXPORTER = Behaviour(_exporter)
