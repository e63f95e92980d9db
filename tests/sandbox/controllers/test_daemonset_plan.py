"""Where a DaemonSet's pods belong, as data."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gpu_provision.sandbox.controllers import daemonset_plan as plan
from gpu_provision.sandbox.controllers.daemonset_plan import Eligibility
from gpu_provision.sandbox.controllers.fitting import NodeView

NOW = datetime(2026, 1, 1, 12, 0, 30, tzinfo=UTC)
RUNS, STAYS, LEAVES = Eligibility(True, True), Eligibility(False, True), Eligibility(False, False)  # noqa: FBT003  a table


def pod(name: str, *, revision: str = "new", phase: str = "Running", since: int | None = 0, **meta: Any) -> Any:
    """Return a pod that is ready since that second of the minute; None means not ready."""
    ready = {"type": "Ready", "status": str(since is not None)}
    if since is not None:
        ready["lastTransitionTime"] = f"2026-01-01T12:00:{since:02}Z"
    metadata = {"name": name, "uid": name, "labels": {plan.HASH_LABEL: revision}, **meta}
    return {"metadata": metadata, "spec": {"nodeName": "n"}, "status": {"phase": phase, "conditions": [ready]}}


def leaving(name: str) -> Any:
    """Return a pod that is being deleted."""
    return pod(name, deletionTimestamp="2026-01-01T12:00:00Z")


def rollout(maximum: int | str = 1, least: int = 0) -> plan.Rollout:
    """Return a rollout to the revision "new"."""
    return plan.Rollout(
        is_current=lambda one: one["metadata"]["labels"][plan.HASH_LABEL] == "new",
        max_unavailable=maximum,
        min_ready_seconds=least,
        moment=NOW,
    )


def names(pods: list[Any]) -> list[str]:
    """Return the names of pods."""
    return [one["metadata"]["name"] for one in pods]


@pytest.mark.parametrize(
    ("key", "effect", "verdict"),
    [
        ("node.kubernetes.io/not-ready", "NoExecute", RUNS),
        ("node.kubernetes.io/unreachable", "NoExecute", RUNS),
        ("node.kubernetes.io/disk-pressure", "NoSchedule", RUNS),
        ("node.kubernetes.io/memory-pressure", "NoSchedule", RUNS),
        ("node.kubernetes.io/pid-pressure", "NoSchedule", RUNS),
        ("node.kubernetes.io/unschedulable", "NoSchedule", RUNS),
        ("node.kubernetes.io/network-unavailable", "NoSchedule", STAYS),
        ("node-role.kubernetes.io/control-plane", "NoSchedule", STAYS),
        ("maintenance", "NoExecute", LEAVES),
        ("maintenance", "PreferNoSchedule", RUNS),
    ],
)
def test_taints_decide_who_runs_and_who_stays(key: str, effect: str, verdict: Eligibility) -> None:
    """DaemonSets tolerate a node's troubles; another NoSchedule taint lets present pods be."""
    view = NodeView("n", {}, ({"key": key, "effect": effect},), unschedulable=False, allocatable={})
    assert plan.eligibility({}, view) == verdict


def test_host_network_tolerates_a_missing_network() -> None:
    """Such pods are what brings the network up."""
    taint = {"key": "node.kubernetes.io/network-unavailable", "effect": "NoSchedule"}
    view = NodeView("n", {}, (taint,), unschedulable=False, allocatable={})
    assert plan.eligibility({"hostNetwork": True}, view) == RUNS


def test_a_template_may_name_its_node() -> None:
    """Then only that one runs it, and others lose theirs."""
    view = NodeView("n", {}, (), unschedulable=False, allocatable={})
    assert plan.eligibility({"nodeName": "n"}, view) == RUNS
    assert plan.eligibility({"nodeName": "m"}, view) == LEAVES


def test_what_each_node_lacks_and_what_is_too_much_on_it() -> None:
    """A terminating pod holds its place; finished pods are replaced; the oldest of several stays."""
    nodes = dict.fromkeys(("empty", "full", "going", "failed", "done", "double"), RUNS) | {
        "left": LEAVES, "kept": STAYS,
    }  # fmt: skip
    pods = {
        "full": [pod("full")],
        "going": [leaving("going")],
        "failed": [pod("failed", phase="Failed")],
        "done": [pod("done", phase="Succeeded")],
        "double": [pod("older"), pod("younger")],
        "left": [pod("left"), leaving("left-already")],
        "kept": [pod("kept")],
        "unknown": [pod("lost")],
    }
    result = plan.placement(nodes, pods)
    assert result.create == ["empty"]
    assert names(result.delete) == ["younger", "left", "lost"]
    assert [(one.pod["metadata"]["name"], one.reason) for one in result.finished] == [
        ("failed", "FailedDaemonPod"),
        ("done", "SucceededDaemonPod"),
    ]


