"""Owners and dependents: what goes with what, and in which order."""

from __future__ import annotations

import uuid

import pytest

from tests.contract.client import Object, until
from tests.contract.controllers.cluster import Cluster
from tests.contract.controllers.manifests import owner, pod_spec, workload

HELD = "contract.example/held"


def config_map(cluster: Cluster, name: str, *owners: Object, finalizers: tuple[str, ...] = ()) -> Object:
    metadata = {"ownerReferences": list(owners), "finalizers": list(finalizers)}
    return cluster.create("ConfigMap", name, metadata=metadata)


def owners_of(obj: Object) -> list[str]:
    return [one["name"] for one in obj["metadata"].get("ownerReferences") or ()]


def let_go(cluster: Cluster, name: str) -> None:
    cluster.patch("ConfigMap", name, {"metadata": {"finalizers": None}})


def test_in_the_background_the_owner_goes_first(cluster: Cluster) -> None:
    """A dependent that is held back does not hold it; chains go link by link."""
    head = config_map(cluster, "head")
    tail = config_map(cluster, "tail", owner(head, blockOwnerDeletion=True), finalizers=(HELD,))
    config_map(cluster, "last", owner(tail))
    cluster.delete("ConfigMap", "head", propagationPolicy="Background")
    assert cluster.gone("ConfigMap", "head")
    cluster.await_("ConfigMap", "tail", lambda one: one["metadata"].get("deletionTimestamp"))
    let_go(cluster, "tail")
    cluster.await_gone("ConfigMap", "tail")
    cluster.await_gone("ConfigMap", "last")


def test_foreground_deletion_waits_for_blocking_dependents(cluster: Cluster) -> None:
    """And for no others."""
    head, other = config_map(cluster, "head"), config_map(cluster, "other")
    config_map(cluster, "tail", owner(head, blockOwnerDeletion=True), owner(other), finalizers=(HELD,))
    for name in ("other", "head"):
        cluster.delete("ConfigMap", name, propagationPolicy="Foreground")
    cluster.await_gone("ConfigMap", "other")
    cluster.await_("ConfigMap", "tail", lambda one: one["metadata"].get("deletionTimestamp"))
    waiting = cluster.get("ConfigMap", "head")["metadata"]
    assert waiting["finalizers"] == ["foregroundDeletion"]
    assert waiting["deletionTimestamp"]
    let_go(cluster, "tail")
    cluster.await_gone("ConfigMap", "head")


def test_in_the_foreground_grandchildren_go_before_children(cluster: Cluster) -> None:
    """A DaemonSet's owner waits for its pods, too."""
    head = config_map(cluster, "head")
    metadata = {"ownerReferences": [owner(head, blockOwnerDeletion=True)]}
    cluster.create("DaemonSet", "agent", metadata=metadata, spec=workload("agent"))
    cluster.await_pods(3)
    cluster.delete("ConfigMap", "head", propagationPolicy="Foreground")
    cluster.await_gone("ConfigMap", "head")
    assert cluster.gone("DaemonSet", "agent")
    assert not cluster.every("Pod")


def test_in_the_foreground_a_replica_set_that_goes_makes_no_pods(cluster: Cluster) -> None:
    cluster.create("Deployment", "web", spec=workload("web", replicas=1))
    (pod,), since = cluster.await_pods(1), cluster.now("Pod")
    cluster.delete("Deployment", "web", propagationPolicy="Foreground")
    cluster.await_gone("Deployment", "web")
    assert not cluster.every("ReplicaSet")
    cluster.create("Pod", "after", spec=pod_spec())
    seen = cluster.history("Pod", since, lambda event: event.name == "after")
    assert {event.name for event in seen} == {pod["metadata"]["name"], "after"}


