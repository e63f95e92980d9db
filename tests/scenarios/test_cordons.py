"""A cordon of another owner stays: whatever happens to the node."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.scenarios.world import World

Make = Callable[..., World]
_NODE = "t4-1"


@pytest.mark.real  # for the time it takes
def test_a_cordon_that_was_there_first_is_there_after_everything(new_world: Make) -> None:
    """The driver manager lifts any cordon that it finds once its driver is loaded, unless evictions are not its job."""
    world = new_world()
    world.api.cordon(_NODE)
    steps = {
        "the first apply": lambda: world.apply("--cluster-only", check=True),
        "another one": lambda: world.apply("--cluster-only", check=True),
        "another driver": lambda: _with_another_driver(world),
        "a driver pod that is deleted": lambda: _without_its_driver_pod(world),
        "the removal": lambda: _without_the_stack(world),
    }
    for name, step in steps.items():
        step()
        cordoned = [
            item["metadata"]["name"] for item in world.json("nodes")["items"] if item["spec"].get("unschedulable")
        ]
        assert cordoned == [_NODE], name


def _with_another_driver(world: World) -> None:
    world.settings(driver={"version": "580.126.20", "upgrade_policy": {"max_unavailable": "100%"}})
    world.apply("--cluster-only", check=True)


def _without_its_driver_pod(world: World) -> None:
    of_node = ("-l", "app=nvidia-driver-daemonset", "--field-selector", f"spec.nodeName={_NODE}")
    world.api.delete("pod", "-n", "gpu-operator-resources", *of_node)
    world.apply("--cluster-only", check=True)


def _without_the_stack(world: World) -> None:
    world.give_rights("--destroy")
    world.cli("destroy", "--yes", "--cluster-only", "-i", str(world.inventory), check=True)
