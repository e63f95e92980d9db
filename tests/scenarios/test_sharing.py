"""GPUs that pods share: time slicing and MPS, by default and by pool, and changes of both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.scenarios.world import World

MPS = "nvidia-device-plugin-mps-control-daemon"
PLUGIN = "nvidia-device-plugin-daemonset"


def shared(replicas: int, kind: str = "timeSlicing", **more: Any) -> dict[str, Any]:
    return {
        "version": "v1",
        "sharing": {kind: {"resources": [{"name": "nvidia.com/gpu", "replicas": replicas}], **more}},
    }


def offered(world: World, node: str, resource: str = "nvidia.com/gpu") -> str:
    return str(world.json("node", node)["status"]["allocatable"].get(resource, ""))


def plugins(world: World) -> dict[str, str]:
    return {pod["spec"]["nodeName"]: pod["metadata"]["uid"] for pod in world.pods(PLUGIN)}


def choose(world: World, pool: str, configuration: str | None) -> None:
    """Let a pool choose a configuration."""
    world.settings_of_pool(pool, device_plugin={"config": configuration} if configuration else None)


def test_a_choice_of_a_pool_reaches_its_nodes_without_a_restart(new_world: Callable[..., World]) -> None:
    """The side-car of the plugin follows the label; what the node offers shows that the plugin has read it."""
    world = new_world()
    configs = {"four": shared(4), "two": shared(2, renameByDefault=True)}
    world.settings(device_plugin={"config": {"default": "four", "data": configs}})
    world.apply("--cluster-only", check=True)
    assert [offered(world, node) for node in ("t4-1", "h100-1")] == ["4", "32"]
    before = plugins(world)
    choose(world, "h100", "two")
    plan = world.plan().text
    assert "nvidia.com/device-plugin.config" in plan
    assert "will restart pods" not in plan
    world.apply("--cluster-only", check=True)
    assert offered(world, "h100-1", "nvidia.com/gpu.shared") == "16"
    assert (offered(world, "h100-1"), offered(world, "t4-1")) == ("0", "4")
    assert plugins(world) == before
    assert world.apply("--cluster-only", "--json", check=True).document["changed"] == 0
    choose(world, "h100", None)
    world.apply("--cluster-only", check=True)
    assert offered(world, "h100-1") == "32"
    assert "nvidia.com/device-plugin.config" not in world.json("node", "h100-1")["metadata"]["labels"]


@pytest.mark.real  # for the time it takes
def test_another_content_restarts_the_plugins(new_world: Callable[..., World]) -> None:
    world = new_world()
    world.settings(device_plugin={"config": {"default": "all", "data": {"all": shared(4)}}})
    world.apply("--cluster-only", check=True)
    before = plugins(world)
    world.settings(device_plugin={"config": {"default": "all", "data": {"all": shared(8)}}})
    assert "will restart pods on 3 nodes" in world.plan().text
    world.apply("--cluster-only", check=True)
    assert not set(before.values()) & set(plugins(world).values())
    assert offered(world, "t4-1") == "8"


def test_mps_runs_where_a_configuration_declares_it(new_world: Callable[..., World]) -> None:
    """On no other node, and not longer than that."""
    world = new_world()
    world.settings(device_plugin={"config": {"data": {"many": shared(10, "mps")}}})
    choose(world, "t4", "many")
    world.apply("--cluster-only", check=True)
    assert sorted(pod["spec"]["nodeName"] for pod in world.pods(MPS)) == ["t4-1", "t4-2"]
    assert [offered(world, node) for node in ("t4-1", "h100-1")] == ["10", "8"]
    labels = world.json("node", "t4-1")["metadata"]["labels"]
    assert (labels["nvidia.com/mps.capable"], labels["nvidia.com/gpu.sharing-strategy"]) == ("true", "mps")
    assert world.apply("--cluster-only", "--json", check=True).document["changed"] == 0
    world.settings(device_plugin={"config": {"data": {"many": shared(10)}}})
    world.apply("--cluster-only", check=True)
    world.until(lambda: not world.pods(MPS))
    assert offered(world, "t4-1") == "10"
