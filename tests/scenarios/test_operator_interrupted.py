"""Controllers that are killed, and API servers that restart: the stack ends as if nothing had happened."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.conftest import Open
from tests.scenarios.mortal_controller import OWN, PLACES
from tests.scenarios.test_interrupted_runs import end_state
from tests.scenarios.test_operator import NEW, OLD, OPERANDS, Home, pods
from tests.scenarios.test_removal import dump, settled_dump, without_definitions_of_nfd
from tests.scenarios.world import CHECKOUT, World, default_fleet

pytestmark = pytest.mark.real  # for the time they take

MORE = ("t4-3", "t4-4")
MOST = int(os.environ.get("GPU_PROVISION_TEST_WRITES", "9"))
"""How many objects a life of a controller writes at most. With 1 it is killed after every single write."""

EXPORTER = "nvidia-dcgm-exporter"
_PATIENCE = max(900, 9000 // MOST)  # seconds, for what takes dozens or hundreds of lives
_DRIVER_POD = re.compile(r"/pods/(nvidia-driver-daemonset-[^/]+)")
Make = Callable[..., World]


def five_nodes() -> dict[str, Any]:
    """Return the keys of a fleet with five GPU nodes, twice as fast as others."""
    more = [{"name": name, "gpu": {"model": "Tesla T4", "count": 1}} for name in MORE]
    return {"nodes": [*default_fleet()["nodes"], *more], "timings": {"speed": 100}}


class Five(Home):
    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.spec["nodes"] += [{"name": name, "pool": "t4"} for name in MORE]
        self.before = without_definitions_of_nfd(settled_dump(self.world))

    def lead_through_a_life(self) -> dict[str, Any]:
        """Bring the stack up, change the driver's version, and return the end of that."""
        for version in (OLD, NEW):
            self.declare(self.world.name, driver={"version": version})
            self.world.until(lambda: self.condition("Ready", self.world.name)["status"] == "True", seconds=_PATIENCE)
        status = self.status(self.world.name)
        return end_state(self.world) | {key: status[key] for key in ("components", "nodes", "rollout")}

    def let_go(self) -> None:
        """Have the stack removed; wait until all is as it was before."""
        self.world.api.delete("gpustack", self.world.name)
        self.world.until(lambda: without_definitions_of_nfd(dump(self.world)) == self.before)


@pytest.fixture
def five(opening: Open, tmp_path: Path) -> Callable[[str], contextlib.AbstractContextManager[Five]]:
    """Makes stacks of five GPU nodes, one after the other, each in a world of its own."""

    @contextlib.contextmanager
    def make(name: str) -> Iterator[Five]:
        folder = tmp_path / name
        folder.mkdir()
        with opening(folder, **five_nodes()) as world:
            yield Five(world)

    return make


def test_a_controller_killed_at_writes_reaches_the_same_state(
    five: Callable[[str], contextlib.AbstractContextManager[Five]],
) -> None:
    """From a bare cluster over another version of the driver and back; each time it restarts and resumes."""
    with five("undisturbed") as undisturbed:
        undisturbed.controller()
        wanted = undisturbed.lead_through_a_life()
    with five("killed") as killed:
        _assert_ends_like(wanted, killed)


def _assert_ends_like(wanted: dict[str, Any], killed: Five) -> None:
    deaths = killed.world.folder / "deaths"
    killed.world.environment["PYTHONPATH"] = str(CHECKOUT)
    program = (sys.executable, "-m", "tests.scenarios.mortal_controller", str(killed.world.kubeconfig))
    killed.world.start("sh", "-c", 'exec "$@" >controller.log 2>&1', "sh", *program, str(deaths), str(MOST))
    assert killed.lead_through_a_life() == wanted
    killed.let_go()
    last = deaths.read_text().splitlines()
    assert not [line for line in last if line.startswith("ended")], last
    assert len(last) > 200 / MOST, last
    for place in PLACES:
        assert any(place in line for line in last), (place, last)


