"""How long a cluster is without a controller after the leader was killed; needs root.

Two controllers look after a stack. The leader is killed (SIGKILL), at rest and in a rollout; at rest an operand is
deleted at the same moment, so that there is something to write. Each controller has process numbers of its own, as in a
pod: otherwise the other one would see at once that it has ended.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.processes import TOOL
from benchmarks.sites import VERSIONS, gpu_nodes, names
from benchmarks.table import Row
from tests.crowd import STATE
from tests.scenarios.mortal_controller import OWN
from tests.scenarios.on_real import RealWorld, own_cluster
from tests.scenarios.on_sandbox import SandboxWorld
from tests.scenarios.test_operator import OPERANDS, Home
from tests.scenarios.world import World

EXPORTER, NODES, KILLS, PATIENCE_SECONDS = "nvidia-dcgm-exporter", 5, 3, 300
_HOLDER = ("lease", "gpu-provision-operator", "-n", "gpu-operator")
_ALONE = ("unshare", "--uts", "--pid", "--mount-proc", "--fork", "--kill-child")
_RUN = 'hostname "$0"; log=$1; shift; exec "$@" >"$log" 2>&1'


@dataclass
class Pair:
    """Two controllers, each on a host of its own name."""

    world: World
    running: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    _names: Iterator[str] = field(default_factory=lambda: (f"controller-{number}" for number in count(1)))

    def fill(self) -> None:
        """Start as many as are missing."""
        while len(self.running) < 2:  # noqa: PLR2004 - a pair
            name = next(self._names)
            log = self.world.folder / f"{name}.log"
            words = (TOOL, "operator", "run", "--port", "0", "--kubeconfig", str(self.world.kubeconfig))
            self.running[name] = self.world.start(*_ALONE, "sh", "-c", _RUN, name, str(log), *words)
            self.world.until(partial(_answers, log), seconds=PATIENCE_SECONDS)

    def leader(self) -> str:
        """Return the name of the leader; empty if it does not run."""
        if not self.world.api.exists(*_HOLDER):
            return ""
        holder = str(self.world.json(*_HOLDER)["spec"].get("holderIdentity", ""))
        name = holder.partition("@")[2].partition(" ")[0]
        return name if name in self.running else ""

    def kill(self) -> None:
        """Kill the leader."""
        self.running.pop(self.leader()).kill()

    def writes(self) -> int:
        """Return how many writes to objects of the stack there were."""
        return sum(not OWN.search(request.path) for request in self.world.writes())

    def times(self, before: int) -> tuple[float, float]:
        """Return the seconds until another one leads, and until its first write to the stack."""
        began = time.monotonic()
        self.world.until(self.leader, seconds=PATIENCE_SECONDS)
        leads = time.monotonic() - began
        self.world.until(lambda: self.writes() > before, seconds=PATIENCE_SECONDS)
        return leads, time.monotonic() - began


def _answers(log: Path) -> bool:
    return log.exists() and "Answering" in log.read_text()


def _at_rest(home: Home, pair: Pair) -> tuple[float, float]:
    before = pair.writes()
    pair.kill()
    home.world.api.delete("daemonset", EXPORTER, "-n", OPERANDS, wait=False)
    return pair.times(before)


def _in_a_rollout(home: Home, pair: Pair) -> tuple[float, float]:
    old = home.spec["driver"]["version"]
    home.declare(driver={"version": next(version for version in VERSIONS if version != old)})
    home.world.until(lambda: _is_under_way(home.world), seconds=PATIENCE_SECONDS)
    pair.kill()
    return pair.times(pair.writes())


def _is_under_way(world: World) -> bool:
    labels = (node["metadata"]["labels"].get(STATE, "") for node in world.json("nodes")["items"])
    return any(label.endswith("-required") for label in labels)


_CASES: dict[str, Callable[[Home, Pair], tuple[float, float]]] = {"at rest": _at_rest, "in a rollout": _in_a_rollout}


def rows(*, real: bool) -> Iterator[Row]:
    """Kill leaders."""
    if os.geteuid():
        yield Row("controller takes over", "", "not measured: needs root")
        return
    nodes = [{"name": "control-1", "roles": ["control-plane"]}, gpu_nodes("gpu", NODES)]
    with TemporaryDirectory() as name:
        folder = Path(name)
        if not real:
            yield from _closing(SandboxWorld(folder, nodes=nodes, timings={"speed": 1}))
            return
        with own_cluster(folder / "plane") as cluster:
            yield from _closing(RealWorld(folder, cluster, nodes=nodes, timings={"speed": 1}))


def _closing(world: World) -> Iterator[Row]:
    try:
        home, pair = Home(world), Pair(world)
        pair.fill()
        declared = [{"name": name, "pool": "t4"} for name in names(NODES)]
        home.declare(nodes=declared, driver={"version": VERSIONS[0]})
        home.until("Ready")
        for name, case in _CASES.items():
            found = []
            for _ in range(KILLS):
                pair.fill()
                found.append(case(home, pair))
                home.until("Ready")
            leads, writes = (
                f"{median(column):.1f} s (at most {max(column):.1f})" for column in zip(*found, strict=True)
            )
            yield Row(f"takeover, {name}", f"{KILLS} kills", f"leads after {leads}, writes after {writes}")
    finally:
        world.down()
