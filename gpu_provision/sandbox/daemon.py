"""The process that is the sandbox: API server, controllers and simulated nodes on one event loop."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from pathlib import Path

from gpu_provision import files
from gpu_provision.sandbox.apiserver.server import Server, serve
from gpu_provision.sandbox.controllers import run_controllers
from gpu_provision.sandbox.fleet import Fleet, fleet_digest
from gpu_provision.sandbox.nodes.kubelet_server import StoreLogs
from gpu_provision.sandbox.nodes.node import SIMULATED
from gpu_provision.sandbox.nodes.simulation import build_world, run_nodes
from gpu_provision.sandbox.nodes.world import NODES
from gpu_provision.sandbox.process import READY_FILE, context_name, source_digest

_log = logging.getLogger(__name__)


async def run_sandbox(directory: Path, fleet: Fleet, *, port: int = 0) -> None:
    """Serve until SIGTERM or SIGINT; the ready file is there while everything runs."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    server = await serve(directory, port=port, context=context_name(fleet.name))
    try:
        await _simulate(directory, fleet, server, ended)
    finally:
        (directory / READY_FILE).unlink(missing_ok=True)
        await server.close()


async def _simulate(directory: Path, fleet: Fleet, server: Server, ended: asyncio.Event) -> None:
    api = server.api.as_manager("kubelet")
    world = build_world(api, fleet, StoreLogs(server.api.append_log), home=directory / "machines")
    await _remove_former_nodes(server, fleet)
    registered = asyncio.Event()
    nodes = asyncio.create_task(run_nodes(world, fleet, registered=registered))
    await _first(nodes, registered.wait())
    controllers = asyncio.create_task(run_controllers(server.api, resources=server.api.resources))
    _write_ready(directory, fleet, server)
    _log.info("ready: %s", server.url)
    await _first(nodes, ended.wait(), controllers)
    _log.info("ending")
    for task in (controllers, nodes):
        task.cancel()
    await asyncio.gather(controllers, nodes, return_exceptions=True)


async def _first(*awaited: object) -> None:
    """Return once the first of several is done; an exception of it is raised."""
    tasks = [asyncio.ensure_future(one) for one in awaited]  # type: ignore[call-overload]
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


async def _remove_former_nodes(server: Server, fleet: Fleet) -> None:
    """Remove the nodes of an earlier fleet: a machine that is not simulated any more is no node."""
    names = {machine.name for machine in fleet.machines}
    for node in (await server.api.list(NODES))[0]:
        metadata = node["metadata"]
        if metadata["name"] not in names and SIMULATED in (metadata.get("annotations") or {}):
            await server.api.delete(NODES, metadata["name"])


def _write_ready(directory: Path, fleet: Fleet, server: Server) -> None:
    ready = {
        "name": fleet.name,
        "pid": os.getpid(),
        "url": server.url,
        "kubeconfig": str(server.kubeconfig),
        "context": server.context,
        "fleet": fleet_digest(fleet),
        "code": source_digest(),
    }
    files.put(directory / READY_FILE, json.dumps(ready, indent=1))
