"""How soon simulated nodes that join a stack are labelled, and ready.

    python -m benchmarks.joining [--real] [COUNT]        default: 1000

A controller looks after a stack of ten GPU nodes on the sandbox, or with ``--real`` on a real control plane as ``make
test-real`` has it. Then COUNT more register as fast as the API server takes them. Their kubelets, NFD's workers and all
operands are simulated at their natural speed, on the processors that server and controller use as well: ``busy`` is
their share in use, ``controller`` how much of one of them the controller needed. ``benchmarks.operator`` has nodes that
cost next to nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import yaml

from benchmarks.operator import NAMESPACE, STACK, Use
from benchmarks.rollout import Load, follow, gpu_nodes, world_of
from gpu_provision.cluster.client import connect
from gpu_provision.model.cluster import Kind
from gpu_provision.operator.definition import definition
from tests.real.processes import process
from tests.scenarios.world import CHECKOUT, World

NFD, OURS = "feature.node.kubernetes.io/", "nvidia.com/gpu.present"
FIRST = 10
PATIENCE_SECONDS = 3600.0


@dataclass
class Times:
    """What happened to one node, by a monotonic clock; infinity for what has not."""

    registered: float = math.inf
    seen: float = math.inf
    labelled: float = math.inf


@dataclass
class Joins:
    """Notes what happens to each node."""

    times: dict[str, Times] = field(default_factory=dict)

    def take(self, node: Mapping[str, Any], now: float, *, is_gone: bool) -> None:
        """Take a node as it is now."""
        found, labels = self.times.setdefault(node["metadata"]["name"], Times()), node["metadata"].get("labels") or {}
        if is_gone:
            return
        found.registered = min(found.registered, now)
        if any(label.startswith(NFD) for label in labels):
            found.seen = min(found.seen, now)
        if OURS in labels:
            found.labelled = min(found.labelled, now)

    def those_that_joined(self) -> list[Times]:
        """Return the times of those that were not there from the beginning."""
        return [times for name, times in self.times.copy().items() if name.startswith("late-")]

    def labelled(self) -> int:
        """Return how many of them are."""
        return sum(each.labelled < math.inf for each in self.those_that_joined())


@contextlib.contextmanager
def watching(kubeconfig: Path) -> Iterator[Joins]:
    """Follow the cluster's nodes."""
    cluster, node, joins, is_over = connect(str(kubeconfig)), Kind("v1", "Node"), Joins(), threading.Event()
    follow(cluster, node, cluster.list(node).resource_version, joins.take, is_over)
    yield joins
    is_over.set()


@contextlib.contextmanager
def more_nodes(world: World, count: int) -> Iterator[None]:
    """Let so many nodes register beside those that are there."""
    fleet, log = world.folder / "late.yaml", world.folder / "late.log"
    fleet.write_text(yaml.safe_dump({"nodes": [gpu_nodes("late-{:04}", count)], "timings": {"speed": 1}}))
    command = [sys.executable, "-m", "gpu_provision.sandbox.nodes", "--kubeconfig", str(world.kubeconfig)]
    command += ["--fleet", str(fleet), *world.node_flags]
    with process(log, command, environment={**os.environ, "PYTHONPATH": str(CHECKOUT)}):
        yield


def is_ready(world: World, number: int) -> bool:
    """Whether the stack says so of all of so many nodes."""
    status = world.json("gpustack", "prod").get("status") or {}
    return status.get("nodes", {}).get("summary") == f"{number}/{number}" and any(
        each["type"] == "Ready" and each["status"] == "True" for each in status["conditions"]
    )


def brought_up(world: World) -> int:
    """Bring a stack up with a controller; return the controller's process."""
    world.submit(NAMESPACE)
    world.submit(definition(), "--server-side")
    world.until(lambda: world.kubectl("get", "gpustacks", check=False).code == 0)
    program = str(Path(sys.executable).parent / "gpu-provision"), "operator", "run", "--port", "0"
    log = world.folder / "controller.log"
    controller = world.start(*program, "--kubeconfig", str(world.kubeconfig), log=log)
    world.submit(STACK)
    world.until(lambda: is_ready(world, FIRST), seconds=PATIENCE_SECONDS)
    return controller.pid


def measure(world: World, count: int) -> None:
    """Let nodes join a stack, and print what came of it as soon as it is known."""
    controller = brought_up(world)
    used, load, asked = Use.of(controller).processor, Load.now(), len(world.requests())
    with watching(world.kubeconfig) as joins, more_nodes(world, count):
        world.until(lambda: joins.labelled() == count, seconds=PATIENCE_SECONDS)
        found = joins.those_that_joined()
        print(*waits(found), sep="\n", flush=True)
        world.until(lambda: is_ready(world, FIRST + count), seconds=PATIENCE_SECONDS)
        ended, after, load = time.monotonic(), Use.of(controller), Load.now().since(load)
    print(f"all ready    {ended - max(each.registered for each in found):.0f} s after the last one registered")
    print(
        f"meanwhile    {(len(world.requests()) - asked) / count:.1f} requests a node; controller"
        f" {after.processor - used:.1f} s of a processor, {after.peak:.0f} MiB at most;"
        f" busy {load.busy / (load.busy + load.idle):.0%}"
    )
    print(f"$ kubectl get gpustacks\n{world.kubectl('get', 'gpustacks').out}")


def waits(found: Sequence[Times]) -> Iterator[str]:
    """Yield lines on what happened to nodes."""
    began, registered, seen, labelled = (
        choice(getattr(each, name) for each in found)
        for choice, name in ((min, "registered"), (max, "registered"), (max, "seen"), (max, "labelled"))
    )
    waited = [each.labelled - each.seen for each in found]
    slow = quantiles(waited, n=100, method="inclusive")[-1]
    yield f"nodes        {len(found)} registered within {registered - began:.0f} s"
    yield (
        f"labelled     {median(waited):.2f} s after NFD's labels (99 of 100 within {slow:.2f},"
        f" slowest {max(waited):.2f})"
    )
    yield f"the last     NFD's {seen - registered:.0f} s after it registered, ours {labelled - registered:.0f} s"


def main() -> None:
    """Let nodes join."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--real", action="store_true", help="on a real control plane")
    parser.add_argument("count", nargs="?", type=int, default=1000, metavar="COUNT")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, world_of(FIRST, Path(folder), real=chosen.real) as world:
        measure(world, chosen.count)


if __name__ == "__main__":
    main()
