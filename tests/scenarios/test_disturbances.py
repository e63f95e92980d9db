"""Other clients change the cluster during a run: it ends, reports what happened, and the next one repairs it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpu_provision.kube.client import connect
from gpu_provision.model.cluster import ObjectRef
from tests.scenarios.world import OPERANDS, World

Make = Callable[..., World]


@pytest.mark.real  # for the time it takes
def test_pods_deleted_during_a_run_are_recreated(new_world: Make) -> None:
    """The driver of every node, and the validator of one before it has ended."""
    world = new_world(timings={"speed": 6})
    run = world.start(*world.apply_command, "--cluster-only")
    world.until(lambda: world.pods("nvidia-driver-daemonset"))
    world.api.delete("pods", "-n", OPERANDS, "-l", "app=nvidia-driver-daemonset", wait=False)
    validation, *_ = world.until(lambda: world.pods("nvidia-operator-validator"))
    world.api.delete("pod", "-n", OPERANDS, validation["metadata"]["name"], wait=False)
    out, _ = run.communicate(timeout=300)
    assert run.returncode == 0, out
    states = {row["node"]: row["state"] for row in world.status()["nodes"]}  # one that had passed by then is on record
    assert states["t4-1"] == states["t4-2"] == states["h100-1"] == "ready", states


def test_a_daemonset_deleted_during_a_run_is_recreated(new_world: Make) -> None:
    world = new_world(timings={"speed": 6})
    world.fault({"fault": "driver-slow", "seconds": 30})  # the run goes on until the DaemonSet is gone
    run = world.start(*world.apply_command, "--cluster-only")
    world.until(lambda: world.pods("nvidia-operator-validator"))
    world.api.delete("daemonset", "-n", OPERANDS, "nvidia-dcgm-exporter")
    out, _ = run.communicate(timeout=300)
    assert run.returncode == 0, out
    exporter = ("daemonset", "nvidia-dcgm-exporter", "-n", OPERANDS)
    world.until(lambda: world.json(*exporter)["status"]["numberReady"] == 3)  # a run looks at pods, not at this


@pytest.mark.real  # for the time it takes
def test_what_is_deleted_again_and_again_is_named(new_world: Make) -> None:
    """Its component fails within its deadline, the rest is finished, and the next run puts it back."""
    world = new_world(timings={"speed": 6})
    world.settings(dcgm_exporter={"timeout": 4})
    run = world.start(*world.apply_command, "--cluster-only")
    administrator = connect(str(world.kubeconfig))  # kubectl takes so long to start that the pods could get ready

    def is_over_although_it_is_deleted() -> bool:
        administrator.delete(ObjectRef("apps/v1", "DaemonSet", OPERANDS, "nvidia-dcgm-exporter"))
        return run.poll() is not None

    world.until(is_over_although_it_is_deleted, seconds=300)
    out, _ = run.communicate(timeout=300)
    assert run.returncode == 1, out
    assert "dcgm_exporter failed" in out
    world.settings(dcgm_exporter={"timeout": 60})
    again = world.apply("--cluster-only")
    assert again.code == 0, again.text


def test_a_node_lost_during_a_run_is_named_and_others_finish(new_world: Make) -> None:
    """An autoscaler takes nodes whenever it likes."""
    world = new_world(timings={"speed": 4})
    world.fault({"fault": "driver-slow", "node": "t4-2", "seconds": 600})
    run = world.start(*world.apply_command, "--cluster-only", "--json")
    world.until(lambda: world.pods("nvidia-driver-daemonset"))
    world.api.delete("node", "t4-2")
    out, _ = run.communicate(timeout=300)
    assert run.returncode == 1, out
    states = {row["node"]: row["state"] for row in world.status()["nodes"]}
    assert states["t4-1"] == states["h100-1"] == "ready", states
    assert "t4-2" in out
