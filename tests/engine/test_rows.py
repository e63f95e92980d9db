"""A row per node: what a reader should know of first."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_provision.components.labels import NOT_VALIDATED
from gpu_provision.engine.rows import node_rows
from gpu_provision.planning.states import states
from tests.planning.builders import Stack, labelled, with_node

TAINT = {"key": NOT_VALIDATED, "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("node", "fields", "reason"),
    [
        pytest.param("cpu-1", {}, "no GPU: gets no GPU component", id="a node without a GPU"),
        pytest.param("cpu-1", {"unschedulable": True}, "cordoned", id="a cordon"),
        pytest.param(
            "cpu-1", {"taints": ({"key": "team"},)}, "no GPU: gets no GPU component", id="a taint of its user"
        ),
        pytest.param("cpu-1", {"taints": (TAINT,)}, "has the startup taint", id="a taint that nobody will take off"),
        pytest.param(
            "t4-1",
            {"taints": (TAINT,)},
            "node_labels: labels are to be written; has the startup taint",
            id="a taint beside what is to be done",
        ),
    ],
)
def test_a_node_tells_what_keeps_pods_off(node: str, fields: dict[str, Any], reason: str) -> None:
    seen = Stack(facts=with_node(labelled(), node, **fields)).situation
    rows = {row.node: row for row in node_rows(seen, states(seen))}
    assert rows[node].reason == reason
