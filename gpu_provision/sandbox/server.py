"""``python -m gpu_provision.sandbox.server``: the process of a sandbox, in the foreground or detached."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import IO

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import NODES
from gpu_provision.sandbox.apiserver.server import Server, serve
from gpu_provision.sandbox.controllers import run_controllers
from gpu_provision.sandbox.errors import SandboxError
from gpu_provision.sandbox.fleet import Fleet, fleet_digest
from gpu_provision.sandbox.fleet_file import load_fleet
from gpu_provision.sandbox.kubelet.kubelet import build_simulation, run_nodes
from gpu_provision.sandbox.kubelet.logs import LogKey
from gpu_provision.sandbox.kubelet.node import SIMULATED
from gpu_provision.sandbox.openshift.profile import build_operators, build_profile, wait_until_ready
from gpu_provision.sandbox.state import (
    LOCK_FILE,
    LOG_FILE,
    READY_FILE,
    Sandbox,
    context_name,
    sandbox_directory,
    source_digest,
    try_lock,
    wait_until,
    write_sandbox,
)

_log = logging.getLogger(__name__)
_ALREADY_RUNNING = 3
_MAX_LOG_BYTES = 5_000_000
_LOOKERS_SECONDS = 0.5  # a process that asks whether a sandbox runs holds the lock for a moment


async def run_sandbox(directory: Path, fleet: Fleet, *, port: int = 0) -> None:
    """Serve until SIGTERM or SIGINT; the ready file is there while everything runs."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    profile = build_profile(fleet.openshift) if fleet.openshift else None
    server = await serve(directory, port=port, context=context_name(fleet.name), profile=profile)
    try:
        await _simulate(directory, fleet, server, ended)
    finally:
        (directory / READY_FILE).unlink(missing_ok=True)
        await server.close()


async def _simulate(directory: Path, fleet: Fleet, server: Server, ended: asyncio.Event) -> None:
    api = server.api.with_manager("kubelet")

    def write_log(of: LogKey, text: str) -> None:
        server.api.append_log(of.namespace, of.pod, of.uid, of.container, text, restart=of.restart)

    simulation = build_simulation(api, fleet, write_log, home=directory / "machines")
    names = {machine.name for machine in fleet.machines}
    for node in (await server.api.list(NODES))[0]:  # a machine that is not simulated any more is no node
        if objects.name(node) not in names and SIMULATED in objects.annotations_of(node):
            await server.api.delete(NODES, objects.name(node))
    registered = asyncio.Event()
    nodes = asyncio.create_task(run_nodes(simulation, fleet, registered=registered))
    await _wait_for_first(nodes, registered.wait())
    operators = partial(build_operators, timings=fleet.timings) if fleet.openshift else lambda _: ()
    running = run_controllers(server.api, resources=server.api.resources, operators=operators)
    controllers = asyncio.create_task(running)
    if fleet.openshift:
        await wait_until_ready(server.api, fleet)
    write_sandbox(
        Sandbox(
            name=fleet.name,
            directory=directory,
            kubeconfig=server.kubeconfig,
            context=server.context,
            url=server.url,
            pid=os.getpid(),
            fleet=fleet_digest(fleet),
            code=source_digest(),
        )
    )
    _log.info("ready: %s", server.url)
    await _wait_for_first(nodes, ended.wait(), controllers)
    _log.info("ending")
    for task in (controllers, nodes):
        task.cancel()
    await asyncio.gather(controllers, nodes, return_exceptions=True)


async def _wait_for_first(*awaited: object) -> None:
    """Return once the first of several is done; an exception of it is raised."""
    tasks = [asyncio.ensure_future(one) for one in awaited]  # type: ignore[call-overload]
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m gpu_provision.sandbox.server", description=__doc__)
    parser.add_argument("--fleet", default="default", help="a fleet file, or the name of a built-in fleet")
    parser.add_argument("--speed", type=float, help="divide all durations of the simulation by this")
    parser.add_argument("--directory", type=Path, help="where the sandbox keeps its state")
    parser.add_argument("--port", type=int, default=0, help="port of the API server; 0 for the one of last time")
    parser.add_argument("--detach", action="store_true", help="go on in the background; output goes to the log file")
    return parser.parse_args(argv)


def _lock(directory: Path) -> IO[str] | None:
    """Return the lock that a running sandbox holds for as long as it lives; None if another one holds it."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = (directory / LOCK_FILE).open("a+", encoding="utf-8")
    if wait_until(lambda: try_lock(lock.fileno()), _LOOKERS_SECONDS):
        lock.truncate(0)
        return lock
    lock.close()
    return None


def _detach(directory: Path) -> None:
    """Go on in a process of its own, without a terminal; the lock goes with it."""
    log = directory / LOG_FILE
    if log.exists() and log.stat().st_size > _MAX_LOG_BYTES:
        log.replace(log.with_suffix(".log.1"))
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)


def main(argv: list[str]) -> int:
    """Run a sandbox until it is asked to end."""
    arguments = _arguments(argv)
    try:
        fleet = load_fleet(arguments.fleet, speed=arguments.speed)
    except SandboxError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    directory = (arguments.directory or sandbox_directory(fleet.name)).resolve()
    lock = _lock(directory)
    if lock is None:
        sys.stderr.write(f"a sandbox is already running in {directory}\n")
        return _ALREADY_RUNNING
    gc.set_threshold(50_000)  # copies of objects are no garbage: collection takes 5% of a server's work
    with lock:
        (directory / READY_FILE).unlink(missing_ok=True)
        if arguments.detach:
            _detach(directory)
        else:
            sys.stderr.write(f"export KUBECONFIG={directory / 'kubeconfig'}\n")
        lock.write(str(os.getpid()))
        lock.flush()
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        try:
            asyncio.run(run_sandbox(directory, fleet, port=arguments.port))
        except Exception:
            # Logged while the lock is held: a process that waits for the sandbox's end reads the log then.
            logging.getLogger("gpu_provision.sandbox").exception("the sandbox ended")
            return 1
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
