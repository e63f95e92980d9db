"""Eviction honours PodDisruptionBudgets."""

from __future__ import annotations

from typing import Any

from tests.sandbox.apiserver.conftest import POD, Running

PODS = "/api/v1/namespaces/default/pods"
READY = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


def _pod(server: Running, name: str, status: dict[str, Any] | None = None) -> None:
    body = {"metadata": {"name": name, "labels": {"app": name}}, "spec": {**POD, "nodeName": "n1"}}
    assert server.ask("POST", PODS, body).code == 201
    kind = "application/merge-patch+json"
    assert server.ask("PATCH", f"{PODS}/{name}/status", {"status": status or READY}, kind=kind).code == 200


def _budget(server: Running, name: str, allowed: int) -> None:
    path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": name}}}
    assert server.ask("POST", path, {"metadata": {"name": name}, "spec": spec}).code == 201
    status = {"disruptionsAllowed": allowed, "currentHealthy": 1, "desiredHealthy": 1, "observedGeneration": 1}
    answer = server.ask("PATCH", f"{path}/{name}/status", {"status": status}, kind="application/merge-patch+json")
    assert answer.code == 200


def _evict(server: Running, name: str, version: str = "policy/v1", query: str = "") -> Any:
    body = {"apiVersion": version, "kind": "Eviction", "metadata": {"name": name}}
    return server.ask("POST", f"{PODS}/{name}/eviction{query}", body)


def test_a_budget_that_allows_nothing_blocks_an_eviction(server: Running) -> None:
    """429 with the cause that drain prints."""
    _pod(server, "kept")
    _budget(server, "kept", 0)
    answer = _evict(server, "kept")
    assert (answer.code, answer.body["reason"]) == (429, "TooManyRequests")
    assert answer.body["message"] == "Cannot evict pod as it would violate the pod's disruption budget."
    [cause] = answer.body["details"]["causes"]
    assert cause == {
        "reason": "DisruptionBudget",
        "message": "The disruption budget kept needs 1 healthy pods and has 1 currently",
    }
    assert "deletionTimestamp" not in server.ask("GET", f"{PODS}/kept").body["metadata"]


def test_an_eviction_counts_against_the_budget_at_once(server: Running) -> None:
    """The next one sees it before any controller does."""
    _pod(server, "counted")
    _budget(server, "counted", 1)
    assert _evict(server, "counted", query="?dryRun=All").code == 201
    assert _evict(server, "counted", "policy/v1beta1").code == 201
    path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets/counted"
    status = server.ask("GET", path).body["status"]
    assert (status["disruptionsAllowed"], list(status["disruptedPods"])) == (0, ["counted"])
    assert server.ask("GET", f"{PODS}/counted").body["metadata"]["deletionTimestamp"]


def test_pods_that_are_done_and_pods_without_a_budget_may_go(server: Running) -> None:
    """Nothing is disrupted by them."""
    _pod(server, "done", {"phase": "Succeeded"})
    _budget(server, "done", 0)
    _pod(server, "free")
    assert (_evict(server, "done").code, _evict(server, "free").code) == (201, 201)
    assert _evict(server, "missing").code == 404
