"""An autoscaler replaces nodes: one is deleted, and another one with a new name and uid joins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpu_provision.rollout.states import UPGRADE_ANNOTATIONS
from tests.scenarios.test_any_gpus import POOL, pools_of
from tests.scenarios.test_operator import Home
from tests.scenarios.test_rollouts import nodes, uids, versions
from tests.scenarios.world import World, default_fleet

Make = Callable[..., World]
OLD, NEW = "580.126.20", "580.178.04"
GPU_SEEN = "feature.node.kubernetes.io/pci-10de.present"
KUBELETS = ("kubernetes.io/", "node.kubernetes.io/", "beta.kubernetes.io/", "node-role.kubernetes.io/")
NEW_NODES = ("new-1", "new-2")
T4 = {"model": "Tesla T4", "count": 1}
FLEET = {"nodes": [*default_fleet()["nodes"], *({"name": name, "gpu": T4} for name in NEW_NODES)]}


class Autoscaler:
    """A world of which some nodes have not joined yet; `replace` lets one of them take the place of another node."""

    def __init__(self, world: World) -> None:
        self.world, self._absent = world, {name: leave(world, name) for name in NEW_NODES}

    def replace(self, old: str, new: str) -> None:
        self.world.api.delete("node", old)
        self.world.api.create([self._absent[new]], manager="kubelet")

    def is_seen(self) -> bool:
        """Whether Node Feature Discovery has seen the GPU of the new node."""
        return GPU_SEEN in self.world.json("node", "new-1")["metadata"]["labels"]


def leave(world: World, name: str) -> dict[str, Any]:
    """Delete a Node, and return the one that its kubelet would register."""
    node = world.json("node", name)
    world.api.delete("node", name)
    own = {key: value for key, value in node["metadata"]["labels"].items() if key.startswith(KUBELETS)}
    another = {"metadata": {"name": name, "labels": own}, "spec": {}, "status": node["status"]}
    return {"apiVersion": "v1", "kind": "Node", **another}


def any_gpus(world: World, **settings: Any) -> Autoscaler:
    world.settings(nodes=[], **settings)
    world.replace("pools", {POOL: {"gpu": {}}})
    return Autoscaler(world)


def driver_state(world: World, node: str) -> str:
    return str(world.json("node", node)["metadata"]["labels"].get("nvidia.com/gpu-driver-upgrade-state", ""))


def slow_driver(node: str) -> dict[str, Any]:
    """Hold the upgrade of a node that is about to go."""
    return {"fault": "driver-slow", "node": node, "seconds": 600}


def assert_settled(world: World, *names: str) -> None:
    """These nodes, and no other ones, have the new driver, no cordon and no memory of the upgrade."""
    world.until(lambda: uids(world).keys() == {*names}, seconds=240)  # pods of a deleted node go within a minute
    assert nodes(world).keys() == {*names}
    assert versions(world) == {NEW}
    for node in nodes(world).values():
        assert not node["spec"].get("unschedulable")
        assert not set(UPGRADE_ANNOTATIONS) & set(node["metadata"].get("annotations", {}))


def test_a_node_replaced_during_a_run_fails_nothing(new_world: Make) -> None:
    """The run forgets the node that went; the new one is provisioned by this run or by the next."""
    world = new_world(**FLEET, timings={"speed": 6})
    autoscaler = any_gpus(world)
    run = world.start(*world.apply_command, "--cluster-only")
    world.until(lambda: "t4-2" in uids(world))
    autoscaler.replace("t4-2", "new-1")
    out, _ = run.communicate(timeout=300)
    assert run.returncode == 0, out
    world.until(autoscaler.is_seen)
    world.apply("--cluster-only", check=True)
    assert pools_of(world) == dict.fromkeys(["t4-1", "h100-1", "new-1"], POOL)
    assert {row["state"] for row in world.status()["nodes"] if row["pool"]} == {"ready"}
    assert world.apply("--cluster-only", "--json", check=True).document["changed"] == 0


@pytest.mark.real  # for the time it takes
def test_a_node_replaced_during_a_rollout_gives_up_its_slot(new_world: Make) -> None:
    """The node that goes is the one that is upgraded; the others are upgraded, and the new one has the new driver."""
    world = new_world(**FLEET, timings={"speed": 12})
    autoscaler = any_gpus(world, driver={"version": OLD, "upgrade_policy": {"max_parallel_upgrades": 1}})
    world.apply("--cluster-only", check=True)
    world.settings(driver={"version": NEW})
    world.fault(slow_driver("t4-2"))
    run = world.start(*world.apply_command, "--cluster-only")
    world.until(lambda: driver_state(world, "t4-2") in {"pod-restart-required", "validation-required"})
    autoscaler.replace("t4-2", "new-1")
    out, _ = run.communicate(timeout=300)
    assert run.returncode == 0, out
    world.until(autoscaler.is_seen)
    world.apply("--cluster-only", check=True)
    assert_settled(world, "t4-1", "h100-1", "new-1")
    assert "everything is as declared" in world.plan().text


@pytest.mark.real
def test_the_controller_provisions_a_replaced_node(new_world: Make) -> None:
    """Between two runs, and again during a rollout."""
    world = new_world(**FLEET, timings={"speed": 12})
    autoscaler = any_gpus(world, driver={"version": OLD})
    home = Home(world)
    home.controller()
    home.declare()
    home.until("Ready")
    autoscaler.replace("t4-2", "new-1")
    world.until(lambda: home.status().get("nodes", {}).get("summary") == "3/3" and "new-1" in uids(world))
    home.until("Ready")
    world.fault(slow_driver("new-1"))
    home.declare(driver={"version": NEW})
    world.until(lambda: driver_state(world, "new-1") == "pod-restart-required")
    autoscaler.replace("new-1", "new-2")
    world.until(lambda: home.status().get("nodes", {}).get("summary") == "3/3" and "new-2" in uids(world))
    home.until("Ready")
    assert_settled(world, "t4-1", "h100-1", "new-2")
