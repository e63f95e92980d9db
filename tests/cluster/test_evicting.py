"""What an API server says to evictions."""

from __future__ import annotations

import pytest

from gpu_provision.cluster.client import Cluster
from gpu_provision.cluster.errors import NotFound, Outdated, Protected
from gpu_provision.model.cluster import Manifest, ObjectRef, ref_of

POLICY = "policy/v1"


def running(cluster: Cluster, name: str) -> Manifest:
    """Return a pod that is ready, on a node that nobody plays."""
    made = cluster.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "labels": {"app": name}},
            "spec": {"nodeName": "nobody", "containers": [{"name": "c", "image": "i"}]},
        }
    )
    ready = [{"type": "Ready", "status": "True"}]
    cluster._json(
        "PATCH",
        f"/api/v1/namespaces/default/pods/{name}/status",
        name,
        body={"status": {"phase": "Running", "conditions": ready}},
        content_type="application/merge-patch+json",
    )
    return made


def test_an_eviction_ends_the_pod(cluster: Cluster) -> None:
    pod = running(cluster, "free")
    cluster.evict(ref_of(pod), pod["metadata"]["uid"], api_version=cluster.eviction_version())
    assert cluster.read(ref_of(pod))["metadata"]["deletionTimestamp"]


def test_a_budget_is_named(cluster: Cluster) -> None:
    """It is an answer, not an overload: nothing is repeated."""
    pod = running(cluster, "guarded")
    cluster._json(
        "POST",
        "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
        "budget",
        body={
            "apiVersion": POLICY,
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "tight", "namespace": "default"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}},
        },
    )
    before = cluster.requests
    with pytest.raises(Protected, match="budget") as caught:
        cluster.evict(ref_of(pod), pod["metadata"]["uid"], api_version=POLICY)
    assert "disruption budget tight" in caught.value.findings[0].evidence
    assert cluster.requests == before + 1


def test_another_pod_of_the_same_name_is_not_evicted(cluster: Cluster) -> None:
    pod = running(cluster, "namesake")
    with pytest.raises(Outdated):
        cluster.evict(ref_of(pod), "another", api_version=POLICY)
    assert "deletionTimestamp" not in cluster.read(ref_of(pod))["metadata"]


def test_a_pod_that_is_gone_is_not_found(cluster: Cluster) -> None:
    with pytest.raises(NotFound):
        cluster.evict(ObjectRef("v1", "Pod", "default", "nobody"), "uid", api_version=POLICY)
