"""Our own cordons, and those of other tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from gpu_provision.components.labels import CORDONED
from gpu_provision.kube.client import KubeClient
from gpu_provision.kube.errors import ConflictError, EvictionBlockedError, NotFoundError
from gpu_provision.kube.observe import node_facts
from gpu_provision.model.cluster import Manifest, NodeFacts, ObjectRef, ref_of
from gpu_provision.nodes import drain

WHY = "reboot"


def ref(name: str) -> ObjectRef:
    return ObjectRef("v1", "Node", "", name)


def made(cluster: KubeClient, name: str, **spec: Any) -> None:
    cluster.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": spec})


def facts(cluster: KubeClient, name: str) -> NodeFacts:
    return node_facts(cluster.read(ref(name)))


def test_our_cordon_says_so_and_is_taken_back(cluster: KubeClient) -> None:
    made(cluster, "plain")
    assert drain.cordon(cluster, "plain", WHY)
    found = facts(cluster, "plain")
    assert found.unschedulable
    assert drain.is_cordoned_for(found, WHY)
    assert found.annotations[CORDONED].startswith("reboot since 20")
    assert drain.cordon(cluster, "plain", WHY), "a later run goes on from it"
    drain.uncordon(cluster, "plain", WHY)
    found = facts(cluster, "plain")
    assert not found.unschedulable
    assert CORDONED not in found.annotations


def test_cordon_of_another_tool_is_left_alone(cluster: KubeClient) -> None:
    made(cluster, "foreign", unschedulable=True)
    assert not drain.cordon(cluster, "foreign", WHY)
    drain.uncordon(cluster, "foreign", WHY)
    assert facts(cluster, "foreign").unschedulable
    assert CORDONED not in facts(cluster, "foreign").annotations


def test_our_cordon_for_another_purpose_is_left_alone_too(cluster: KubeClient) -> None:
    made(cluster, "upgraded")
    assert drain.cordon(cluster, "upgraded", "upgrade")
    assert not drain.cordon(cluster, "upgraded", WHY)
    drain.uncordon(cluster, "upgraded", WHY)
    assert drain.is_cordoned_for(facts(cluster, "upgraded"), "upgrade")


def test_a_cordon_in_between_is_seen(cluster: KubeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another tool cordons between our look and our write, which then does not count."""
    made(cluster, "contended")
    merge = cluster.merge_patch

    def late(node: ObjectRef, change: Mapping[str, Any]) -> Manifest:
        merge(node, {"spec": {"unschedulable": True}})
        monkeypatch.setattr(cluster, "merge_patch", merge)
        return merge(node, change)

    monkeypatch.setattr(cluster, "merge_patch", late)
    assert not drain.cordon(cluster, "contended", WHY)
    assert CORDONED not in facts(cluster, "contended").annotations


@pytest.mark.parametrize("do", [drain.cordon, drain.uncordon])
def test_a_node_that_is_gone_is_not_found(cluster: KubeClient, do: Callable[[KubeClient, str, str], object]) -> None:
    with pytest.raises(NotFoundError):
        do(cluster, "absent", WHY)


POLICY = "policy/v1"


def running(cluster: KubeClient, name: str) -> Manifest:
    metadata, spec = {"name": name, "namespace": "default", "labels": {"app": name}}, {"containers": [CONTAINER]}
    made = cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**spec, "nodeName": "no"}})
    ready = [{"type": "Ready", "status": "True"}]
    return cluster.merge_patch(ref_of(made), {"status": {"phase": "Running", "conditions": ready}}, part="status")


CONTAINER = {"name": "c", "image": "i"}


def test_a_budget_is_named(cluster: KubeClient) -> None:
    """It is an answer, not an overload: nothing is repeated."""
    pod, spec = running(cluster, "guarded"), {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}}
    metadata = {"name": "tight", "namespace": "default"}
    cluster.create({"apiVersion": POLICY, "kind": "PodDisruptionBudget", "metadata": metadata, "spec": spec})
    before = cluster.requests
    with pytest.raises(EvictionBlockedError, match="budget") as caught:
        cluster.evict(ref_of(pod), pod["metadata"]["uid"], api_version=POLICY)
    assert "disruption budget tight" in caught.value.findings[0].evidence
    assert cluster.requests == before + 1


def test_another_pod_of_the_same_name_is_not_evicted(cluster: KubeClient) -> None:
    pod = running(cluster, "namesake")
    with pytest.raises(ConflictError):
        cluster.evict(ref_of(pod), "another", api_version=POLICY)
    assert "deletionTimestamp" not in cluster.read(ref_of(pod))["metadata"]
