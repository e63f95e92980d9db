"""A fleet of which some machines have a driver of their own, and ``driver.enabled: auto``; each test goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.sandbox import hosts
from gpu_provision.sandbox.hosts import SimulatedHost
from tests.scenarios.on_sandbox import SandboxWorld
from tests.scenarios.world import World, default_fleet

VERSION = "550.90.07"
OWN = {"nvidia.com/gpu.deploy.driver": "pre-installed", "gpu-provision.io/host-driver": VERSION}

pytestmark = pytest.mark.real  # for the time it takes


def with_own_driver(*names: str) -> dict[str, Any]:
    """Return the keys that give nodes of the default fleet a driver of their own, and little time to the rest."""
    own = {"host": {"driver": VERSION}}
    nodes = [{**node, **own} if node["name"] in names else node for node in default_fleet()["nodes"]]
    return {"nodes": nodes, "timings": {"speed": 50}}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxWorld]:
    """A sandbox in which t4-2 has a driver of its own, and t4-1 and h100-1 have none."""
    made = SandboxWorld(tmp_path_factory.mktemp("sandbox"), **with_own_driver("t4-2"))
    made.settings(driver={"enabled": "auto"})
    yield made
    made.down()


def host(world: SandboxWorld, name: str) -> SimulatedHost:
    """The simulated host, on which anybody can type commands."""
    folder: Path = world.folder / "sandboxes" / "fleet" / "hosts"
    return SimulatedHost(name, folder / name)


def on_host(world: SandboxWorld, name: str, command: str) -> None:
    done = hosts.run(host(world, name), command)
    assert done.returncode == 0, done.stderr.decode()


def reboot(world: SandboxWorld, name: str) -> None:
    """Reboot the machine: its host, and its node."""
    on_host(world, name, "reboot")
    world.reboot(name)


def labels(world: World, name: str) -> dict[str, str]:
    found: dict[str, str] = world.json("node", name)["metadata"]["labels"]
    return found


def driver_pods(world: World) -> set[str]:
    """The nodes that run the driver container; a pod that is not placed yet is on none."""
    return {pod["spec"]["nodeName"] for pod in world.driver_pods()}


def everything_works(world: World) -> None:
    """Every component is ready, and every node offers its GPUs."""
    status = world.status()
    assert status["ready"], status
    offered = {row["node"]: row["allocatable"] for row in status["nodes"] if row["allocatable"]}
    assert offered == {"t4-1": 1, "t4-2": 1, "h100-1": 8}


def test_the_plan_says_which_node_has_its_own(mixed: SandboxWorld) -> None:
    plan = mixed.cli("plan", "-i", str(mixed.inventory)).out
    assert f"t4-2  1 GPU  host driver {VERSION}" in plan
    assert f"host driver {VERSION} on t4-2" in plan


def test_every_node_gets_the_driver_that_suits_it(mixed: SandboxWorld) -> None:
    mixed.apply(check=True)
    assert driver_pods(mixed) == {"t4-1", "h100-1"}
    assert OWN.items() <= labels(mixed, "t4-2").items()
    everything_works(mixed)
    rows = {row["node"]: row for row in mixed.status()["nodes"]}
    assert (rows["t4-2"]["driver"], rows["t4-2"]["driver_on_host"]) == (VERSION, True)
    assert not rows["t4-1"]["driver_on_host"]


@pytest.mark.parametrize("arguments", [(), ("--cluster-only",)], ids=["hosts and cluster", "cluster only"])
def test_the_second_run_changes_nothing(mixed: SandboxWorld, arguments: tuple[str, ...]) -> None:
    """The modules that containers have loaded by now are no driver of the host's; the labels tell the same."""
    before = len(mixed.writes())
    answer = mixed.apply("--json", *arguments, check=True).document
    assert len(mixed.writes()) == before
    assert answer["warnings"] == []


def test_pyinfra_sees_it_as_well(mixed: SandboxWorld) -> None:
    """It executes and its dry run alike."""
    before = len(mixed.writes())
    second = mixed.pyinfra("-y", check=True).text
    assert len(mixed.writes()) == before
    assert "Success" not in second.partition("Beginning operation run")[2].partition("Results")[0]
    on_host(mixed, "t4-2", f"{_REMOVED}; reboot")
    assert "driver container on t4-2" in mixed.pyinfra("--dry", "--diff", check=True).text
    on_host(mixed, "t4-2", f"{_INSTALLED}; reboot")


def test_a_node_whose_own_driver_was_removed_gets_the_container(mixed: SandboxWorld) -> None:
    """Not before it is unloaded: that would end what uses it."""
    on_host(mixed, "t4-2", _REMOVED)
    early = mixed.apply()
    assert early.code == 1
    assert "GP411" in early.text
    reboot(mixed, "t4-2")
    mixed.apply(check=True)
    assert driver_pods(mixed) == {"t4-1", "t4-2", "h100-1"}
    assert not OWN.items() & labels(mixed, "t4-2").items()
    everything_works(mixed)


def test_a_node_switches_to_its_own_driver_at_the_next_boot(mixed: SandboxWorld) -> None:
    on_host(mixed, "t4-1", _INSTALLED)
    early = mixed.apply("--json", check=True).document
    assert [warning["code"] for warning in early["warnings"]] == ["GP412"]
    assert "t4-1" in driver_pods(mixed)
    reboot(mixed, "t4-1")
    mixed.apply(check=True)
    mixed.until(lambda: driver_pods(mixed) == {"t4-2", "h100-1"})
    assert OWN.items() <= labels(mixed, "t4-1").items()
    everything_works(mixed)


def test_where_no_host_is_read_the_driver_manager_tells(new_world: Callable[..., World]) -> None:
    """The first run guesses, and says so; it ends well, and the label that the node has got is believed for good."""
    world = new_world(**with_own_driver("t4-2"))
    world.settings(driver={"enabled": "auto"})
    first = world.apply("--cluster-only", "--json", check=True).document
    assert [warning["code"] for warning in first["warnings"]] == ["GP410"]
    assert labels(world, "t4-2")["nvidia.com/gpu.deploy.driver"] == "pre-installed"
    world.until(lambda: driver_pods(world) == {"t4-1", "h100-1"})  # the pod on t4-2 takes its time to end
    everything_works(world)
    before = len(world.writes())
    second = world.apply("--cluster-only", "--json", check=True).document
    assert len(world.writes()) == before
    assert second["warnings"] == []


_INDEX = "/lib/modules/$(uname -r)/modules.dep"
_REMOVED = f"rm /.sandbox/nvidia; sed -i /nvidia.ko/d {_INDEX}"
_INSTALLED = f"echo {VERSION} >/.sandbox/nvidia; echo 'kernel/drivers/nvidia.ko:' >>{_INDEX}"
