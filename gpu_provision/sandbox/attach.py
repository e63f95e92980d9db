"""``python -m gpu_provision.sandbox.attach``: attach simulated nodes to any cluster, until interrupted."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import NODES, ApiError
from gpu_provision.sandbox.client import HttpApi, KubeCredentials, load_credentials
from gpu_provision.sandbox.errors import NoAnswerError, SandboxError, SandboxProblem
from gpu_provision.sandbox.fleet import Fleet
from gpu_provision.sandbox.fleet_file import load_fleet
from gpu_provision.sandbox.kubelet.kubelet import build_simulation, run_nodes
from gpu_provision.sandbox.kubelet.logs import ADDRESS, ContainerLogs, LogKey, kubelet_server
from gpu_provision.sandbox.kubelet.node import SIMULATED
from gpu_provision.sandbox.kubelet.simulation import Simulation

_MAX_SHOWN = 5


async def attach(
    credentials: KubeCredentials,
    fleet: Fleet,
    *,
    beside_others: bool = False,
    certificate: tuple[Path, Path] | None = None,
    registered: asyncio.Event | None = None,
) -> None:
    """Register a fleet's nodes with a cluster and run their pods until cancelled.

    Args:
        credentials: Of the cluster.
        fleet: The machines.
        beside_others: Also in a cluster that has nodes of its own, whose pods may then land on simulated nodes.
        certificate: PEM files of a certificate for 127.0.0.1 and of its key, which kubelets show when asked for logs.
        registered: Set once all nodes are there.

    Raises:
        SandboxError: The cluster has nodes of its own (GP720).
        NoAnswerError: It does not answer (GP721).
    """
    async with HttpApi(credentials) as api, asyncio.TaskGroup() as group:
        await _check(api, credentials, beside_others=beside_others)
        api.pause = fleet.timings.scale(fleet.timings.retry)  # from here on, nodes outlive an API server that is away
        async with _open_simulation(api, fleet, certificate, group) as simulation:
            await run_nodes(simulation, fleet, registered=registered)


async def _check(api: HttpApi, credentials: KubeCredentials, *, beside_others: bool) -> None:
    try:
        nodes, _ = await api.list(NODES)
    except (OSError, ApiError) as error:
        what = "the cluster does not answer, or refuses"
        problem = SandboxProblem(code="GP721", what=what, where=credentials.server, evidence=str(error))
        raise NoAnswerError(problem) from error
    own = [objects.name(node) for node in nodes if SIMULATED not in objects.annotations_of(node)]
    if own and not beside_others:
        shown = ", ".join(own[:_MAX_SHOWN]) + (" ..." if len(own) > _MAX_SHOWN else "")
        what = f"context {credentials.context} has {len(own)} nodes that are not simulated; nothing was attached"
        fix = "use a cluster of your own for this, or say --yes if pods may land on simulated nodes"
        raise SandboxError(SandboxProblem(code="GP720", what=what, where=credentials.server, evidence=shown, fix=fix))


@contextlib.asynccontextmanager
async def _open_simulation(
    api: HttpApi, fleet: Fleet, certificate: tuple[Path, Path] | None, group: asyncio.TaskGroup
) -> AsyncIterator[Simulation]:
    """Send logs where the cluster looks for them: a sandbox keeps them itself, a real one asks the kubelet."""
    if "sandbox" in await api.version():
        texts: asyncio.Queue[tuple[LogKey, str]] = asyncio.Queue()

        async def post() -> None:
            while True:  # in order; a pod that is gone loses its output
                of, text = await texts.get()
                with contextlib.suppress(ApiError, OSError):
                    await api.post_log(of.namespace, of.pod, of.container, text, restart=of.restart)

        group.create_task(post())
        yield build_simulation(api, fleet, lambda *log: texts.put_nowait(log))
        return
    kept = ContainerLogs()

    def status_of(namespace: str, pod: str, container: str) -> Mapping[str, Any]:
        found = simulation.pods.objects.get((namespace, pod)) or {}
        return next((one for one in objects.container_statuses(found) if one["name"] == container), {})

    async with kubelet_server(kept, status_of, certificate) as port:
        address = {"kubelet_address": ADDRESS, "kubelet_port": port}
        simulation = build_simulation(api, fleet, kept.append, **address)  # type: ignore[arg-type]
        simulation.pods.on_change(lambda old, new: kept.forget(*objects.key_of(old)) if old and new is None else None)
        yield simulation


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m gpu_provision.sandbox.attach", description=__doc__)
    parser.add_argument("--kubeconfig", required=True, type=Path, help="file with a token or client certificate")
    parser.add_argument("--context", default="", help="context of the kubeconfig; the current one by default")
    parser.add_argument("--fleet", default="default", help="a fleet file, or the name of a built-in fleet")
    parser.add_argument("--speed", type=float, help="divide all durations of the simulation by this")
    parser.add_argument("--tls-cert-file", type=Path, help="what kubelets show when asked for logs, for 127.0.0.1")
    parser.add_argument("--tls-private-key-file", type=Path, help="its key")
    parser.add_argument("--yes", action="store_true", help="attach although the cluster has other nodes")
    arguments = parser.parse_args(argv)
    if (arguments.tls_cert_file is None) != (arguments.tls_private_key_file is None):
        parser.error("--tls-cert-file and --tls-private-key-file go together")
    return arguments


async def _run(arguments: argparse.Namespace) -> None:
    registered = asyncio.Event()
    fleet = load_fleet(arguments.fleet, speed=arguments.speed)
    certificate = (arguments.tls_cert_file, arguments.tls_private_key_file) if arguments.tls_cert_file else None
    access = load_credentials(arguments.kubeconfig, arguments.context)
    options = {"beside_others": arguments.yes, "certificate": certificate}
    task = asyncio.create_task(attach(access, fleet, **options, registered=registered))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)

    async def report_registered() -> None:
        await registered.wait()
        sys.stderr.write(f"{len(fleet.machines)} simulated nodes are registered; interrupt to end them\n")

    report = asyncio.create_task(report_registered())
    try:
        await task
    except asyncio.CancelledError:
        sys.stderr.write("the simulated nodes are gone; their Node objects are still there\n")
    finally:
        report.cancel()


def _leaves(error: BaseException) -> list[SandboxError]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in _leaves(one)]
    return [error] if isinstance(error, SandboxError) else []


def main(argv: list[str]) -> int:
    """Run simulated nodes until interrupted; return the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    errors: list[SandboxError] = []
    try:
        asyncio.run(_run(_arguments(argv)))
    except* SandboxError as group:
        errors = _leaves(group)
    sys.stderr.write("".join(f"{error}\n" for error in errors))
    return errors[0].exit_code if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
