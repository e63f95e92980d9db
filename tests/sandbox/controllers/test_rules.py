"""Rules of the controllers whose every case would be slow to bring about in a cluster, as tables."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.controllers.deployment import scale_down_targets
from gpu_provision.sandbox.controllers.node_filters import NodeView, matches_node, tolerates
from gpu_provision.sandbox.controllers.scheduler import requests

NODE = NodeView("a", {"gpu": "yes", "count": "8"}, (), unschedulable=False, allocatable={})


def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    """Return a pod spec with a required node affinity of these terms."""
    required = {"nodeSelectorTerms": list(terms)}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


def labels(key: str, operator: str, *values: str) -> dict[str, Any]:
    """Return a term of one label expression."""
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def names(*values: str, operator: str = "In") -> dict[str, Any]:
    """Return a term of one name field."""
    return {"matchFields": [{"key": "metadata.name", "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("spec", "fits"),
    [
        ({}, True),
        ({"nodeSelector": {"gpu": "yes"}}, True),
        ({"nodeSelector": {"gpu": "no"}}, False),
        (affinity(labels("gpu", "In", "yes", "maybe")), True),
        (affinity(labels("gpu", "NotIn", "yes")), False),
        (affinity(labels("none", "NotIn", "x")), True),
        (affinity(labels("none", "Exists")), False),
        (affinity(labels("none", "DoesNotExist")), True),
        (affinity(labels("count", "Gt", "7")), True),
        (affinity(labels("count", "Gt", "8")), False),
        (affinity(labels("count", "Lt", "9")), True),
        (affinity(labels("gpu", "Lt", "9")), False),
        (affinity(labels("none", "Gt", "0")), False),
        (affinity(labels("gpu", "Unknown")), False),
        (affinity(labels("gpu", "In", "no"), labels("count", "In", "8")), True),
        (affinity({**labels("gpu", "Exists"), **names("b")}), False),
        (affinity(names("a", operator="NotIn")), False),
        (affinity({}), False),
        (affinity(), False),
    ],
)
def test_node_selector_and_affinity(spec: dict[str, Any], fits: bool) -> None:  # noqa: FBT001  a table
    """Terms are alternatives, all expressions of a term count, an empty term matches nothing."""
    assert matches_node(spec, NODE) is fits


@pytest.mark.parametrize(
    ("toleration", "answer"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "k", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"key": "k", "value": "v"}, True),
        ({"key": "k", "operator": "Equal", "value": "w"}, False),
        ({"value": "v"}, False),
    ],
)
def test_tolerations(toleration: dict[str, Any], answer: bool) -> None:  # noqa: FBT001  a table
    """Key, value and effect decide; an empty one matches all."""
    assert tolerates(toleration, {"key": "k", "value": "v", "effect": "NoSchedule"}) is answer


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ({"cpu": "1500m"}, {"cpu": 1500}),
        ({"cpu": 0.5}, {"cpu": 500}),
        ({"memory": "1Gi"}, {"memory": 2**30}),
        ({"memory": "1.5k"}, {"memory": 1500}),
        ({"memory": "2e3"}, {"memory": 2000}),
        ({"nvidia.com/gpu": 8}, {"nvidia.com/gpu": 8}),
        ({"memory": "nonsense"}, {"memory": 0}),
        (None, {}),
    ],
)
def test_quantities(written: Any, read: dict[str, int]) -> None:
    """Cores in thousandths, the rest in whole units, rounded up."""
    assert objects.amounts(written) == read


def test_requests_count_the_larger_of_running_and_starting() -> None:
    """Init containers run one by one; limits stand in."""

    def container(cpu: str) -> dict[str, Any]:
        return {"resources": {"limits": {"cpu": cpu}}}

    spec = {"containers": [container("1"), container("2")], "initContainers": [container("5"), container("4")]}
    assert requests(spec) == {"cpu": 5000, "pods": 1}


def replica_set(name: str, replicas: int, available: int) -> dict[str, Any]:
    """Return a ReplicaSet."""
    status = {"replicas": replicas, "availableReplicas": available}
    return {"metadata": {"name": name}, "spec": {"replicas": replicas}, "status": status}


@pytest.mark.parametrize(
    ("new", "old", "counts"),
    [
        ((1, 0), [(4, 4)], [3]),
        ((1, 1), [(4, 4)], [2]),
        ((1, 0), [(3, 3)], []),
        ((2, 0), [(3, 1)], []),
        ((1, 0), [(4, 1)], [3]),
        ((2, 2), [(1, 0), (2, 2)], [0, 1]),
        ((4, 4), [(1, 1)], [0]),
    ],
)
def test_old_replica_sets_shrink(new: tuple[int, int], old: list[tuple[int, int]], counts: list[int]) -> None:
    """As far as availability allows; pods that are not available go first."""
    rolling = {"maxSurge": "25%", "maxUnavailable": "25%"}
    deployment = {"spec": {"replicas": 4, "strategy": {"type": "RollingUpdate", "rollingUpdate": rolling}}}
    others = [replica_set(f"old{number}", *each) for number, each in enumerate(old)]
    changes = scale_down_targets(deployment, replica_set("new", *new), others)
    assert [count for _, count in changes] == counts