def test_a_restart_of_the_api_server_costs_nothing(new_world: Make) -> None:
    """At rest, and in the middle of a rollout: no operand restarts, and each driver is replaced once.

    The second time it is away for so long that the controller leads no more, and cannot give its lock back.
    """
    made = Home(new_world(timings={"speed": 10}))
    world = made.world
    made.controller()
    made.declare(driver={"version": OLD})
    made.until("Ready")
    before, drivers, writes = running(world), pods(world, "nvidia-driver-daemonset"), len(world.writes())

    world.kill_everything()
    world.start_everything()
    world.api.set_image("daemonset", EXPORTER, "-n", OPERANDS, image="busybox:1")
    world.until(lambda: "busybox:1" not in str(world.json("daemonset", EXPORTER, "-n", OPERANDS)["spec"]))
    made.until("Ready")
    assert running(world) == before
    assert {path for path in written(world, writes) if EXPORTER not in path} == set()

    made.declare(driver={"version": NEW})
    world.until(lambda: not drivers.items() <= pods(world, "nvidia-driver-daemonset").items())
    said = len(made.log.read_text())
    world.kill_everything()
    world.until(lambda: "Waiting:" in made.log.read_text()[said:])
    world.start_everything()
    made.until("Ready")
    replaced = {name for path in written(world, writes) for name in drivers if name in path}
    assert replaced == {name for path in written(world, writes) for name in _DRIVER_POD.findall(path)} == set(drivers)
    assert len(pods(world, "nvidia-driver-daemonset")) == len(drivers)
    assert made.status()["rollout"] == {"done": 3, "failed": 0, "waiting": 0, "underWay": 0}


def test_a_frozen_leader_is_replaced_during_a_rollout(new_world: Make) -> None:
    """It is on another machine, so that its process cannot be seen; when it goes on it writes nothing any more."""
    made = Home(new_world(timings={"speed": 10}))
    world = made.world
    world.environment["PYTHONPATH"] = str(CHECKOUT)
    program = (sys.executable, "-m", "tests.scenarios.far_controller", str(world.kubeconfig))
    logs = [world.folder / "first.log", world.folder / "second.log"]
    first = world.start(*program, log=logs[0])
    world.until(lambda: "Leading" in logs[0].read_text())
    world.start(*program, log=logs[1])
    made.declare(driver={"version": OLD})
    made.until("Ready")
    drivers = pods(world, "nvidia-driver-daemonset")

    made.declare(driver={"version": NEW})
    world.until(lambda: "upgrade-required" in str(world.json("nodes")))
    first.send_signal(signal.SIGSTOP)
    world.until(lambda: "RunStarted" in logs[1].read_text())
    world.until(lambda: not drivers.items() <= pods(world, "nvidia-driver-daemonset").items())
    first.send_signal(signal.SIGCONT)
    made.until("Ready")
    assert "looking whether it is alive" not in logs[1].read_text()
    world.until(lambda: "leads no more" in logs[0].read_text())
    assert len(logs[0].read_text().split("Leading: ")) == 2
    assert made.status()["rollout"] == {"done": 3, "failed": 0, "waiting": 0, "underWay": 0}
    assert not pods(world, "nvidia-driver-daemonset").items() & drivers.items()
    replaced = [path for path in written(world, 0) if _DRIVER_POD.search(path)]
    assert len(replaced) == len(set(replaced)) == len(drivers)


def running(world: World) -> dict[str, int]:
    """Return how often the containers of each pod restarted, by its uid; DCGM exporter's pods aside."""
    found = world.json("pods", "-n", OPERANDS, "-l", f"app!={EXPORTER}")["items"]
    return {
        pod["metadata"]["uid"]: sum(each["restartCount"] for each in pod["status"].get("containerStatuses", ()))
        for pod in found
    }


def written(world: World, since: int) -> list[str]:
    """Return the paths of what was written to what is not the controller's own."""
    return [request.path for request in world.writes()[since:] if not OWN.search(request.path)]
