"""``python -m gpu_provision.sandbox.nodes``: attach simulated nodes to a cluster, until interrupted."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from dataclasses import replace
from pathlib import Path

from gpu_provision.model.findings import ProvisionError
from gpu_provision.sandbox.client import credentials
from gpu_provision.sandbox.fleet import Fleet, load_fleet
from gpu_provision.sandbox.nodes.attach import Terms, attach
from gpu_provision.sandbox.nodes.kubelet_server import Certificate


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m gpu_provision.sandbox.nodes", description=__doc__)
    parser.add_argument("--kubeconfig", required=True, type=Path, help="file with a token or client certificate")
    parser.add_argument("--context", default="", help="context of the kubeconfig; the current one by default")
    parser.add_argument("--fleet", default="default", help="a fleet file, or the name of a built-in fleet")
    parser.add_argument("--nodes", type=int, help="instead of a fleet: this many GPU nodes, for benchmarks")
    parser.add_argument("--speed", type=float, help="divide all durations of the simulation by this")
    parser.add_argument("--state", type=Path, help="keep what the machines know in this directory")
    parser.add_argument(
        "--direct-features",
        action="store_true",
        help="hand features from NFD's workers to its master directly, not as NodeFeature objects",
    )
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


def _certificate(arguments: argparse.Namespace) -> Certificate | None:
    if not arguments.tls_cert_file:
        return None
    return Certificate(arguments.tls_cert_file, arguments.tls_private_key_file)


async def _attached(arguments: argparse.Namespace) -> None:
    registered = asyncio.Event()
    fleet = _fleet(arguments)
    terms = Terms(
        beside_others=arguments.yes,
        home=arguments.state,
        direct_features=arguments.direct_features,
        certificate=_certificate(arguments),
    )
    access = credentials(arguments.kubeconfig, arguments.context)
    task = asyncio.create_task(attach(access, fleet, terms, registered=registered))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    said = asyncio.create_task(_say(registered, len(fleet.machines)))
    try:
        await task
    except asyncio.CancelledError:
        sys.stderr.write("the simulated nodes are gone; their Node objects are still there\n")
    finally:
        said.cancel()


async def _say(registered: asyncio.Event, count: int) -> None:
    await registered.wait()
    sys.stderr.write(f"{count} simulated nodes are registered; interrupt to end them\n")


def main(argv: list[str]) -> int:
    """Run simulated nodes until interrupted; return the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    arguments = _arguments(argv)
    problems: list[ProvisionError] = []
    try:
        asyncio.run(_attached(arguments))
    except* ProvisionError as group:
        problems = _leaves(group)
    sys.stderr.write("".join(f"{problem}\n" for problem in problems))
    return int(problems[0].exit_code) if problems else 0


def _leaves(error: BaseException) -> list[ProvisionError]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in _leaves(one)]
    return [error] if isinstance(error, ProvisionError) else []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
