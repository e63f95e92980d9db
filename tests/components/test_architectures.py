"""Nodes whose kind of processor has no image of a component."""

from __future__ import annotations

from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.components import problems
from gpu_provision.model.cluster import ClusterFacts, NodeFacts
from tests import data_file
from tests.components import builders

CASES: list[dict[str, Any]] = data_file.document(Path(__file__).with_suffix(".yaml").read_text())


def observed(changes: dict[str, dict[str, str]]) -> ClusterFacts:
    def changed(node: NodeFacts) -> NodeFacts:
        fields: dict[str, Any] = {"kernel": "6.8.0-45-generic", **changes.get(node.name, {})}
        if "os" in fields:
            fields |= {"os": builders.system(fields["os"])}
            fields["labels"] = builders.nfd_labels(fields["os"])
        return replace(node, **fields)

    facts = builders.fleet()
    return replace(facts, nodes=tuple(map(changed, facts.nodes)))


@pytest.mark.parametrize("case", CASES, ids=itemgetter("case"))
def test_an_image_that_an_architecture_lacks_is_a_finding(case: dict[str, Any]) -> None:
    """With node, image and remedy, before anything is written."""
    inventory = builders.inventory_with(case.get("inventory", {}))
    context = builders.context(inventory, observed(case.get("nodes", {})))
    found = [each for each in problems(context) if each.code == "GP422"]
    assert [(each.severity.value, each.where) for each in found] == [
        (level, where) for level, where, _ in case["findings"]
    ]
    for each, (_, _, remedy) in zip(found, case["findings"], strict=True):
        assert remedy in each.fix
        assert "arm64" in each.what
        assert ":" in each.what.rpartition("/")[2]
