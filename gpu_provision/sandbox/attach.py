"""``python -m gpu_provision.sandbox.attach``: attach simulated nodes to any cluster, until interrupted."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpu_provision.sandbox.api import NODES, ApiError
from gpu_provision.sandbox.client import HttpApi, KubeCredentials, load_credentials
from gpu_provision.sandbox.errors import NoAnswerError, Problem, SandboxError
from gpu_provision.sandbox.fleet import Fleet, load_fleet
from gpu_provision.sandbox.kubelet.kubelet import build_simulation, run_nodes
from gpu_provision.sandbox.kubelet.logs import (
    ADDRESS,
    KeptLogs,
    KubeletCertificate,
    LogKey,
    LogSink,
    PostedLogs,
    kubelet_server,
)
from gpu_provision.sandbox.kubelet.node import SIMULATED
from gpu_provision.sandbox.kubelet.simulation import Simulation


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m gpu_provision.sandbox.attach", description=__doc__)
    parser.add_argument("--kubeconfig", required=True, type=Path, help="file with a token or client certificate")
    parser.add_argument("--context", default="", help="context of the kubeconfig; the current one by default")
    parser.add_argument("--fleet", default="default", help="a fleet file, or the name of a built-in fleet")
    parser.add_argument("--nodes", type=int, help="instead of a fleet: this many GPU nodes, for benchmarks")
    parser.add_argument("--speed", type=float, help="divide all durations of the simulation by this")
    parser.add_argument("--state", type=Path, help="keep what the machines know in this directory")
    parser.add_argument("--tls-cert-file", type=Path, help="what kubelets show when asked for logs, for 127.0.0.1")
    parser.add_argument("--tls-private-key-file", type=Path, help="its key")
    parser.add_argument("--yes", action="store_true", help="attach although the cluster has other nodes")
    arguments = parser.parse_args(argv)
    if (arguments.tls_cert_file is None) != (arguments.tls_private_key_file is None):
        parser.error("--tls-cert-file and --tls-private-key-file go together")
    return arguments


def _fleet(arguments: argparse.Namespace) -> Fleet:
    fleet = load_fleet(f"nodes-{arguments.nodes}" if arguments.nodes else arguments.fleet)
    if not arguments.speed:
        return fleet
    return replace(fleet, timings=replace(fleet.timings, speed=arguments.speed))


def _certificate(arguments: argparse.Namespace) -> KubeletCertificate | None:
    if not arguments.tls_cert_file:
        return None
    return KubeletCertificate(arguments.tls_cert_file, arguments.tls_private_key_file)


async def _run(arguments: argparse.Namespace) -> None:
    registered = asyncio.Event()
    fleet = _fleet(arguments)
    terms = AttachOptions(
        beside_others=arguments.yes,
        home=arguments.state,
        certificate=_certificate(arguments),
    )
    access = load_credentials(arguments.kubeconfig, arguments.context)
    task = asyncio.create_task(attach(access, fleet, terms, registered=registered))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    said = asyncio.create_task(_report(registered, len(fleet.machines)))
    try:
        await task
    except asyncio.CancelledError:
        sys.stderr.write("the simulated nodes are gone; their Node objects are still there\n")
    finally:
        said.cancel()


async def _report(registered: asyncio.Event, count: int) -> None:
    await registered.wait()
    sys.stderr.write(f"{count} simulated nodes are registered; interrupt to end them\n")


def main(argv: list[str]) -> int:
    """Run simulated nodes until interrupted; return the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    arguments = _arguments(argv)
    problems: list[SandboxError] = []
    try:
        asyncio.run(_run(arguments))
    except* SandboxError as group:
        problems = _collect_errors(group)
    sys.stderr.write("".join(f"{problem}\n" for problem in problems))
    return int(problems[0].exit_code) if problems else 0


def _collect_errors(error: BaseException) -> list[SandboxError]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in _collect_errors(one)]
    return [error] if isinstance(error, SandboxError) else []


