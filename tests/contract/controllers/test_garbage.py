"""Owners and dependents: what goes with what, and in which order."""

from __future__ import annotations

import uuid

import pytest

from tests.contract.client import Object, until
from tests.contract.controllers.cluster import Cluster, names
from tests.contract.controllers.manifests import owner, pod_spec, workload

HELD = "contract.example/held"


def config_map(cluster: Cluster, name: str, *owners: Object, finalizers: tuple[str, ...] = ()) -> Object:
    """Create a ConfigMap with owners."""
    metadata = {"ownerReferences": list(owners), "finalizers": list(finalizers)}
    return cluster.create("ConfigMap", name, metadata=metadata)


def owners_of(obj: Object) -> list[str]:
    """Return the names of an object's owners."""
    return [one["name"] for one in obj["metadata"].get("ownerReferences") or ()]


def let_go(cluster: Cluster, name: str) -> None:
    """Take the finalizers of a ConfigMap."""
    cluster.patch("ConfigMap", name, {"metadata": {"finalizers": None}})


def test_a_dependent_goes_with_its_only_owner(cluster: Cluster) -> None:
    head = config_map(cluster, "head")
    config_map(cluster, "tail", owner(head))
    cluster.delete("ConfigMap", "head", propagationPolicy="Background")
    cluster.await_gone("ConfigMap", "tail")


def test_in_the_background_the_owner_goes_first(cluster: Cluster) -> None:
    """A dependent that is held back does not hold it."""
    head = config_map(cluster, "head")
    config_map(cluster, "tail", owner(head, blockOwnerDeletion=True), finalizers=(HELD,))
    cluster.delete("ConfigMap", "head", propagationPolicy="Background")
    assert cluster.gone("ConfigMap", "head")
    cluster.await_("ConfigMap", "tail", lambda one: one["metadata"].get("deletionTimestamp"))
    let_go(cluster, "tail")
    cluster.await_gone("ConfigMap", "tail")


def test_foreground_deletion_waits_for_blocking_dependents(cluster: Cluster) -> None:
    head = config_map(cluster, "head")
    config_map(cluster, "tail", owner(head, blockOwnerDeletion=True), finalizers=(HELD,))
    cluster.delete("ConfigMap", "head", propagationPolicy="Foreground")
    cluster.await_("ConfigMap", "tail", lambda one: one["metadata"].get("deletionTimestamp"))
    waiting = cluster.get("ConfigMap", "head")["metadata"]
    assert waiting["finalizers"] == ["foregroundDeletion"]
    assert waiting["deletionTimestamp"]
    let_go(cluster, "tail")
    cluster.await_gone("ConfigMap", "head")


def test_foreground_deletion_does_not_wait_for_others(cluster: Cluster) -> None:
    head = config_map(cluster, "head")
    config_map(cluster, "tail", owner(head), finalizers=(HELD,))
    cluster.delete("ConfigMap", "head", propagationPolicy="Foreground")
    cluster.await_gone("ConfigMap", "head")
    cluster.await_("ConfigMap", "tail", lambda one: one["metadata"].get("deletionTimestamp"))
    let_go(cluster, "tail")


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


def test_orphans_stay_and_lose_the_reference(cluster: Cluster) -> None:
    head = config_map(cluster, "head")
    config_map(cluster, "tail", owner(head))
    cluster.delete("ConfigMap", "head", propagationPolicy="Orphan")
    cluster.await_gone("ConfigMap", "head")
    assert owners_of(cluster.get("ConfigMap", "tail")) == []


def test_a_daemonset_deleted_as_orphan_leaves_pods_and_revisions(cluster: Cluster) -> None:
    cluster.create("DaemonSet", "agent", spec=workload("agent"))
    before = cluster.await_pods(3)
    cluster.delete("DaemonSet", "agent", propagationPolicy="Orphan")
    cluster.await_gone("DaemonSet", "agent")
    assert names(cluster.pods()) == names(before)
    assert [owners_of(one) for one in (*cluster.pods(), *cluster.every("ControllerRevision"))] == [[]] * 4


def test_a_dependent_with_another_owner_stays(cluster: Cluster) -> None:
    first, second = config_map(cluster, "first"), config_map(cluster, "second")
    config_map(cluster, "tail", owner(first), owner(second))
    cluster.delete("ConfigMap", "first", propagationPolicy="Background")
    tail = cluster.await_("ConfigMap", "tail", lambda one: len(owners_of(one)) == 1)
    assert owners_of(tail) == ["second"]


def test_an_object_whose_owner_never_was_goes(cluster: Cluster) -> None:
    absent = {"apiVersion": "v1", "kind": "ConfigMap", "name": "absent", "uid": str(uuid.uuid4())}
    config_map(cluster, "tail", absent)
    cluster.await_gone("ConfigMap", "tail")


def test_an_owner_of_the_same_name_and_another_uid_is_none(cluster: Cluster) -> None:
    """Created again under the old name, it is another one."""
    head = config_map(cluster, "head")
    config_map(cluster, "tail", owner(head) | {"uid": str(uuid.uuid4())})
    cluster.await_gone("ConfigMap", "tail")
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
    head, name = config_map(cluster, "head"), f"{cluster.namespace}-role"
    cluster.create("ClusterRole", name, metadata={"ownerReferences": [owner(head)]}, rules=[])
    inside = Cluster(cluster.server, "default")  # where events of what has no namespace are
    assert 'does not exist in namespace ""' in inside.await_event("OwnerRefInvalidNamespace", name)["message"]
    assert not cluster.gone("ClusterRole", name)
    cluster.delete("ClusterRole", name)


def test_an_owner_without_a_namespace_may_own_what_is_in_one(cluster: Cluster) -> None:
    role = f"{cluster.namespace}-role"
    head = cluster.create("ClusterRole", role, rules=[])
    config_map(cluster, "tail", owner(head))
    config_map(cluster, "free")
    cluster.delete("ClusterRole", role)
    cluster.await_gone("ConfigMap", "tail")
    assert not cluster.gone("ConfigMap", "free")


def test_chains_go_link_by_link(cluster: Cluster) -> None:
    last = config_map(cluster, "link-0")
    for number in range(1, 4):
        last = config_map(cluster, f"link-{number}", owner(last))
    cluster.delete("ConfigMap", "link-0")
    until(lambda: not {f"link-{number}" for number in range(4)} & names(cluster.every("ConfigMap")))


@pytest.mark.parametrize("policy", ["Background", "Foreground", "Orphan"])
def test_without_dependents_every_policy_deletes(cluster: Cluster, policy: str) -> None:
    config_map(cluster, "alone")
    cluster.delete("ConfigMap", "alone", propagationPolicy=policy)
    cluster.await_gone("ConfigMap", "alone")


def test_custom_objects_own_and_are_owned(cluster: Cluster) -> None:
    """The collector finds new kinds by discovery: on a real cluster within half a minute."""
    group = f"{cluster.namespace}.example"
    _define(cluster, group)
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


def _define(cluster: Cluster, group: str) -> None:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    cluster.create(
        "CustomResourceDefinition",
        f"things.{group}",
        spec={
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    )
