"""A fleet of amd64 and arm64 nodes: the architecture of a node decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.scenarios.world import World, default_fleet

GRACE = {
    "name": "grace-1",
    "architecture": "arm64",
    "os": "ubuntu24.04",
    "kernel": "6.8.0-45-generic",
    "gpu": {"model": "GB200", "count": 4},
}
POOLS: dict[str, Any] = {
    "t4": {"os": "ubuntu22.04", "gpu": {"model": "T4", "count": 1}},
    "h100": {"gpu": {"model": "H100", "count": 8}},
    "grace": {"gpu": {"model": "GB200", "count": 4}},
}
PRECOMPILED = {"use_precompiled": True, "version": "595"}
NO_MATCH = (
    "rpc error: code = NotFound desc = failed to pull and unpack image: no match for platform in manifest: not found"
)


def mixed(new_world: Callable[..., World], t4: str = "amd64", **fleet: Any) -> World:
    """Return a world with an arm64 node beside those of the default fleet; the T4s may be arm64 as well."""
    nodes = [*default_fleet()["nodes"], GRACE]
    nodes = [{**node, "architecture": t4} if node["name"].startswith("t4-") else node for node in nodes]
    world = new_world(nodes=nodes, **fleet)
    members = {"t4-1": "t4", "t4-2": "t4", "h100-1": "h100", "grace-1": "grace"}
    world.settings(pools=POOLS, nodes=[{"name": name, "pool": pool} for name, pool in members.items()])
    world.replace("pools", POOLS)
    return world


def test_a_mixed_fleet_becomes_ready(new_world: Callable[..., World]) -> None:
    """One DaemonSet serves nodes of both; also with precompiled drivers, whose kernels have the same names."""
    world = mixed(new_world)
    world.apply("--cluster-only", check=True)
    states = {row["node"]: (row["state"], row["allocatable"]) for row in world.status()["nodes"] if row["pool"]}
    assert states == {"t4-1": ("ready", 1), "t4-2": ("ready", 1), "h100-1": ("ready", 8), "grace-1": ("ready", 4)}
    assert "everything is as declared" in world.plan().text
    world.settings(driver=PRECOMPILED)
    world.apply("--cluster-only", check=True)
    images = {pod["spec"]["nodeName"]: pod["spec"]["containers"][0]["image"] for pod in world.driver_pods()}
    assert images["grace-1"] == images["h100-1"]
    assert images["grace-1"].endswith(":595-6.8.0-45-generic-ubuntu24.04")


def test_an_image_for_amd64_alone_stops_the_run(new_world: Callable[..., World]) -> None:
    """Before anything is written, with the nodes, the image and the remedy."""
    world = mixed(new_world, t4="arm64")
    world.settings(driver=PRECOMPILED)
    before = len(world.requests())
    run = world.apply("--cluster-only")
    assert run.code == 1
    assert "GP422" in run.text
    assert "t4-1, t4-2" in run.text
    assert "595-5.15.0-122-generic-ubuntu22.04" in run.text
    assert "use_precompiled: false" in run.text
    assert not [each for each in world.requests()[before:] if each.is_write]


def test_a_copy_of_one_platform_is_explained(new_world: Callable[..., World]) -> None:
    """A mirror has the toolkit for amd64; the other nodes become ready."""
    fault = {"fault": "image-pull-fails", "node": "grace-1", "image": "container-toolkit", "message": NO_MATCH}
    world = mixed(new_world, faults=[fault])
    world.settings(toolkit={"timeout": 20})
    run = world.apply("--cluster-only")
    assert run.code == 1
    assert "GP661" in run.text
    assert "the image does not exist for the architecture of the node" in run.text
    ready = {row["node"] for row in world.status()["nodes"] if row["state"] == "ready" and row["pool"]}
    assert ready == {"t4-1", "t4-2", "h100-1"}
