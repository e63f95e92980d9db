"""A pool for any GPUs: nodes that no other pool gets, such as those of an autoscaler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.scenarios.world import World

POOL = "any"


def open_world(new_world: Callable[..., World], listed: list[str]) -> World:
    """Return a world whose inventory lists some T4s, and has a pool for all other GPUs."""
    world = new_world()
    pools = {"t4": {"gpu": {"model": "T4", "count": 1}}, POOL: {"gpu": {}}}
    world.settings(nodes=[{"name": name, "pool": "t4"} for name in listed])
    world.replace("pools", {name: pool for name, pool in pools.items() if listed or name == POOL})
    return world


def pools_of(world: World) -> dict[str, str]:
    return {row["node"]: row["pool"] for row in world.status()["nodes"] if row["pool"]}


def leave_and_join(world: World, name: str) -> Callable[[], None]:
    """Delete a Node; the result lets its kubelet register again."""
    node: dict[str, Any] = world.json("node", name)
    world.api.delete("node", name)
    metadata = {"name": name, "labels": node["metadata"]["labels"]}
    again = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}, "status": node["status"]}
    return lambda: world.api.create([again], manager="kubelet")


def test_all_gpu_nodes_fall_to_a_pool_for_any_gpus(new_world: Callable[..., World]) -> None:
    """The first run installs Node Feature Discovery, which says what nodes have; it does not end before."""
    world = open_world(new_world, [])
    world.apply("--cluster-only", check=True)
    assert pools_of(world) == {"t4-1": POOL, "t4-2": POOL, "h100-1": POOL}
    rows = {
        row["node"]: (row["state"], row["gpu"], row["allocatable"]) for row in world.status()["nodes"] if row["pool"]
    }
    assert rows["h100-1"] == ("ready", "NVIDIA-H100-80GB-HBM3", 8)
    assert world.apply("--cluster-only", "--json", check=True).document["changed"] == 0


def test_a_node_that_joins_falls_to_the_pool_and_the_plan_says_so(new_world: Callable[..., World]) -> None:
    """A node that is listed belongs to its own pool."""
    world = open_world(new_world, ["t4-1", "t4-2"])
    join = leave_and_join(world, "h100-1")
    world.apply("--cluster-only", check=True)
    join()
    world.until(
        lambda: "feature.node.kubernetes.io/pci-10de.present" in world.json("node", "h100-1")["metadata"]["labels"]
    )
    assert "h100-1 falls to the pool any" in world.plan().text
    world.apply("--cluster-only", check=True)
    assert pools_of(world) == {"t4-1": "t4", "t4-2": "t4", "h100-1": POOL}
    assert world.json("node", "h100-1")["status"]["allocatable"]["nvidia.com/gpu"] == "8"
    assert "falls to the pool" not in world.plan().text
