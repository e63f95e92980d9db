"""What tolerates the startup taint, the labels of nodes, and findings about nodes that keep it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpu_provision.components import desired, problems, startup_taint
from gpu_provision.components.labels import DEPLOY_OPERANDS, NOT_VALIDATED, VALIDATED
from gpu_provision.components.pods import STARTUP_TOLERATION
from gpu_provision.model.cluster import ClusterFacts, Manifest
from gpu_provision.model.codes import STAYS_TAINTED
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.specs import StartupTaintSpec
from tests.components import builders

WORKLOADS = {"DaemonSet", "Deployment", "Pod"}


def asking(**fields: Any) -> Inventory:
    """Return the inventory with the startup taint and all components on."""
    on = {"startup_taint": StartupTaintSpec(enabled=True), "dcgm": replace(builders.SPECS.dcgm, enabled=True)}
    return builders.inventory(specs=builders.specs(**on), **fields)


def pod_spec(manifest: Manifest) -> dict[str, Any]:
    spec: dict[str, Any] = manifest["spec"]
    return spec if manifest["kind"] == "Pod" else spec["template"]["spec"]


def workloads(chosen: Inventory) -> list[Manifest]:
    found = desired(builders.context(chosen, builders.fleet()))
    return [item for items in found.values() for item in items if item["kind"] in WORKLOADS]


def test_what_validates_a_node_tolerates_the_taint() -> None:
    """Node Feature Discovery's master included: where all nodes are new, there is no other place."""
    found = workloads(asking())
    assert {item["kind"] for item in found} == WORKLOADS
    assert [
        item["metadata"]["name"] for item in found if STARTUP_TOLERATION not in pod_spec(item).get("tolerations", [])
    ] == []


def contents(chosen: Inventory, facts: ClusterFacts | None = None) -> dict[str, str]:
    """Return what each node says of its validation."""
    found = desired(builders.context(chosen, facts or builders.fleet()))[startup_taint.NAME]
    return {item["metadata"]["name"]: item["metadata"]["labels"][VALIDATED] for item in found}


def test_nodes_with_equal_content_say_the_same() -> None:
    found = contents(asking())
    assert found["t4-1"] == found["t4-2"] != found["h100-1"]
    assert found.keys() == {"t4-1", "t4-2", "h100-1"}


def test_an_unobserved_node_is_not_validated() -> None:
    """Rendered files say nothing of what has passed."""
    assert desired(builders.context(asking()))[startup_taint.NAME] == []


@pytest.mark.parametrize(
    ("node", "label", "told"),
    [
        pytest.param("cpu-1", {}, True, id="a node without a GPU"),
        pytest.param("t4-1", {DEPLOY_OPERANDS: "false"}, True, id="a node that its user keeps our pods off"),
        pytest.param("t4-1", {}, False, id="a GPU node, which waits for its validation"),
    ],
)
def test_a_taint_that_would_stay_for_ever_is_reported(node: str, label: dict[str, str], *, told: bool) -> None:
    taint = {"key": NOT_VALIDATED, "effect": "NoSchedule"}
    nodes = tuple(
        replace(each, taints=(taint,), labels={**each.labels, **label}) if each.name == node else each
        for each in builders.fleet().nodes
    )
    facts = replace(builders.fleet(), nodes=nodes)
    found = [item for item in problems(builders.context(asking(), facts)) if item.code == STAYS_TAINTED]
    assert [item.where for item in found] == ([f"Node {node}"] if told else [])
    assert STAYS_TAINTED not in {item.code for item in problems(builders.context(builders.inventory(), facts))}
