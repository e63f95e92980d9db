"""MIG configurations: a node that joins requests its own at once, a node that works gets another one in a rollout."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from tests.scenarios.world import OPERANDS, USES_GPU, World, default_fleet

GPU = "nvidia.com/gpu"
ON_H100 = {"nodeSelector": {"kubernetes.io/hostname": "h100-1"}}


def test_mig_devices_are_changed_as_drivers_are(new_world: Callable[..., World]) -> None:
    world = new_world()
    configure(world, "all-1g.10gb")
    world.apply("--cluster-only", check=True)
    assert offered(world) == "56"
    assert world.apply("--cluster-only", "--json", check=True).document["changed"] == 0
    world.deploy("training", USES_GPU, namespace=OPERANDS, **ON_H100)
    world.until(lambda: [pod for pod in world.pods("training") if pod["status"].get("phase") == "Running"])
    configure(world, "all-3g.40gb")
    plan = world.plan().text
    assert "rollout of MIG devices: 1 node in 1 wave, 1 pod to evict" in plan
    assert "MIG configuration all-1g.10gb -> all-3g.40gb: h100-1" in plan
    drivers = {pod["metadata"]["uid"] for pod in world.driver_pods()}
    assert "Done: MIG configuration all-1g.10gb -> all-3g.40gb on 1 node" in world.apply("--cluster-only").text
    assert offered(world) == "16"
    assert {pod["metadata"]["uid"] for pod in world.driver_pods()} == drivers
    assert not world.json("node", "h100-1")["spec"].get("unschedulable")
    assert world.apply("--cluster-only", "--json", check=True).document["changed"] == 0
    world.give_rights("--destroy")
    world.cli("destroy", "--yes", "--cluster-only", "--evict", "-i", str(world.inventory), check=True)
    left = world.json("node", "h100-1")["metadata"]["labels"]
    assert not [key for key in left if key.startswith("nvidia.com/")]


def test_one_run_is_enough_for_the_mig_manager(new_world: Callable[..., World]) -> None:
    """It goes to the nodes whose GPUs are capable of MIG, which is known only once their driver runs."""
    world = new_world()
    world.settings(mig_manager={"enabled": True})
    world.apply("--cluster-only", check=True)
    assert {pod["spec"]["nodeName"] for pod in world.pods("nvidia-mig-manager")} == {"h100-1"}
    assert world.apply("--cluster-only", "--json", check=True).document["changed"] == 0


def test_a_pool_for_any_gpus_divides_those_it_can(new_world: Callable[..., World]) -> None:
    """A GPU without MIG stays as it is; which nodes have one is known once their driver runs."""
    world = new_world()
    world.settings(nodes=[])
    world.replace("pools", {"any": {"gpu": {}, "mig": {"config": "all-1g.10gb"}}})
    world.apply("--cluster-only", check=True)
    assert offered(world) == "56"
    rows = {row["node"]: (row["state"], row["allocatable"]) for row in world.status()["nodes"] if row["pool"]}
    assert rows["t4-1"] == rows["t4-2"] == ("ready", 1)
    assert "nvidia.com/mig.config" not in world.json("node", "t4-1")["metadata"]["labels"]
    assert world.apply("--cluster-only", "--json", check=True).document["changed"] == 0


@pytest.mark.real  # for the time it takes
def test_a_failed_mig_configuration_is_retried_by_the_next_run(new_world: Callable[..., World]) -> None:
    world = new_world()
    configure(world, "all-1g.10gb")
    world.apply("--cluster-only", check=True)
    configure(world, "all-disabled")
    world.fault({"fault": "mig-fails", "node": "h100-1", "message": "GPU is lost"})
    failed = world.apply("--cluster-only", "--json")
    assert failed.code == 1
    assert [finding["code"] for finding in failed.document["errors"]] == ["GP519"]
    assert world.json("node", "h100-1")["spec"]["unschedulable"], "no pod comes to a node in this condition"
    assert world.apply("--cluster-only", "--json").code == 1, "still the same"
    world.fault()
    world.apply("--cluster-only", check=True)
    assert offered(world) == "8"
    assert world.apply("--cluster-only", "--json", check=True).document["changed"] == 0


@pytest.mark.real  # for the time it takes
def test_another_content_of_the_same_name_is_rolled_out(new_world: Callable[..., World]) -> None:
    world = new_world()
    configure(world, "own", own={"3g.40gb": 2}, mig={"strategy": "mixed"})
    world.apply("--cluster-only", check=True)
    assert offered(world, "nvidia.com/mig-3g.40gb") == "16"
    configure(world, "own", own={"2g.20gb": 3})
    assert re.search("MIG configuration own-[0-9a-f]+ -> own-[0-9a-f]+: h100-1", world.plan().text)
    world.apply("--cluster-only", check=True)
    assert offered(world, "nvidia.com/mig-2g.20gb") == "24"
    assert world.apply("--cluster-only", "--json", check=True).document["changed"] == 0


def test_a_configuration_that_was_imported_moves_no_pod(new_world: Callable[..., World]) -> None:
    """The GPU Operator's request has the plain name: the label changes once the new MIG manager knows the other one."""
    world = new_world()
    configure(world, "own", own={"3g.40gb": 2}, mig={"strategy": "mixed"})
    world.apply("--cluster-only", check=True)
    world.api.label("node", "h100-1", labels={"nvidia.com/mig.config": "own"})
    world.deploy("training", {"resources": {"limits": {"nvidia.com/mig-3g.40gb": "1"}}}, namespace=OPERANDS, **ON_H100)
    world.until(lambda: [pod for pod in world.pods("training") if pod["status"].get("phase") == "Running"])
    before = {pod["metadata"]["uid"] for pod in (*world.pods("training"), *world.driver_pods())}
    configure(world, "own", own={"3g.40gb": 2}, mig_manager={"env": {"NEW": "1"}})
    plan = world.plan().text
    assert "MIG configuration" not in plan
    assert re.search("nvidia.com/mig.config.*own -> own-[0-9a-f]+", plan)
    world.apply("--cluster-only", check=True)
    assert re.fullmatch("own-[0-9a-f]+", world.json("node", "h100-1")["metadata"]["labels"]["nvidia.com/mig.config"])
    assert {pod["metadata"]["uid"] for pod in (*world.pods("training"), *world.driver_pods())} == before
    assert world.apply("--cluster-only", "--json", check=True).document["changed"] == 0


