"""Nodes that register with the startup taint: a user's pods come only once the node is validated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.scenarios.test_operator import Home
from tests.scenarios.world import USES_GPU, World, default_fleet

pytestmark = pytest.mark.real

TAINT, LABEL = "gpu-provision.io/not-validated", "gpu-provision.io/validated"
OTHER = {"key": "example.com/spot", "effect": "PreferNoSchedule"}
NEW, OLD = "580.178.04", "580.126.20"
Make = Callable[..., World]


def fleet() -> dict[str, Any]:
    """Return the key of the default fleet whose kubelets register GPU nodes with the startup taint, and another one."""
    taints = [{"key": TAINT, "effect": "NoSchedule"}, OTHER]
    return {"nodes": [{**node, "taints": taints} if "gpu" in node else node for node in default_fleet()["nodes"]]}


def node(world: World, name: str) -> dict[str, Any]:
    found: dict[str, Any] = world.json("node", name)
    return found


def taint(world: World, name: str) -> None:
    taints = node(world, name)["spec"].get("taints", [])
    world.api.patch("node", name, patch={"spec": {"taints": [*taints, {"key": TAINT, "effect": "NoSchedule"}]}})


def is_tainted(world: World, name: str) -> bool:
    """Whether a node has the startup taint; the other one has to be there in any case."""
    keys = [taint["key"] for taint in node(world, name)["spec"].get("taints", [])]
    assert OTHER["key"] in keys
    return TAINT in keys


def validated_label(world: World, name: str) -> str:
    """Return what a node says was validated; empty for nothing."""
    return str(node(world, name)["metadata"]["labels"].get(LABEL, ""))


def submit_training(world: World, name: str) -> None:
    world.run_pod(f"training-{name}", USES_GPU, nodeSelector={"kubernetes.io/hostname": name})


def training(world: World, name: str) -> dict[str, Any]:
    found: dict[str, Any] = world.json("pod", "-n", "default", f"training-{name}")
    return found


def scheduled(pod: dict[str, Any]) -> dict[str, Any]:
    """Return whether a pod has found its node, and when or why not."""
    conditions = pod.get("status", {}).get("conditions", ())
    return next((each for each in conditions if each["type"] == "PodScheduled"), {"status": "", "message": ""})


def test_a_users_pod_starts_only_once_its_node_is_validated(new_world: Make) -> None:
    """Where that fails the taint stays, and both the pod and the status say why."""
    world = new_world(**fleet())
    for name in ("t4-1", "t4-2"):
        submit_training(world, name)
    world.fault({"fault": "vectoradd-fails", "node": "t4-2"})
    world.settings(startup_taint={"enabled": True})
    run = world.apply("--cluster-only")
    assert run.code == 1, run.text
    assert "GP511" in run.text, run.text

    pod = world.until(lambda: found if (found := training(world, "t4-1")).get("status", {}).get("startTime") else None)
    assert scheduled(pod)["status"] == "True"
    assert not is_tainted(world, "t4-1")
    assert validated_label(world, "t4-1")
    assert validated_label(world, "t4-1") != validated_label(world, "h100-1")

    assert is_tainted(world, "t4-2")
    assert not validated_label(world, "t4-2")
    world.until(lambda: TAINT in scheduled(training(world, "t4-2"))["message"])  # before, the scheduler lacked a GPU
    rows = {row["node"]: row for row in world.status()["nodes"]}
    assert rows["t4-2"]["reason"].endswith("has the startup taint"), rows["t4-2"]

    world.fault()
    world.apply("--cluster-only", check=True)
    assert not is_tainted(world, "t4-2")
    assert validated_label(world, "t4-2") == validated_label(world, "t4-1")
    written = len(world.writes())
    world.apply("--cluster-only", check=True)
    assert len(world.writes()) == written, "a second run writes nothing"


def test_the_label_follows_what_is_declared_and_goes_with_it(new_world: Make) -> None:
    world = new_world(**fleet())
    world.settings(startup_taint={"enabled": True}, driver={"version": OLD})
    world.apply("--cluster-only", check=True)
    before = validated_label(world, "t4-1")
    world.settings(driver={"version": NEW})
    world.apply("--cluster-only", check=True)
    assert validated_label(world, "t4-1") not in {"", before}
    assert validated_label(world, "t4-1") == validated_label(world, "t4-2")

    taint(world, "t4-1")
    world.settings(startup_taint={"enabled": False})
    world.apply("--cluster-only", check=True)
    assert not is_tainted(world, "t4-1")
    assert not validated_label(world, "t4-1")

    taint(world, "t4-1")
    world.api.label("node", "t4-1", labels={LABEL: before})
    world.give_rights("--destroy")
    world.cli("destroy", "--yes", "--cluster-only", "-i", str(world.inventory), check=True)
    assert not is_tainted(world, "t4-1")
    assert not validated_label(world, "t4-1")


def test_a_controller_sets_and_removes_the_label_of_the_taint(new_world: Make) -> None:
    """A rebooted node is validated again; a label that a user removes comes back."""
    world = new_world(**fleet())
    submit_training(world, "t4-1")
    home = Home(world)
    home.controller()
    home.declare(startup_taint={"enabled": True})
    home.until("Ready")
    assert not any(is_tainted(world, name) for name in ("t4-1", "t4-2", "h100-1"))
    world.until(lambda: training(world, "t4-1").get("status", {}).get("startTime"))
    content = validated_label(world, "t4-2")

    world.api.label("node", "t4-2", labels={LABEL: None})
    world.until(lambda: validated_label(world, "t4-2") == content)

    world.fault({"fault": "vectoradd-fails", "node": "t4-2"}, {"fault": "node-reboots", "node": "t4-2"})
    world.until(lambda: not validated_label(world, "t4-2"))
    world.fault()
    world.until(lambda: validated_label(world, "t4-2") == content)
    assert not is_tainted(world, "t4-2"), "the taint does not come back"
