"""Precompiled drivers: each kernel has an image, and a DaemonSet, of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.scenarios.test_side_cars import POOLS
from tests.scenarios.world import World

NEXT = "6.8.0-50-generic"
PRECOMPILED = {"use_precompiled": True, "version": "595"}


def images(world: World) -> dict[str, str]:
    pods = [pod["spec"] for pod in world.driver_pods()]
    return {spec["nodeName"]: spec["containers"][0]["image"].partition(":")[2] for spec in pods}


def daemon_sets(world: World) -> set[str]:
    prefix = "nvidia-driver-daemonset-"
    names = [item["metadata"]["name"] for item in world.json("daemonsets", "-A")["items"]]
    return {name.removeprefix(prefix) for name in names if name.startswith(prefix)}


def test_drivers_become_precompiled_and_follow_kernels(new_world: Callable[..., World]) -> None:
    """From drivers built on the nodes to precompiled ones; then a node boots another kernel."""
    world = new_world()
    world.apply("--cluster-only", check=True)
    world.settings(driver=PRECOMPILED)
    world.apply("--cluster-only", check=True)
    t4, h100 = "595-5.15.0-122-generic-ubuntu22.04", "595-6.8.0-45-generic-ubuntu24.04"
    assert images(world) == {"t4-1": t4, "t4-2": t4, "h100-1": h100}
    assert daemon_sets(world) == {"ubuntu22.04-5.15.0-122-generic", "ubuntu24.04-6.8.0-45-generic"}
    assert "everything is as declared" in world.plan().text
    boots(world, "h100-1", NEXT)
    world.apply("--cluster-only", check=True)
    assert images(world)["h100-1"] == f"595-{NEXT}-ubuntu24.04"
    assert daemon_sets(world) == {"ubuntu22.04-5.15.0-122-generic", f"ubuntu24.04-{NEXT}"}
    assert "everything is as declared" in world.plan().text


def test_a_kernel_without_an_image_is_a_finding(new_world: Callable[..., World]) -> None:
    """The other nodes keep their drivers; with one built on the node, that node is ready again."""
    world = new_world(faults=[{"fault": "image-pull-fails", "image": NEXT}])
    world.settings(driver=PRECOMPILED)
    world.apply("--cluster-only", check=True)
    world.settings(driver={"timeout": 20})
    boots(world, "h100-1", NEXT, {"fault": "image-pull-fails", "image": NEXT})
    assert "h100-1" in world.cli("drift", "-i", str(world.inventory)).text
    run = world.apply("--cluster-only")
    assert run.code == 1
    assert "GP518" in run.text
    assert NEXT in run.text
    built: dict[str, Any] = {
        **POOLS["h100"],
        "driver": {"use_precompiled": False, "version": "595.91.07", "timeout": 60},
    }
    world.settings(pools={**POOLS, "h100": built})
    world.apply("--cluster-only", check=True)
    assert images(world)["h100-1"] == "595.91.07-ubuntu24.04"


def boots(world: World, node: str, kernel: str, *faults: dict[str, Any]) -> None:
    """Reboot a node into another kernel, until Node Feature Discovery names it."""
    world.fault({"fault": "node-reboots", "node": node, "kernel": kernel}, *faults)
    label = "feature.node.kubernetes.io/kernel-version.full"
    world.until(lambda: world.json("node", node)["metadata"]["labels"].get(label) == kernel)
    world.fault(*faults)


@pytest.mark.real  # for the time it takes
def test_a_limited_run_keeps_the_drivers_of_other_nodes(new_world: Callable[..., World]) -> None:
    """The DaemonSet of the previous group stays until its last node has moved."""
    world = new_world()
    world.apply("--cluster-only", check=True)
    before = {pod["spec"]["nodeName"]: pod["metadata"]["uid"] for pod in world.driver_pods()}
    world.settings(driver=PRECOMPILED)
    assert "- DaemonSet" not in world.plan("--limit", "t4-1").out
    world.apply("--cluster-only", "--limit", "t4-1", check=True)
    after = {pod["spec"]["nodeName"]: pod["metadata"]["uid"] for pod in world.driver_pods()}
    assert {node for node, uid in before.items() if after.get(node) != uid} == {"t4-1"}
    world.apply("--cluster-only", check=True)
    assert len(images(world)) == 3
    assert daemon_sets(world) == {"ubuntu22.04-5.15.0-122-generic", "ubuntu24.04-6.8.0-45-generic"}