@pytest.mark.real  # for the time it takes
def test_mig_devices_of_a_host_driver_are_rolled_out(new_world: Callable[..., World]) -> None:
    """There is no driver pod. GPUs may be in use before the stack comes, so the first request is rolled out, too."""
    *nodes, h100 = default_fleet()["nodes"]
    world = new_world(nodes=[*nodes, {**h100, "host": {**h100.get("host", {}), "driver": "580.126.20"}}])
    configure(world, "all-1g.10gb", driver={"enabled": False})
    world.apply("--cluster-only", check=True)
    assert offered(world) == "56"
    configure(world, "all-disabled")
    assert "MIG configuration all-1g.10gb -> all-disabled: h100-1" in world.plan().text
    world.apply("--cluster-only", check=True)
    assert offered(world) == "8"
    assert not world.json("node", "h100-1")["spec"].get("unschedulable")
    assert world.apply("--cluster-only", "--json", check=True).document["changed"] == 0


def configure(
    world: World, config: str, own: dict[str, int] | None = None, driver: dict[str, Any] | None = None, **settings: Any
) -> None:
    """Declare the configuration of the pool h100, with ``own`` devices if it is one of the inventory."""
    pools = yaml.safe_load(world.inventory.read_text())["pools"]
    data = {"version": "v1", "mig-configs": {config: [{"devices": "all", "mig-enabled": True, "mig-devices": own}]}}
    settings |= {"mig_manager": {"config": {"data": data}}} if own else {}
    h100 = {**pools["h100"], "mig": {"config": config}, **({"driver": driver} if driver else {})}
    world.settings(pools={"h100": h100}, **settings)


def offered(world: World, resource: str = GPU) -> str:
    return str(world.json("node", "h100-1")["status"]["allocatable"].get(resource))