def test_a_dependent_with_another_owner_stays(cluster: Cluster) -> None:
    first, second = config_map(cluster, "first"), config_map(cluster, "second")
    config_map(cluster, "tail", owner(first), owner(second))
    cluster.delete("ConfigMap", "first", propagationPolicy="Background")
    tail = cluster.await_("ConfigMap", "tail", lambda one: len(owners_of(one)) == 1)
    assert owners_of(tail) == ["second"]


def test_an_owner_that_is_not_there_is_none(cluster: Cluster) -> None:
    """One that never was, and one that was created again under the old name."""
    head, other = config_map(cluster, "head"), str(uuid.uuid4())
    config_map(cluster, "tail", owner(head) | {"name": "absent", "uid": other})
    config_map(cluster, "late", owner(head) | {"uid": other})
    cluster.await_gone("ConfigMap", "tail")
    cluster.await_gone("ConfigMap", "late")
    assert not cluster.gone("ConfigMap", "head")


def test_an_owner_in_another_namespace_is_none(cluster: Cluster) -> None:
    """References of namespaced owners never cross namespaces; an event says so."""
    elsewhere = cluster.server.make(
        "/api/v1/namespaces/default/configmaps", {"metadata": {"generateName": f"{cluster.namespace}-"}}
    )
    path = f"/api/v1/namespaces/default/configmaps/{elsewhere['metadata']['name']}"
    config_map(cluster, "tail", owner(elsewhere))
    cluster.await_gone("ConfigMap", "tail")
    event = cluster.await_event("OwnerRefInvalidNamespace", "tail")
    assert f'does not exist in namespace "{cluster.namespace}"' in event["message"]
    assert event["source"] == {"component": "garbage-collector-controller"}
    cluster.server.delete(path)


def test_a_cluster_object_outlives_a_namespaced_owner(cluster: Cluster) -> None:
    """But an owner without a namespace may own what is in one."""
    head, name = config_map(cluster, "head"), f"{cluster.namespace}-role"
    role = cluster.create("ClusterRole", name, metadata={"ownerReferences": [owner(head)]}, rules=[])
    config_map(cluster, "tail", owner(role))
    inside = Cluster(cluster.server, "default")  # where events of what has no namespace are
    assert 'does not exist in namespace ""' in inside.await_event("OwnerRefInvalidNamespace", name)["message"]
    assert not cluster.gone("ClusterRole", name)
    cluster.delete("ClusterRole", name)
    cluster.await_gone("ConfigMap", "tail")
    assert not cluster.gone("ConfigMap", "head")


@pytest.mark.parametrize("policy", ["Background", "Foreground", "Orphan"])
def test_without_dependents_every_policy_deletes(cluster: Cluster, policy: str) -> None:
    config_map(cluster, "alone")
    cluster.delete("ConfigMap", "alone", propagationPolicy=policy)
    cluster.await_gone("ConfigMap", "alone")


def test_custom_objects_own_and_are_owned(cluster: Cluster) -> None:
    """The collector finds new kinds by discovery: on a real cluster within half a minute."""
    group = f"{cluster.namespace}.example"
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    names_ = {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"}
    versions = [{"name": "v1", "served": True, "storage": True, "schema": schema}]
    definition = {"group": group, "scope": "Namespaced", "names": names_, "versions": versions}
    cluster.create("CustomResourceDefinition", f"things.{group}", spec=definition)
    path = f"/apis/{group}/v1/namespaces/{cluster.namespace}/things"
    until(lambda: cluster.server.ask("GET", path).code == 200)
    head = config_map(cluster, "head")
    body = {"apiVersion": f"{group}/v1", "kind": "Thing"}
    middle = cluster.server.make(path, {**body, "metadata": {"name": "middle", "ownerReferences": [owner(head)]}})
    config_map(cluster, "tail", owner(middle))
    cluster.delete("ConfigMap", "head")
    until(lambda: cluster.server.is_gone(f"{path}/middle"), seconds=180)
    cluster.await_gone("ConfigMap", "tail", seconds=180)
    cluster.delete("CustomResourceDefinition", f"things.{group}")
