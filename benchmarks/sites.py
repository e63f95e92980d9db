"""Clusters to measure on: nodes that cost next to nothing, or a real control plane with simulated nodes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from benchmarks.processes import TOOL, Use, command, until
from benchmarks.watcher import Watcher
from gpu_provision.sandbox.apiserver.request_log import LoggedRequest
from tests.crowd import Crowd, Times
from tests.real.control_plane import missing
from tests.real.processes import process
from tests.scenarios.client import Client
from tests.scenarios.on_real import RealWorld, own_cluster
from tests.scenarios.world import CHECKOUT

VERSIONS = ("580.126.20", "580.178.04")
SPEED = 4.0
"""By which simulated durations are divided: a node's critical path is then 4 s."""

POOLS = {"t4": {"gpu": {"model": "T4", "count": 1}, "node_selector": {"fleet": "gpu"}}}
DRIVER_SECONDS, PROOF_SECONDS = 4.0, 1.0
TAKES = {"driver": DRIVER_SECONDS, "validator": PROOF_SECONDS}
"""Seconds that pods take in a rollout: those that a node waits for one after the other."""


def names(count: int, prefix: str = "gpu") -> list[str]:
    """Return the names of so many nodes."""
    return [f"{prefix}-{number:04}" for number in range(1, count + 1)]


class Site(ABC):
    """A cluster of GPU nodes, an inventory of them, and a user's folder.

    Attributes:
        kubeconfig: The administrator's.
        inventory: The file.
    """

    kubeconfig: Path
    inventory: Path

    def __init__(self, count: int, folder: Path) -> None:
        """Prepare the user's environment."""
        self.nodes, self.folder = names(count), folder
        self.environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "NO_COLOR": "1"}

    @property
    @abstractmethod
    def times(self) -> Mapping[str, Times]:
        """What happened to each node."""

    @abstractmethod
    def declare(self, version: str, parallel: int = 1) -> None:
        """Write the driver's version into the inventory, and how many nodes are upgraded at a time."""

    @abstractmethod
    def requests(self) -> list[LoggedRequest]:
        """Return the tool's requests so far."""

    @abstractmethod
    def join(self, count: int, seconds: float) -> contextlib.AbstractContextManager[None]:
        """Let nodes ``late-0001`` and following join within a time, or as fast as the API server takes them."""

    @abstractmethod
    def at_work(self, node: str, since: float, up_to: float, components: Container[str] | None = None) -> float:
        """Return for how many seconds of a time the cluster worked on a node: its critical path, without the tool.

        Args:
            components: Only their pods count; all by default.
        """

    def tool(self, *arguments: str) -> Use:
        """Run gpu-provision on the inventory."""
        return command(
            TOOL, *arguments, "--cluster-only", "-q", "-i", str(self.inventory), environment=self.environment
        )

    def apply(self) -> tuple[Use, list[LoggedRequest]]:
        """Run an apply; return the requests as well."""
        before = len(self.requests())
        return self.tool("apply", "--yes"), self.requests()[before:]

    def rendered(self) -> Path:
        """Return a folder with all objects but validations, which are pods that run once."""
        folder = self.folder / "rendered"
        words = (TOOL, "render", "-q", "-i", str(self.inventory), "--output", str(folder))
        command(*words, environment=self.environment)
        for file in folder.glob("*validation*"):
            file.unlink()
        return folder

    @contextlib.contextmanager
    def controller(self) -> Iterator[subprocess.Popen[str]]:
        """Run a controller, without local records, as its image has it."""
        words = (TOOL, "operator", "run", "--port", "0", "--kubeconfig", str(self.kubeconfig))
        environment = {**self.environment, "XDG_STATE_HOME": os.devnull}
        with (self.folder / "controller.log").open("w") as log:
            running = subprocess.Popen(words, env=environment, stdout=log, stderr=log, text=True)
            try:
                yield running
            finally:
                running.terminate()
                running.wait()

    @contextlib.contextmanager
    def api(self) -> Iterator[Client]:
        """Open a connection of the administrator."""
        with contextlib.closing(Client(self.kubeconfig)) as client:
            yield client


