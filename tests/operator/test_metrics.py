from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gpu_provision.operator.figures import StackFigures
from gpu_provision.operator.metrics import Collector, Snapshot, reconciliation_status


def figures(**conditions: tuple[str, str]) -> StackFigures:
    rows = [{"type": kind, "status": each, "reason": why} for kind, (each, why) in conditions.items()]
    nodes = {"total": 4, "ready": 3, "gpus": 24}
    found = StackFigures()
    found.take_status({"conditions": rows, "nodes": nodes, "rollout": {"done": 1, "underWay": 2}})
    return found


@pytest.mark.parametrize(
    ("conditions", "value"),
    [
        ({"Ready": ("True", "AllReady")}, 1),
        ({"Ready": ("False", "Converging"), "Degraded": ("False", "AsExpected")}, 0),
        ({"Ready": ("False", "NodesFailed"), "Degraded": ("True", "NodesFailed")}, -1),
        ({"Ready": ("False", "NoGPUNodes"), "Degraded": ("True", "NoGPUNodes")}, -2),
        ({}, 0),
    ],
)
def test_the_status_of_the_reference_means_what_it_means_there(conditions: dict[str, Any], value: int) -> None:
    assert reconciliation_status(figures(**conditions)) == value


def test_every_stack_has_every_metric_in_prometheus_own_words() -> None:
    found = figures(Ready=("True", "AllReady"))
    found.take_needs(2, 10.0)
    found.take_run(14.0, is_well=False)
    registry = CollectorRegistry()
    registry.register(Collector(lambda: Snapshot(is_leader=True, requests=12, retries=3, stacks={"main": found})))
    text = generate_latest(registry).decode()
    for line in (
        "gpu_provision_leader 1.0",
        "gpu_provision_api_requests_total 12.0",
        'gpu_operator_gpu_nodes_total{stack="main"} 4.0',
        'gpu_provision_ready_nodes{stack="main"} 3.0',
        'gpu_operator_reconciliation_status{stack="main"} 1.0',
        'gpu_operator_reconciliation_total{stack="main"} 1.0',
        'gpu_operator_reconciliation_failed_total{stack="main"} 1.0',
        'gpu_provision_reconciliation_seconds_total{stack="main"} 4.0',
        'gpu_operator_nodes_upgrades_in_progress{stack="main"} 2.0',
    ):
        assert line in text.splitlines(), line


def test_a_stack_that_has_never_been_as_declared_has_no_time_of_success() -> None:
    assert figures(Ready=("False", "Converging")).succeeded_at == 0.0
    assert figures(Ready=("True", "AllReady")).succeeded_at > 0.0


@pytest.mark.parametrize("name", ["alerts.yaml", "dashboard.json"])
def test_alerts_and_dashboard_ask_for_metrics_that_there_are(name: str) -> None:
    collector = Collector(lambda: Snapshot(is_leader=True, requests=0, retries=0, stacks={"main": StackFigures()}))
    known = {sample.name for family in collector.collect() for sample in family.samples}
    text = (Path(__file__).resolve().parents[2] / "examples/operator/monitoring" / name).read_text()
    asked = set(re.findall(r"\bgpu_(?:operator|provision)_\w+", text))
    assert asked
    assert asked <= known
