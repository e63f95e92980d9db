"""The status of a stack without a run: a row for each node and component."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpu_provision.components.labels import DRIVER_VERSION, NOT_VALIDATED
from gpu_provision.model.cluster import ClusterFacts
from gpu_provision.model.progress import NodeStatus, OutsideState, State
from gpu_provision.planning.states import evaluate_states
from gpu_provision.reconcile.status import component_rows, node_rows
from tests.components.builders import DRIVER, NODES, POOLS, fleet, inventory, inventory_with, with_spec
from tests.planning.builders import Stack, labelled, with_node

TAINT = {"key": NOT_VALIDATED, "effect": "NoSchedule"}
NO_GPU = "no GPU: gets no GPU component"


@pytest.mark.parametrize(
    ("node", "fields", "reason"),
    [
        ("cpu-1", {}, NO_GPU),
        ("cpu-1", {"unschedulable": True}, NO_GPU),  # a cordon has its own column
        ("cpu-1", {"ready": False}, "NotReady"),
        ("cpu-1", {"taints": ({"key": "team"},)}, NO_GPU),
        ("cpu-1", {"taints": (TAINT,)}, "has the startup taint"),
        ("t4-1", {"taints": (TAINT,)}, "node_labels: labels are not written yet; has the startup taint"),
    ],
)
def test_a_node_row_names_what_keeps_pods_off(node: str, fields: dict[str, Any], reason: str) -> None:
    assert row_of(Stack(facts=with_node(labelled(), node, **fields)), node).reason == reason


def row_of(stack: Stack, node: str) -> NodeStatus:
    seen = stack.situation
    return next(row for row in node_rows(seen, evaluate_states(seen)) if row.node == node)


def with_label(facts: ClusterFacts, node: str, **labels: str) -> ClusterFacts:
    found = next(each for each in facts.nodes if each.name == node)
    return with_node(facts, node, labels={**found.labels, **labels})


def loaded(stack: Stack) -> str:
    """Return which driver a stack's row of t4-1 shows."""
    return row_of(stack, "t4-1").driver


STALE = {DRIVER_VERSION: "580.126.20"}


def test_a_driver_is_shown_while_its_pod_is_ready() -> None:
    """The label of GPU Feature Discovery outlives the driver, so it is not asked."""
    stack = Stack(facts=with_label(labelled(), "t4-1", **STALE))
    assert loaded(stack) == "595.91.07"
    stack.put({**stack.pod("driver", "t4-1"), "status": {"phase": "Running"}})
    assert loaded(stack) == ""
    stack.remove(stack.pod("driver", "t4-1"))
    assert loaded(stack) == ""


@pytest.mark.parametrize(
    ("image", "driver"),
    [
        ("nvcr.io/nvidia/driver:595-6.8.0-60-generic-ubuntu22.04", "595.91.07"),
        ("localhost:5000/driver", "595.91.07"),
        ("nvcr.io/nvidia/driver@sha256:0123", "595.91.07"),
        ("nvcr.io/nvidia/driver:590.10-ubuntu22.04", "590.10"),
        ("r.example.com/driver:my-build-7-ubuntu22.04", "595.91.07"),
        ("r.example.com/driver:2026.1-ubuntu22.04", "595.91.07"),
    ],
)
def test_the_label_completes_what_the_pod_leaves_open(image: str, driver: str) -> None:
    stack = Stack(facts=with_label(labelled(), "t4-1", **{DRIVER_VERSION: "595.91.07"}))
    pod = stack.pod("driver", "t4-1")
    stack.put({**pod, "spec": {**pod["spec"], "containers": [{"name": "nvidia-driver-ctr", "image": image}]}})
    assert loaded(stack) == driver


def test_a_driver_of_the_host_is_as_read_or_as_labelled_now() -> None:
    chosen = with_spec("driver", enabled=False)
    stack = Stack(chosen, with_label(labelled(chosen=chosen), "t4-1", **STALE))
    assert loaded(stack) == "580.126.20"
    for component in ("gfd", "validator"):
        assert loaded(stack)
        stack.remove(stack.pod(component, "t4-1"))
    assert loaded(stack) == "", "nothing that needs a driver is ready"


def test_versions_are_those_of_the_pools_where_they_differ() -> None:
    other = replace(DRIVER, image=replace(DRIVER.image, version="590.1"))
    pools = {**POOLS, "h100": replace(POOLS["h100"], driver=other)}
    for chosen, versions in ((inventory(), {}), (inventory(pools=pools), {"t4": "595.91.07", "h100": "590.1"})):
        seen = Stack(chosen).situation
        rows = {row.component: row for row in component_rows(seen, evaluate_states(seen))}
        assert rows["driver"].versions == versions
        assert rows["driver"].version == "595.91.07"
        assert rows["toolkit"].versions == {}


def test_a_node_of_a_pool_for_any_gpus_has_a_gpu() -> None:
    """Its model is unknown without GPU Feature Discovery."""
    chosen = inventory_with({"pools": {"any": {"gpu": {}}}, "nodes": [], "gfd": {"enabled": False}})
    row = row_of(Stack(chosen, labelled(chosen=chosen)), "t4-1")
    assert (row.pool, row.state, row.gpu, row.reason) == ("any", State.READY, "any", "")


def test_a_node_that_left_is_never_ready() -> None:
    """First it still carries the stack; then it has a GPU that nothing looks after."""
    stack = Stack(inventory(nodes=tuple(each for each in NODES if each.name != "t4-1")), labelled())
    row = row_of(stack, "t4-1")
    assert (row.pool, row.state, row.driver) == ("", State.LEAVING, "595.91.07")
    assert "still has driver, toolkit" in row.reason
    stack.pods = {ref: pod for ref, pod in stack.pods.items() if pod["spec"]["nodeName"] != "t4-1"}
    row = row_of(stack, "t4-1")
    assert (row.state, row.driver, row.reason) == (
        State.LEAVING,
        "",
        "no longer in the inventory; still has its labels",
    )
    gone = Stack(stack.inventory, with_label(fleet(), "t4-1", **STALE))
    row = row_of(gone, "t4-1")
    assert (row.state, row.driver, row.reason) == (OutsideState.UNDECLARED, "", "not in the inventory")
    without_gpu = tuple(replace(each, pool="cpu") if each.name == "t4-1" else each for each in NODES)
    row = row_of(Stack(inventory(nodes=without_gpu), labelled()), "t4-1")
    assert (row.pool, row.state) == ("cpu", State.LEAVING)
