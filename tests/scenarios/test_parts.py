"""Runs that look after some components and some nodes; each test goes on where the last one ended."""

from __future__ import annotations

import pytest

from tests.scenarios.world import World

OPERANDS = ("-n", "gpu-operator-resources")
GPU_NODES = {"h100-1", "t4-1", "t4-2"}


def components(world: World) -> set[str]:
    found = world.json("daemonsets", "-A")["items"]
    return {item["metadata"]["labels"].get("gpu-provision.io/component", "") for item in found}


def labelled(world: World) -> set[str]:
    nodes = world.json("nodes", "-l", "gpu-provision.io/inventory")["items"]
    return {node["metadata"]["name"] for node in nodes}


def validated(world: World) -> set[str]:
    """Return the nodes that have had a validation with a GPU of Kubernetes."""
    return set(world.json("configmap", f"{world.name}-validations", *OPERANDS)["data"])


def drivers(world: World) -> dict[str, str]:
    """Return the driver's version by node; a pod that the scheduler has not placed yet is on none."""
    images = {pod["spec"]["nodeName"]: pod["spec"]["containers"][0]["image"] for pod in world.driver_pods()}
    return {node: image.rpartition(":")[2].partition("-")[0] for node, image in images.items()}


def test_a_target_brings_what_it_requires_and_nothing_else(world: World) -> None:
    """And says so."""
    done = world.apply("--cluster-only", "--target", "driver", check=True)
    assert "GP380" in done.err
    assert "device_plugin" in done.err
    assert components(world) == {"nfd", "driver", "toolkit", "validator"}
    assert drivers(world).keys() == labelled(world) == GPU_NODES


def test_a_limit_leaves_other_nodes_alone(world: World) -> None:
    """What serves all nodes is as declared; a second run has nothing to do."""
    done = world.apply("--cluster-only", "--limit", "t4-1", check=True)
    assert "nodes h100-1, t4-2 (--limit)" in done.err
    assert validated(world) == {"t4-1"}
    assert "gfd" in components(world)
    before = len(world.writes())
    world.apply("--cluster-only", "--limit", "t4-1", check=True)
    assert len(world.writes()) == before
    world.apply("--cluster-only", check=True)
    assert validated(world) == GPU_NODES


@pytest.mark.real  # for the time it takes
def test_a_driver_is_replaced_on_the_nodes_that_were_named(world: World) -> None:
    """The others keep theirs, and what is known of them; what is off by now stays where no run looked at it."""
    world.apply("--cluster-only", check=True)
    world.settings(driver={"version": "580.126.20"}, dcgm_exporter={"enabled": False})
    before = drivers(world)
    assert "is excluded by --limit" in world.plan("--limit", "t4-2", "--target", "driver").out
    world.apply("--cluster-only", "--limit", "t4-2", "--target", "driver", check=True)
    assert drivers(world) == {**before, "t4-2": "580.126.20"}
    assert validated(world) == GPU_NODES
    assert "dcgm_exporter" in components(world)
    world.apply("--cluster-only", check=True)
    assert set(drivers(world).values()) == {"580.126.20"}
    assert "dcgm_exporter" not in components(world)
