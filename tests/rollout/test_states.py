"""Owners of cordons, and findings about unfinished nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_provision.components import labels
from gpu_provision.model.cluster import NodeFacts
from gpu_provision.rollout import states
from gpu_provision.rollout.states import cordoned_by, unfinished_node_findings

CASES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
OURS = {states.CORDONED: states.MANAGER}
RESTART = "pod-restart-required"


def node(step: str = "", name: str = "t4-1", **fields: Any) -> NodeFacts:
    """A cordoned node of the inventory ``prod``."""
    found = {labels.INVENTORY: "prod"} | ({states.STATE: step} if step else {})
    return NodeFacts(name=name, **{"labels": found, "unschedulable": True, **fields})


@pytest.mark.parametrize("case", CASES["cordons"])
def test_a_cordon_is_reported_with_its_owner(case: str) -> None:
    assert cordoned_by(node(**CASES["cordons"][case]["node"])) == CASES["cordons"][case]["told"]


@pytest.mark.parametrize("case", CASES["left_behind"])
def test_unfinished_nodes_are_reported_with_the_next_run(case: str) -> None:
    expected = CASES["left_behind"][case]
    (found,) = unfinished_node_findings([node(**expected["node"])], "prod")
    assert found.what == expected["what"]
    assert expected["next_run"] in found.consequence
    is_ours = found.what.startswith("t4-1 stays cordoned")
    assert ("kubectl uncordon t4-1" in found.fix) == is_ours, "the cordon of another manager stays"


@pytest.mark.parametrize("case", CASES["at_rest"])
def test_nodes_without_a_rollout_are_not_reported(case: str) -> None:
    assert unfinished_node_findings([node(**CASES["at_rest"][case])], "prod") == ()


def test_equal_nodes_share_one_warning() -> None:
    """Of many nodes eight are named."""
    same = [node(RESTART, f"gpu-{number:02}", annotations=OURS) for number in range(1, 11)]
    first, second = unfinished_node_findings([*same, node("upgrade-failed", "t4-1", annotations=OURS)], "prod")
    assert first.what.startswith("gpu-01, gpu-02,")
    assert first.what.endswith(f"gpu-08 and 2 more stay cordoned ({RESTART})")
    assert second.what.startswith("t4-1 stays")
