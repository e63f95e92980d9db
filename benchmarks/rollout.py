"""How long a driver's rollout takes against what the nodes themselves need for it.

    python -m benchmarks.rollout [--real] [COUNT:PARALLEL ...]        default: 5:1 5:2 100:10 1000:10

Every line is one ``gpu-provision apply`` of another driver version on COUNT simulated nodes, PARALLEL at a time, on the
sandbox, or with ``--real`` on a real control plane as ``make test-real`` has it.

What a node itself needs is read off a watch of this program, which knows nothing of the tool: from the end of its old
driver pod to a new one that is ready, and from the creation of the pod that proves it to its success. The ideal is
COUNT / PARALLEL waves, rounded up, of the slowest node; a second ratio takes the median node instead, which no single
slow one flatters. The rollout is timed from the first node's start to the last one's end, as their labels tell.

Tool, API server and simulated nodes share the processors of this machine. ``tool`` is how much of one processor the
tool needed while it ran, ``busy`` the share of all processors that was in use by anybody; near 100 % neither nodes nor
tool had their natural speed, and the ratios say little. The simulation's share grows with the nodes that are under way,
which is why the default has ten at a time; ``benchmarks.paper`` has more, without a simulation.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from gpu_provision.cluster.client import Cluster, connect
from gpu_provision.model.cluster import Kind
from gpu_provision.model.findings import ProvisionError
from tests.real.control_plane import missing
from tests.scenarios.on_real import RealWorld, own_cluster
from tests.scenarios.on_sandbox import SandboxWorld
from tests.scenarios.world import World

VERSIONS = ("580.126.20", "580.178.04")
STATE = "nvidia.com/gpu-driver-upgrade-state"
RESTED = frozenset({"", "upgrade-done", "upgrade-required"})
COMPONENT = "gpu-provision.io/component"
DRIVER, PROOF = "driver", "driver_validation"


@dataclass
class Times:
    """What happened on one node, in seconds of one clock; infinity for what did not.

    Attributes:
        cleared: When its old driver pod began to go.
        loaded: When a new one was ready.
        asked: When the pod that proves it was created.
        proven: When that had succeeded.
    """

    started: float = math.inf
    cleared: float = math.inf
    loaded: float = math.inf
    asked: float = math.inf
    proven: float = math.inf
    ended: float = -math.inf

    @property
    def own(self) -> float:
        """What the node itself needed."""
        return (self.loaded - self.cleared) + (self.proven - self.asked)


Take = Callable[..., None]
"""Takes an object, the time, and ``is_gone``."""


def follow(cluster: Cluster, kind: Kind, version: str, take: Take, is_over: threading.Event) -> None:
    """Take every event from a version on, in a thread that ends with its stream once it is over.

    On a busy machine a stream may break: then what there is now has to do.
    """

    def follow_on(version: str) -> None:
        while not is_over.is_set():
            with contextlib.suppress(ProvisionError):
                for event in cluster.watch(kind, version):
                    if event.type != "BOOKMARK":
                        take(event.object, time.monotonic(), is_gone=event.type == "DELETED")
                    version = event.object["metadata"]["resourceVersion"]
            with contextlib.suppress(ProvisionError):
                listing = cluster.list(kind, patience=0.0)
                for item in listing.items:
                    take(item, time.monotonic(), is_gone=False)
                version = listing.resource_version
            is_over.wait(1.0)

    threading.Thread(target=follow_on, args=(version,), daemon=True).start()


@dataclass
class Watcher:
    """Follows nodes and pods of a cluster, and notes when what happened on each node."""

    cluster: Cluster
    times: dict[str, Times] = field(default_factory=dict)
    _old: set[str] = field(default_factory=set)
    _is_over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        """List both kinds, then follow them in threads that end with the program."""
        for kind, take in ((Kind("v1", "Pod"), self._pod), (Kind("v1", "Node"), self._node)):
            listing = self.cluster.list(kind)
            if kind.kind == "Pod":
                self._old = {pod["metadata"]["uid"] for pod in listing.items}
            follow(self.cluster, kind, listing.resource_version, take, self._is_over)
        return self

    def __exit__(self, *_: object) -> None:
        """Let the threads end with their streams."""
        self._is_over.set()

    def of(self, node: str) -> Times:
        """Return what happened on a node so far."""
        return self.times.setdefault(node, Times())

    def _node(self, node: Mapping[str, Any], now: float, *, is_gone: bool) -> None:
        state = (node["metadata"].get("labels") or {}).get(STATE, "")
        found = self.of(node["metadata"]["name"])
        if state not in RESTED and not is_gone:
            found.started = min(found.started, now)
        if state == "upgrade-done" and found.started < math.inf:
            found.ended = max(found.ended, now)

    def _pod(self, pod: Mapping[str, Any], now: float, *, is_gone: bool) -> None:
        metadata, status = pod["metadata"], pod.get("status") or {}
        component, found = (metadata.get("labels") or {}).get(COMPONENT), self.of(pod["spec"].get("nodeName", ""))
        is_old = metadata["uid"] in self._old
        if component == DRIVER and is_old and (is_gone or metadata.get("deletionTimestamp")):
            found.cleared = min(found.cleared, now)
        if component == DRIVER and not is_old and _is_ready(status):
            found.loaded = min(found.loaded, now)
        if component == PROOF and not is_old:
            found.asked = min(found.asked, now)
            found.proven = min(found.proven, now) if status.get("phase") == "Succeeded" else found.proven


def _is_ready(status: Mapping[str, Any]) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions") or ())


def gpu_nodes(name: str, count: int) -> dict[str, Any]:
    """Return the entry of a fleet file for so many GPU nodes with a label of their own."""
    return {"name": name, "count": count, "gpu": {"model": "Tesla T4", "count": 1}, "labels": {"fleet": "gpu"}}


@contextlib.contextmanager
def world_of(count: int, folder: Path, *, real: bool) -> Iterator[World]:
    """Yield a world of so many GPU nodes at their natural speed."""
    nodes = [{"name": "control-1", "roles": ["control-plane"]}, gpu_nodes("gpu-{:04}", count)]
    fleet = {"nodes": nodes, "timings": {"speed": 1}}
    with contextlib.ExitStack() as ended:
        if real:
            if reason := missing():
                sys.exit(reason)
            made: World = RealWorld(folder, ended.enter_context(own_cluster(folder / "plane")), **fleet)
        else:
            made = SandboxWorld(folder, **fleet)
        ended.callback(made.down)
        yield made


def apply(world: World, version: str, parallel: int) -> None:
    """Declare a driver and apply it."""
    policy = {"max_parallel_upgrades": parallel, "max_unavailable": "100%"}
    world.settings(driver={"version": version, "upgrade_policy": policy})
    command = [*world.apply_command, "--cluster-only", "-q"]
    done = subprocess.run(command, env=world.environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-1000:]}\n{done.stderr[-2000:]}")


def measure(count: int, parallel: int, *, real: bool) -> str:
    """Return one line of the table."""
    with tempfile.TemporaryDirectory() as folder, world_of(count, Path(folder), real=real) as world:
        names = [f"gpu-{number:04}" for number in range(1, count + 1)]
        world.settings(nodes=[{"name": name, "pool": "t4"} for name in names])
        apply(world, VERSIONS[0], parallel)
        before = len(world.requests())
        with Watcher(connect(str(world.kubeconfig))) as watcher:
            began = Load.now()
            apply(world, VERSIONS[1], parallel)
            load = Load.now().since(began)
            world.until(lambda: all(watcher.of(name).ended > 0 for name in names))
        return line(parallel, [watcher.of(name) for name in names], len(world.requests()) - before, load)


@dataclass(frozen=True)
class Load:
    """What has been used of the processors up to now, or since another such moment.

    Attributes:
        seconds: On the clock.
        tool: Seconds of a processor that commands of ours have used.
        busy: Seconds of processors that anybody has used.
        idle: Seconds of processors that nobody has used.
    """

    seconds: float
    tool: float
    busy: float
    idle: float

    @classmethod
    def now(cls) -> Self:
        """Read the kernel's books."""
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        idle, every = sum(ticks[3:5]), sum(ticks[:8])  # idle and waiting for disks; the rest is counted twice
        rate = os.sysconf("SC_CLK_TCK")
        return cls(time.monotonic(), children.ru_utime + children.ru_stime, (every - idle) / rate, idle / rate)

    def since(self, before: Self) -> Self:
        """Return the difference."""
        pairs = ((getattr(self, each.name), getattr(before, each.name)) for each in fields(self))
        return type(self)(*(now - then for now, then in pairs))

    def __str__(self) -> str:
        """Return both shares."""
        return f"{self.tool / self.seconds:5.0%}  {self.busy / (self.busy + self.idle):5.0%}"


def line(parallel: int, nodes: Sequence[Times], requests: int, load: Load) -> str:
    """Return the figures of one rollout."""
    took = max(node.ended for node in nodes) - min(node.started for node in nodes)
    own, waves = [node.own for node in nodes], math.ceil(len(nodes) / parallel)
    slowest, median = max(own), statistics.median(own)
    return (
        f"{len(nodes):5}  {parallel:8}  {waves:5}  {median:6.2f}  {slowest:7.2f}  {took:9.1f}"
        f"  {took / (waves * slowest):7.2f}  {took / (waves * median):8.2f}  {requests / len(nodes):8.1f}  {load}"
    )


def main() -> None:
    """Measure every rollout and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--real", action="store_true", help="on a real control plane")
    parser.add_argument("rollouts", nargs="*", metavar="COUNT:PARALLEL", default=["5:1", "5:2", "100:10", "1000:10"])
    chosen = parser.parse_args()
    print("nodes  parallel  waves  median  slowest  rollout s  x ideal  x median  requests   tool   busy", flush=True)
    for rollout in chosen.rollouts:
        count, parallel = (int(part) for part in rollout.split(":"))
        print(measure(count, parallel, real=chosen.real), flush=True)


if __name__ == "__main__":
    main()
