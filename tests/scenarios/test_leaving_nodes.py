"""Nodes that leave the inventory while pods use their GPUs; each test goes on where the last one ended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import yaml

from gpu_provision.components.labels import DEPLOY_PREFIX, INVENTORY
from gpu_provision.kube.client import connect
from gpu_provision.model.progress import State
from gpu_provision.rollout import states
from tests.scenarios.test_rollouts import Killed, Mortal, applied
from tests.scenarios.world import ANY_TAINT, OPERANDS, USES_GPU, World

NODES = ("t4-1", "t4-2")
MARKS = {INVENTORY, states.STATE, *states.ALL_ANNOTATIONS}


@pytest.fixture(scope="module")
def stack(world: World) -> World:
    world.apply("--cluster-only", check=True)
    return world


def train(world: World, *, allowed: int) -> None:
    """Run a pod on each T4, so many of which may be evicted at a time."""
    t4s = {"nodeSelector": {"nvidia.com/gpu.product": "Tesla-T4"}, **ANY_TAINT, "terminationGracePeriodSeconds": 0}
    world.deploy("train", USES_GPU, replicas=2, **t4s)
    world.budget("train", maxUnavailable=allowed)
    world.until(lambda: trained_on(world) == [*NODES])


def trained_on(world: World) -> list[str]:
    pods = world.json("pods", "-l", "app=train")["items"]
    return sorted(pod["spec"]["nodeName"] for pod in pods if pod["status"].get("phase") == "Running")


def take_out(world: World, *names: str) -> list[dict[str, Any]]:
    """Take nodes out of the inventory, and return what it had of them."""
    declared = yaml.safe_load(world.inventory.read_text())["nodes"]
    world.settings(nodes=[node for node in declared if node["name"] not in names])
    return [node for node in declared if node["name"] in names]


def put_back(world: World, nodes: Iterable[dict[str, Any]]) -> None:
    for node in nodes:
        world.declare(node)


def of_stack(world: World, name: str) -> set[str]:
    """Return what a node has of the stack: labels, annotations, its cordon."""
    node = world.json("node", name)
    keys = {*node["metadata"]["labels"], *node["metadata"].get("annotations", {})}
    found = {key for key in keys if key in MARKS or key.startswith(DEPLOY_PREFIX)}
    return found | ({"cordon"} if node["spec"].get("unschedulable") else set())


def pods_on(world: World, name: str) -> list[str]:
    """Return the pods of DaemonSets that the stack's labels keep on a node."""
    pods = [
        pod["metadata"] for pod in world.json("pods", "-n", OPERANDS)["items"] if pod["spec"].get("nodeName") == name
    ]
    return [pod["name"] for pod in pods if "ownerReferences" in pod]


def test_a_pod_that_cannot_be_evicted_keeps_the_stack(stack: World) -> None:
    """The other node goes at once, as its GPU is idle; the driver that it shared stays for the first one."""
    stack.run_pod("notebook", USES_GPU, nodeName="t4-1")
    stack.until(lambda: stack.json("pod", "notebook")["status"].get("phase") == "Running")
    before = pods_on(stack, "t4-1")
    gone = take_out(stack, *NODES)
    told = stack.plan().out
    assert "removes the GPU stack from node t4-2: 6 pods deleted, in use by no GPU pod" in told
    assert "keeps the stack: default/notebook has no controller that would start it elsewhere" in told
    run = stack.apply("--cluster-only", "--json")
    assert run.code == 1, run.text
    (error,) = run.document["errors"]
    assert error["code"] == "GP513"
    assert "t4-1" in error["what"]
    assert "default/notebook" in error["evidence"]
    assert pods_on(stack, "t4-1") == before
    assert "cordon" not in of_stack(stack, "t4-1")
    assert {row["node"]: row["state"] for row in stack.status()["nodes"]}["t4-1"] == "leaving"
    assert not of_stack(stack, "t4-2")
    put_back(stack, gone)
    stack.api.delete("pod", "notebook", wait=False, gracePeriodSeconds=0)


@pytest.mark.parametrize("writes", [pytest.param(1, marks=pytest.mark.real), 6])  # each, for the time it takes
def test_killed_runs_take_a_pool_off_its_nodes(stack: World, writes: int) -> None:
    """A run that is killed after so many writes is resumed by the next; the DaemonSet goes after the last node."""
    stack.apply("--cluster-only", check=True)
    train(stack, allowed=2)
    gone = take_out(stack, *NODES)
    stack.settings(driver={"upgrade_policy": {"max_parallel_upgrades": 0, "max_unavailable": "100%"}})
    told = stack.plan().out
    assert "removes the GPU stack from nodes t4-1, t4-2: 12 pods deleted, in use by 2 GPU pods (default/train-" in told
    assert "nodes that leave: 2 nodes in 1 wave, 2 pods to evict" in told
    assert "- DaemonSet gpu-operator-resources/nvidia-driver-daemonset-ubuntu22.04" in told
    killed, result = 0, None
    while result is None:
        assert killed < 100, "no way on"
        try:
            result = applied(stack, Mortal(connect(str(stack.account())), writes))
        except Killed:
            killed += 1
        for name in NODES:
            if not pods_on(stack, name):
                assert name not in trained_on(stack)
    assert killed > 10 / writes
    assert {state.state for state in result.states} <= {State.READY}
    for name in NODES:
        assert not of_stack(stack, name)
        stack.until(lambda name=name: not pods_on(stack, name))
    assert not trained_on(stack)
    assert "everything is as declared" in stack.plan().text
    stack.api.delete("deployment,poddisruptionbudget", "train")
    put_back(stack, gone)
