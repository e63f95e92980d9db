"""The operands of a node change their versions while what they wait for comes in the worst order."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.scenarios.world import World

Make = Callable[..., World]
_NODE, _OPERANDS = "t4-1", "gpu-operator-resources"
_TOOLKIT, _VALIDATOR = "nvidia-container-toolkit-daemonset", "nvidia-operator-validator"
_VERSIONS = ("v1.18.1", "v1.20.0")
"""The toolkits of the releases 25.10.1 and 26.7.0."""


@pytest.mark.real  # for the time it takes
def test_a_validator_that_ends_late_removes_no_toolkit_file(new_world: Make) -> None:
    """Its end removes what it found out, and its successor needs the runtime that the waiting toolkit sets up."""
    world = new_world()
    there, back = _VERSIONS
    world.settings(
        toolkit={"version": back, "image_pull_policy": "Always"}
    )  # there is something to pull on the way back
    world.apply("--cluster-only", check=True)
    for version in (there, back):
        world.fault({"fault": "image-pull-fails", "node": _NODE, "image": "container-toolkit"})
        world.settings(toolkit={"version": version})
        run = world.start(*world.apply_command, "--cluster-only")
        world.until(partial(_pulls_after_its_check, world, version))
        world.api.delete("pod", "-n", _OPERANDS, *_on_node(_VALIDATOR))
        world.fault()
        text, _ = run.communicate(timeout=300)
        assert run.returncode == 0, text


def _on_node(app: str) -> tuple[str, ...]:
    return "-l", f"app={app}", "--field-selector", f"spec.nodeName={_NODE}"


def _pulls_after_its_check(world: World, version: str) -> bool:
    """Whether the toolkit's new pod has found the driver, and now waits for the image of its main container."""
    pods = world.json("pods", "-n", _OPERANDS, *_on_node(_TOOLKIT))["items"]
    there = [pod for pod in pods if f":{version}" in pod["spec"]["containers"][0]["image"]]
    return any(map(_waits, there))


def _waits(pod: dict[str, Any]) -> bool:
    (status,) = pod["status"].get("containerStatuses") or [{}]
    return "Pull" in status.get("state", {}).get("waiting", {}).get("reason", "")
