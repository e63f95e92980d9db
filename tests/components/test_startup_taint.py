"""What tolerates the startup taint, the labels of nodes, and findings about nodes that keep it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_provision.components import problems, render_manifests, startup_taint
from gpu_provision.components.labels import DEPLOY_OPERANDS, NOT_VALIDATED, VALIDATED
from gpu_provision.components.pods import STARTUP_TOLERATION
from gpu_provision.model.codes import STAYS_TAINTED
from tests.components import builders

WORKLOADS = {"DaemonSet", "Deployment", "Pod"}


ASKING = builders.inventory_with({"startup_taint": {"enabled": True}, "dcgm": {"enabled": True}})


def test_what_validates_a_node_tolerates_the_taint() -> None:
    """Node Feature Discovery's master included: where all nodes are new, there is no other place."""
    result = render_manifests(builders.context(ASKING, builders.fleet()))
    items = [item for group in result.values() for item in group if item["kind"] in WORKLOADS]
    specs = {each["metadata"]["name"]: each["spec"].get("template", each)["spec"] for each in items}
    assert {item["kind"] for item in items} == WORKLOADS
    assert [name for name, spec in specs.items() if STARTUP_TOLERATION not in spec.get("tolerations", [])] == []


def test_nodes_with_equal_content_say_the_same() -> None:
    """Rendered files say nothing of what has passed: a node that was not observed is not validated."""
    result = render_manifests(builders.context(ASKING, builders.fleet()))[startup_taint.NAME]
    values = {item["metadata"]["name"]: item["metadata"]["labels"][VALIDATED] for item in result}
    assert values["t4-1"] == values["t4-2"] != values["h100-1"]
    assert values.keys() == {"t4-1", "t4-2", "h100-1"}
    assert render_manifests(builders.context(ASKING))[startup_taint.NAME] == []


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
    result = [item for item in problems(builders.context(ASKING, facts)) if item.code == STAYS_TAINTED]
    assert [item.where for item in result] == ([f"Node {node}"] if told else [])
    assert STAYS_TAINTED not in {item.code for item in problems(builders.context(builders.inventory(), facts))}
