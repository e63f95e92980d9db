"""How long a cluster is without a controller after the one that led was killed.

    python -m benchmarks.takeover [--real] [KILLS]        default: 3

Two controllers look after a stack on the sandbox, or with ``--real`` on a real control plane as ``make test-real`` has
it. The one that leads is killed (SIGKILL), at rest and in the middle of a rollout; each time a new one takes the place
of the other. At rest an operand is deleted at that moment, so that there is something to write.

``leads`` is the time from the kill until the other one has the lease, ``writes`` until its first write to an object of
the stack. In a rollout that also waits for the stack's lock. Each controller has process numbers of its own (unshare,
which needs root), as in a pod: otherwise one would see at once that the other has ended. ``busy`` is the share of this
machine's processors that was in use.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path

from benchmarks.rollout import VERSIONS, Load, world_of
from tests.scenarios.mortal_controller import OWN
from tests.scenarios.test_operator import OPERANDS, Home
from tests.scenarios.world import World

EXPORTER = "nvidia-dcgm-exporter"
STATE = "nvidia.com/gpu-driver-upgrade-state"
NODES = 5


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
            self.running[name] = self.world.start(*_ALONE, "sh", "-c", _RUN, name, str(log), *self._command())
            self.world.until(partial(_answers, log), seconds=300)

    def _command(self) -> tuple[str, ...]:
        program = str(Path(sys.executable).parent / "gpu-provision")
        return program, "operator", "run", "--port", "0", "--kubeconfig", str(self.world.kubeconfig)

    def leader(self) -> str:
        """Return the name of the one that leads; empty if none that runs does."""
        lease = self.world.kubectl("get", "lease", "gpu-provision-operator", *_HOLDER, check=False).out
        name = lease.partition("@")[2].partition(" ")[0]
        return name if name in self.running else ""

    def kill(self) -> None:
        """Kill the one that leads."""
        self.running.pop(self.leader()).kill()


_HOLDER = ("-n", "gpu-operator", "-o", "jsonpath={.spec.holderIdentity}")
_ALONE = ("unshare", "--uts", "--pid", "--mount-proc", "--fork", "--kill-child")
_RUN = 'hostname "$0"; log=$1; shift; exec "$@" >"$log" 2>&1'


def _answers(log: Path) -> bool:
    return log.exists() and "Answering" in log.read_text()


def _measured(pair: Pair, before: int) -> tuple[float, float]:
    """Return the seconds until another one leads, and until its first write to the stack."""
    began = time.monotonic()
    pair.world.until(pair.leader, seconds=300)
    leads = time.monotonic() - began
    pair.world.until(lambda: _writes(pair.world) > before, seconds=300)
    return leads, time.monotonic() - began


def _writes(world: World) -> int:
    return sum(not OWN.search(request.path) for request in world.writes())


def at_rest(home: Home, pair: Pair) -> tuple[float, float]:
    """Kill the leader while nothing happens, and delete an operand."""
    pair.fill()
    before = _writes(home.world)
    pair.kill()
    home.world.kubectl("delete", "daemonset", EXPORTER, "-n", OPERANDS)
    found = _measured(pair, before)
    home.until("Ready")
    return found


def in_a_rollout(home: Home, pair: Pair) -> tuple[float, float]:
    """Kill the leader when the first node is on its way to another driver."""
    pair.fill()
    old = home.spec["driver"]["version"]
    home.declare(driver={"version": next(version for version in VERSIONS if version != old)})
    home.world.until(lambda: "-required" in home.world.kubectl("get", "nodes", "-L", STATE).out, seconds=300)
    pair.kill()
    before = _writes(home.world)
    found = _measured(pair, before)
    home.until("Ready")
    return found


CASES: dict[str, Callable[[Home, Pair], tuple[float, float]]] = {"at rest": at_rest, "in a rollout": in_a_rollout}


@contextmanager
def homes(*, real: bool) -> Iterator[tuple[Home, Pair]]:
    """Yield a stack that is up, and two controllers."""
    with tempfile.TemporaryDirectory() as folder, world_of(NODES, Path(folder), real=real) as world:
        home, pair = Home(world), Pair(world)
        pair.fill()
        nodes = [{"name": f"gpu-{number:04}", "pool": "t4"} for number in range(1, NODES + 1)]
        home.declare(nodes=nodes, driver={"version": VERSIONS[0]})
        home.until("Ready")
        yield home, pair


def line(name: str, found: Sequence[tuple[float, float]], load: Load) -> str:
    """Return one line of the table: medians, and the longest in brackets."""
    columns = (f"{statistics.median(column):5.1f} ({max(column):4.1f})" for column in zip(*found, strict=True))
    return f"{name:14}{len(found):5}  {'  '.join(columns)}  {load.busy / (load.busy + load.idle):5.0%}"


def main() -> None:
    """Kill leaders and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--real", action="store_true", help="on a real control plane")
    parser.add_argument("kills", nargs="?", type=int, default=3, metavar="KILLS")
    chosen = parser.parse_args()
    if os.geteuid():
        sys.exit("needs root: each controller gets process numbers of its own")
    print("               kills  leads s (max)  writes s (max)   busy", flush=True)
    with homes(real=chosen.real) as (home, pair):
        for name, case in CASES.items():
            began = Load.now()
            found = [case(home, pair) for _ in range(chosen.kills)]
            print(line(name, found, Load.now().since(began)), flush=True)


if __name__ == "__main__":
    main()