@pytest.mark.parametrize(
    ("maximum", "pods", "deleted"),
    [
        (1, {"a": "old", "b": "old"}, ["a"]),
        (2, {"a": "old", "b": "old", "c": "old"}, ["a", "b"]),
        ("50%", {"a": "old", "b": "old", "c": "old"}, ["a", "b"]),
        (1, {"a": "new-unready", "b": "old"}, []),
        (1, {"a": "old-unready", "b": "old"}, ["a"]),
        (1, {"a": "old-unready", "b": "old-unready"}, ["a", "b"]),
        (2, {"a": "missing", "b": "old", "c": "old"}, ["b"]),
        (1, {"a": "leaving", "b": "old"}, []),
        (1, {"a": "new", "b": "new"}, []),
    ],
)
def test_what_a_rolling_update_may_delete(maximum: int | str, pods: dict[str, str], deleted: list[str]) -> None:
    """Pods that do not work go at once; those that do within maxUnavailable, missing ones included."""
    made = {
        "old": lambda name: [pod(name, revision="old")],
        "new": lambda name: [pod(name)],
        "old-unready": lambda name: [pod(name, revision="old", since=None)],
        "new-unready": lambda name: [pod(name, since=None)],
        "leaving": lambda name: [leaving(name)],
        "missing": lambda _: [],
    }
    on_nodes = {name: made[what](name) for name, what in pods.items()}
    assert names(plan.outdated(dict.fromkeys(pods, RUNS), on_nodes, rollout(maximum))) == deleted


@pytest.mark.parametrize(
    ("rolling", "allowed"),
    [
        (None, 1),
        ({}, 1),
        ({"maxUnavailable": "10%"}, "10%"),
        ({"maxUnavailable": 0, "maxSurge": 2}, 2),
        ({"maxUnavailable": "0%", "maxSurge": "30%"}, "30%"),
    ],
)
def test_surging_counts_as_missing(rolling: dict[str, Any] | None, allowed: int | str) -> None:
    """So that a rollout that may only surge still moves."""
    daemon_set = {"spec": {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": rolling}}}
    assert plan.max_unavailable(daemon_set) == allowed


def test_the_status_counts_as_the_api_documents_it() -> None:
    """A pod counts as available after minReadySeconds, as misscheduled where it should not be."""
    nodes = dict.fromkeys(("a", "b", "c", "d"), RUNS) | {"x": STAYS}
    pods = {"a": [pod("a")], "b": [pod("b", revision="old", since=25)], "c": [pod("c", since=None)], "x": [pod("x")]}
    assert plan.status(nodes, pods, rollout(least=10)) == {
        "desiredNumberScheduled": 4,
        "currentNumberScheduled": 3,
        "numberMisscheduled": 1,
        "numberReady": 2,
        "numberAvailable": 1,
        "numberUnavailable": 3,
        "updatedNumberScheduled": 2,
    }


def test_a_pod_is_pinned_to_its_node_and_keeps_the_rest_of_its_affinity() -> None:
    """As the real controller does it, so that the scheduler binds it there."""
    term = {"matchExpressions": [{"key": "x", "operator": "Exists"}]}
    node_affinity = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]},
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}],
    }
    template = {
        "metadata": {"labels": {"app": "d"}},
        "spec": {"containers": [], "affinity": {"nodeAffinity": node_affinity, "podAffinity": {}}},
    }
    annotations = {"deprecated.daemonset.template.generation": "7"}
    daemon_set = {"metadata": {"name": "d", "annotations": annotations}, "spec": {"template": template}}
    made = plan.pod_for(daemon_set, {"uid": "u"}, "abc", "n1")
    assert made["metadata"]["generateName"] == "d-"
    assert made["metadata"]["labels"] == {
        "app": "d", "controller-revision-hash": "abc", "pod-template-generation": "7",
    }  # fmt: skip
    required = made["spec"]["affinity"]["nodeAffinity"].pop("requiredDuringSchedulingIgnoredDuringExecution")
    by_name = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    assert required == {"nodeSelectorTerms": [{"matchFields": [by_name]}]}
    assert made["spec"]["affinity"] == {
        "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]},
        "podAffinity": {},
    }
    assert len(made["spec"]["tolerations"]) == 6
    assert plan.target_node({**made, "spec": {**made["spec"], "nodeName": "bound"}}) == "bound"
    assert "requiredDuringSchedulingIgnoredDuringExecution" in node_affinity