_SANDBOX = "sandbox"
_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachOptions:
    """How to attach.

    Attributes:
        beside_others: Also in a cluster that has nodes of its own, whose pods may then land on simulated nodes.
        home: Where the machines keep what they know; without it they boot afresh.
        certificate: What the kubelets show to an API server that asks for logs and verifies them.
    """

    beside_others: bool = False
    home: Path | None = None
    certificate: KubeletCertificate | None = None


async def attach(
    credentials: KubeCredentials,
    fleet: Fleet,
    terms: AttachOptions | None = None,
    *,
    registered: asyncio.Event | None = None,
) -> None:
    """Register a fleet's nodes with a cluster and run their pods until cancelled.

    ``registered`` is set once all nodes are there. Raises SandboxError (GP720), or NoAnswerError (GP721).
    """
    terms = terms or AttachOptions()
    async with HttpApi(credentials) as api, asyncio.TaskGroup() as group:
        await _check(api, credentials, terms)
        api.pause = fleet.timings.scaled(fleet.timings.retry)  # from here on, nodes outlive an API server that is away
        async with _open_simulation(api, fleet, terms, group) as simulation:
            await run_nodes(simulation, fleet, registered=registered)


async def _check(api: HttpApi, credentials: KubeCredentials, terms: AttachOptions) -> None:
    try:
        nodes, _ = await api.list(NODES)
    except (OSError, ApiError) as error:
        what = "the cluster does not answer, or refuses"
        problem = Problem(code="GP721", what=what, where=credentials.server, evidence=str(error))
        raise NoAnswerError(problem) from error
    own = [n["metadata"]["name"] for n in nodes if SIMULATED not in (n["metadata"].get("annotations") or {})]
    if own and not terms.beside_others:
        shown = ", ".join(own[:_SHOWN]) + (" ..." if len(own) > _SHOWN else "")
        what = f"context {credentials.context} has {len(own)} nodes that are not simulated; nothing was attached"
        fix = "use a cluster of your own for this, or say --yes if pods may land on simulated nodes"
        raise SandboxError(Problem(code="GP720", what=what, where=credentials.server, evidence=shown, fix=fix))


@contextlib.asynccontextmanager
async def _open_simulation(
    api: HttpApi, fleet: Fleet, terms: AttachOptions, group: asyncio.TaskGroup
) -> AsyncIterator[Simulation]:
    """Send logs where the cluster looks for them: a sandbox keeps them itself, a real one asks the kubelet."""
    if _SANDBOX in await api.version():
        posted = PostedLogs(lambda of, text: _post(api, of, text))
        group.create_task(posted.run())
        yield build_simulation(api, fleet, posted, home=terms.home)
        return
    kept = KeptLogs()
    simulation: Simulation | None = None

    def status_of(namespace: str, pod: str, container: str) -> Mapping[str, Any]:
        return {} if simulation is None else _container_status(simulation, namespace, pod, container)

    async with kubelet_server(kept, status_of, terms.certificate) as port:
        sink: LogSink = kept
        simulation = build_simulation(api, fleet, sink, home=terms.home, kubelet_address=ADDRESS, kubelet_port=port)
        simulation.pods.on_change(lambda old, new: kept.forget(*_pod_key(old)) if old and new is None else None)
        yield simulation


async def _post(api: HttpApi, of: LogKey, text: str) -> None:
    with contextlib.suppress(ApiError, OSError):  # the pod is gone, and its output with it
        await api.post_log(of.namespace, of.pod, of.container, text, restart=of.restart)


def _pod_key(pod: dict[str, dict[str, str]]) -> tuple[str, str]:
    return pod["metadata"]["namespace"], pod["metadata"]["name"]


def _container_status(simulation: Simulation, namespace: str, pod: str, container: str) -> Mapping[str, Any]:
    status = (simulation.pods.objects.get((namespace, pod)) or {}).get("status") or {}
    statuses = (*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ()))
    return next((one for one in statuses if one["name"] == container), {})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
