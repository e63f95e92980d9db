"""Modules beside the driver: a node is ready only with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.scenarios.world import World, default_fleet

RDMA = {"driver": {"rdma": {"enabled": True}}}


def with_network_card() -> list[dict[str, Any]]:
    *others, h100 = default_fleet()["nodes"]
    return [*others, {**h100, "host": {"mellanox": True}}]


def test_a_fleet_gets_modules_beside_its_drivers(new_world: Callable[..., World]) -> None:
    """RDMA and GDS in the pool with network cards only; on a stack that runs, this is a rollout like any other."""
    world = new_world(nodes=with_network_card())
    world.apply("--cluster-only", check=True)
    world.settings(
        gdrcopy={"enabled": True}, pools={**POOLS, "h100": {**POOLS["h100"], **RDMA, "gds": {"enabled": True}}}
    )
    assert "3 drivers to replace" in world.plan().text
    world.apply("--cluster-only", check=True)
    names = {
        pod["spec"]["nodeName"]: [each["name"] for each in pod["spec"]["containers"]] for pod in world.driver_pods()
    }
    assert names == {
        "t4-1": ["nvidia-driver-ctr", "nvidia-gdrcopy-ctr"],
        "t4-2": ["nvidia-driver-ctr", "nvidia-gdrcopy-ctr"],
        "h100-1": ["nvidia-driver-ctr", "nvidia-peermem-ctr", "nvidia-fs-ctr", "nvidia-gdrcopy-ctr"],
    }
    assert "everything is as declared" in world.plan().text


def test_a_node_without_its_module_is_not_ready(new_world: Callable[..., World]) -> None:
    """The driver itself works there, and the reference's validator would be content."""
    world = new_world()
    world.fault({"fault": "crash-loop", "node": "t4-2", "image": "nvidia-fs"})
    world.settings(gds={"enabled": True}, driver={"timeout": 20})
    run = world.apply("--cluster-only", "--json")
    assert run.code == 1
    assert "nvidia-fs-ctr" in run.text
    rows = {row["node"]: row["state"] for row in world.status()["nodes"]}
    assert (rows["t4-1"], rows["t4-2"]) == ("ready", "progressing")
    world.fault()
    world.settings(driver={"timeout": 300})
    world.apply("--cluster-only", check=True)


POOLS: dict[str, Any] = {
    "t4": {"os": "ubuntu22.04", "gpu": {"model": "T4", "count": 1}},
    "h100": {"os": "ubuntu24.04", "gpu": {"model": "H100", "count": 8}},
    "cpu": {},
    "control": {},
}