class CrowdSite(Site):
    """The sandbox's API server, and nodes that cost next to nothing."""

    def __init__(self, count: int, folder: Path, takes: Mapping[str, float]) -> None:
        """Start the server and let all nodes join."""
        super().__init__(count, folder)
        self.crowd = Crowd(folder, takes)
        self.crowd.join(*self.nodes)
        self.kubeconfig, self.inventory = self.crowd.kubeconfig, folder / "bench.yaml"
        self.declare(VERSIONS[0])

    @property
    def times(self) -> Mapping[str, Times]:
        """See Site."""
        return self.crowd.times

    def declare(self, version: str, parallel: int = 1) -> None:
        """See Site."""
        document = {
            "name": "bench",
            "cluster": {"kubeconfig": str(self.kubeconfig)},
            "driver": _driver(version, parallel),
            "pools": {"t4": {"gpu": POOLS["t4"]["gpu"]}},
            "nodes": [{"name": name, "pool": "t4"} for name in self.nodes],
        }
        self.inventory.write_text(yaml.safe_dump(document, sort_keys=False))

    def requests(self) -> list[LoggedRequest]:
        """See Site."""
        return self.crowd.requests()

    @contextlib.contextmanager
    def join(self, count: int, seconds: float) -> Iterator[None]:
        """See Site."""
        began = time.monotonic()
        for position, name in enumerate(names(count, "late")):
            time.sleep(max(0.0, began + position * seconds / count - time.monotonic()))
            self.crowd.join(name)
        yield

    def at_work(self, *_: object) -> float:
        """See Site."""
        return DRIVER_SECONDS + PROOF_SECONDS if self.crowd.takes else 0.0


class RealSite(Site):
    """A real control plane, and simulated nodes with their natural speed."""

    def __init__(self, world: RealWorld, watcher: Watcher, count: int, folder: Path) -> None:
        """Take a cluster whose nodes are there."""
        super().__init__(count, folder)
        self.world, self.watcher, self.environment = world, watcher, world.environment
        self.kubeconfig, self.inventory = world.kubeconfig, world.inventory
        world.settings(nodes=[{"name": name, "pool": "t4"} for name in self.nodes])
        self.declare(VERSIONS[0])

    @property
    def times(self) -> Mapping[str, Times]:
        """See Site."""
        return self.watcher.times

    def declare(self, version: str, parallel: int = 1) -> None:
        """See Site."""
        self.world.settings(driver=_driver(version, parallel))

    def requests(self) -> list[LoggedRequest]:
        """See Site."""
        return self.world.requests()

    @contextlib.contextmanager
    def join(self, count: int, seconds: float) -> Iterator[None]:  # noqa: ARG002 - kubelets register when they start
        """See Site."""
        fleet, log = self.folder / "late.yaml", self.folder / "late.log"
        fleet.write_text(yaml.safe_dump({"nodes": [gpu_nodes("late", count)], "timings": {"speed": SPEED}}))
        words = [sys.executable, "-m", "gpu_provision.sandbox.attach", "--kubeconfig", str(self.kubeconfig)]
        words += ["--fleet", str(fleet), "--yes", *self.world.node_flags]
        with process(log, words, environment={**os.environ, "PYTHONPATH": str(CHECKOUT)}):
            until(lambda: sum(name.startswith("late-") for name in self.times.copy()) == count)
            yield

    def at_work(self, node: str, since: float, up_to: float, components: Container[str] | None = None) -> float:
        """See Site."""
        return self.watcher.at_work(node, since, up_to, components)


def _driver(version: str, parallel: int) -> dict[str, Any]:
    policy = {"max_parallel_upgrades": parallel, "max_unavailable": "100%"}
    return {"version": version, "upgrade_policy": policy}


def gpu_nodes(prefix: str, count: int) -> dict[str, Any]:
    """Return the entry of a fleet file for GPU nodes with a label of their own."""
    gpu = {"model": "Tesla T4", "count": 1}
    return {"name": f"{prefix}-{{:04}}", "count": count, "gpu": gpu, "labels": {"fleet": "gpu"}}


@contextlib.contextmanager
def site(count: int, *, real: bool, takes: Mapping[str, float] | None = None, speed: float = SPEED) -> Iterator[Site]:
    """Open a cluster of so many GPU nodes, and end it.

    Args:
        takes: Seconds that pods of a component take, on nodes that cost next to nothing; at once by default.
        speed: Of simulated nodes on a real control plane.
    """
    with contextlib.ExitStack() as ended:
        folder = Path(ended.enter_context(tempfile.TemporaryDirectory()))
        if not real:
            crowd = CrowdSite(count, folder, takes or {})
            ended.callback(crowd.crowd.close)
            yield crowd
            return
        if reason := missing():
            sys.exit(reason)
        nodes = [{"name": "control-1", "roles": ["control-plane"]}, gpu_nodes("gpu", count)]
        cluster = ended.enter_context(own_cluster(folder / "plane"))
        world = RealWorld(folder, cluster, nodes=nodes, timings={"speed": speed})
        ended.callback(world.down)
        yield RealSite(world, ended.enter_context(Watcher(world.kubeconfig)), count, folder)
