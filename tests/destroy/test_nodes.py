"""Remnants on nodes, and detection of the GPU Operator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu_provision.components import labels
from gpu_provision.destroy.nodes import find_remnants, running_operator
from gpu_provision.rollout import states
from tests.data_file import document
from tests.destroy.builders import OURS, node, stack

CASES: list[dict[str, Any]] = document(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["name"]))
def test_remnants_of_a_node(case: dict[str, Any]) -> None:
    found = find_remnants(node(case), stack(**case.get("stack", {})))
    mark = {labels.INVENTORY} if case.get("mark", "prod") == "prod" else set()
    assert found.labels.keys() == {*case.get("goes", ()), *mark}
    assert found.kept == case.get("kept", {})
    assert found.discovered == tuple(case.get("discovered", ()))
    assert found.annotations.keys() == {*case.get("annotations_go", ())}
    assert found.uncordon is case.get("uncordon", False)
    assert found.taints == (tuple(case["taints_left"]) if "taints_left" in case else None)
    goes = mark | case.keys() & {"goes", "discovered", "annotations_go", "uncordon", "taints_left"}
    assert found.is_clean is not bool(goes)


def test_all_of_it_is_one_patch_of_the_node_that_was_looked_at() -> None:
    """An empty list of taints is removed."""
    live = node(
        {
            "labels": {"team": "a"},
            "annotations": {states.CORDONED: OURS},
            "writers": {"team": OURS},
            "cordoned_by": OURS,
            "taints": [{"key": labels.NOT_VALIDATED, "effect": "NoSchedule"}],
        }
    )
    assert find_remnants(live, stack()).patch() == {
        "metadata": {
            "resourceVersion": "7",
            "labels": {labels.INVENTORY: None, "team": None},
            "annotations": {states.CORDONED: None},
        },
        "spec": {"unschedulable": None, "taints": None},
    }


@pytest.mark.parametrize(
    ("marks", "phase", "named"),
    [
        ({"app": "gpu-operator"}, "Running", "gpu-operator/p"),
        ({"app.kubernetes.io/component": "gpu-operator"}, "Running", "gpu-operator/p"),
        ({"app": "gpu-operator"}, "Failed", ""),
        ({"app": "gpu-provision-operator"}, "Running", ""),
    ],
)
def test_the_gpu_operator_is_known_by_its_pod(marks: dict[str, str], phase: str, named: str) -> None:
    """Its ClusterPolicy alone writes nothing."""
    metadata: dict[str, Any] = {"name": "p", "namespace": "gpu-operator", "uid": "u", "labels": marks}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {}, "status": {"phase": phase}}
    assert running_operator([pod]) == named
