"""Rules of controllers and kubelets whose every case would be slow to bring about in a cluster."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.controllers.deployment import scale_down_targets
from gpu_provision.sandbox.controllers.node_filters import NodeView, matches_node, tolerates
from gpu_provision.sandbox.controllers.scheduler import requests
from gpu_provision.sandbox.kubelet.pod_status import ContainerRecord, pod_conditions, pod_phase
from tests import data_file

CASES = data_file.document(Path(__file__).with_suffix(".yaml").read_text())
NODE = NodeView("a", {"gpu": "yes", "count": "8"}, (), unschedulable=False, allocatable={})
Object = dict[str, Any]


def each(kind: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", CASES[kind], ids=str)


@each("nodes")
def test_node_selector_and_affinity(case: Object) -> None:
    terms = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": case.get("terms")}}
    assert matches_node(case.get("spec", {"affinity": {"nodeAffinity": terms}}), NODE) is case["fits"]


@each("tolerations")
def test_tolerations(case: Object) -> None:
    assert tolerates(case["toleration"], {"key": "k", "value": "v", "effect": "NoSchedule"}) is case["answer"]


@each("quantities")
def test_quantities(case: Object) -> None:
    assert objects.amounts(case["written"]) == case["read"]


def test_requests_count_the_larger_of_running_and_starting() -> None:
    """Init containers run one by one; limits stand in."""
    one, two, four, five = ({"resources": {"limits": {"cpu": cpu}}} for cpu in "1245")
    assert requests({"containers": [one, two], "initContainers": [five, four]}) == {"cpu": 5000, "pods": 1}


def replica_set(name: str, replicas: int, available: int) -> Object:
    status = {"replicas": replicas, "availableReplicas": available}
    return {"metadata": {"name": name}, "spec": {"replicas": replicas}, "status": status}


@each("scale_down")
def test_old_replica_sets_shrink(case: Object) -> None:
    rolling = {"maxSurge": "25%", "maxUnavailable": "25%"}
    deployment = {"spec": {"replicas": 4, "strategy": {"type": "RollingUpdate", "rollingUpdate": rolling}}}
    old = [replica_set(f"old{number}", *one) for number, one in enumerate(case["old"])]
    changes = scale_down_targets(deployment, replica_set("new", *case["new"]), old)
    assert [count for _, count in changes] == case["counts"]


def record(number: int, state: str | int) -> ContainerRecord:
    made = ContainerRecord(name=f"c{number}", image="i")
    if state == "waiting":
        made.wait("ContainerCreating")
        return made
    made.run("id", "containerd", datetime(2026, 11, 24, tzinfo=UTC))
    made.started = made.ready = state == "ready"
    if isinstance(state, int):
        made.end(state)
    return made


@each("phases")
def test_the_phase_follows_from_the_containers(case: Object) -> None:
    inits, mains = ([record(*one) for one in enumerate(case[kind])] for kind in ("inits", "mains"))
    assert pod_phase({"spec": {"restartPolicy": case["policy"]}}, inits, mains) == case["phase"]


def test_conditions_keep_their_transition_time() -> None:
    """The time lastTransitionTime is that of the last change; foreign conditions stay."""
    first = pod_conditions({}, "Running", [], [record(0, "ready")])
    for condition in first:
        condition["lastTransitionTime"] = "2020-01-01T00:00:00Z"
    foreign = {"type": "DisruptionTarget", "status": "True"}
    second = pod_conditions({"status": {"conditions": [*first, foreign]}}, "Running", [], [record(0, "running")])
    changed = [c["type"] for c in second if c.get("lastTransitionTime") != "2020-01-01T00:00:00Z"]
    assert changed == ["Ready", "ContainersReady", "DisruptionTarget"]
    assert foreign in second
