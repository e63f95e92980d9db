"""Deployments: ReplicaSets, rollouts, conditions, scale."""

from __future__ import annotations

import re

from tests.contract.client import Object, until
from tests.contract.controllers.cluster import Cluster, condition, is_ready, names
from tests.contract.controllers.manifests import image_change, owner, pod_spec, unready, workload

NEW = "registry.example/tools/busybox:1.37"
REVISION = "deployment.kubernetes.io/revision"


def await_available(cluster: Cluster, replicas: int, name: str = "web") -> Object:
    def holds(deployment: Object) -> bool:
        status = deployment.get("status", {})
        found = (status.get("replicas", 0), status.get("updatedReplicas", 0), status.get("availableReplicas", 0))
        observed = status.get("observedGeneration") == deployment["metadata"]["generation"]
        return observed and found == (replicas, replicas, replicas)

    return cluster.await_("Deployment", name, holds)


def numbers(deployment: Object) -> dict[str, int]:
    return {key: value for key, value in deployment["status"].items() if key != "conditions"}


def test_the_status_counts_replicas(cluster: Cluster) -> None:
    cluster.create("Deployment", "web", spec=workload("web", replicas=2))
    counted = numbers(await_available(cluster, 2))
    assert counted.pop("terminatingReplicas", 0) == 0, "newer servers count these, too"
    assert counted == {
        "availableReplicas": 2,
        "observedGeneration": 1,
        "readyReplicas": 2,
        "replicas": 2,
        "updatedReplicas": 2,
    }
    event, digest = cluster.await_event("ScalingReplicaSet", "web"), _hash_of(cluster)
    changed = "from 0 to 2" if cluster.server.at_least(1, 28) else "to 2"
    assert (event["type"], event["message"]) == ("Normal", f"Scaled up replica set web-{digest} {changed}")


def _hash_of(cluster: Cluster) -> str:
    (one,) = cluster.every("ReplicaSet")
    return str(one["metadata"]["labels"]["pod-template-hash"])


def test_replicas_that_are_not_ready_are_unavailable(cluster: Cluster) -> None:
    cluster.create("Deployment", "web", spec=workload("web", pod_spec(unready()), replicas=2))
    cluster.await_("Deployment", "web", lambda one: one.get("status", {}).get("unavailableReplicas") == 2)
    deployment = cluster.await_("Deployment", "web", lambda one: one["status"].get("replicas") == 2)
    assert not {"availableReplicas", "readyReplicas"} & deployment["status"].keys()
    told = "Deployment does not have minimum availability."
    assert _told(deployment, "Available") == ("False", "MinimumReplicasUnavailable", told)


def _told(deployment: Object, kind: str) -> tuple[str, str, str]:
    found = condition(deployment, kind)
    return found.get("status", ""), found.get("reason", ""), found.get("message", "")


def test_its_replica_set_carries_the_template_hash(cluster: Cluster) -> None:
    """And its pods belong to the ReplicaSet."""
    made = cluster.create("Deployment", "web", spec=workload("web", replicas=1))
    await_available(cluster, 1)
    (one,), (pod,), digest = cluster.every("ReplicaSet"), cluster.pods(), _hash_of(cluster)
    labels = {"app": "web", "pod-template-hash": digest}
    assert one["metadata"]["name"] == f"web-{digest}"
    assert one["metadata"]["labels"] == pod["metadata"]["labels"] == labels
    assert one["spec"]["selector"] == {"matchLabels": labels}
    assert one["metadata"]["ownerReferences"] == [owner(made, controller=True, blockOwnerDeletion=True)]
    assert pod["metadata"]["ownerReferences"] == [owner(one, controller=True, blockOwnerDeletion=True)]
    assert re.fullmatch(rf"{one['metadata']['name']}-[a-z0-9]{{5}}", pod["metadata"]["name"])
    assert one["metadata"]["annotations"] == {
        REVISION: "1",
        "deployment.kubernetes.io/desired-replicas": "1",
        "deployment.kubernetes.io/max-replicas": "2",
    }


def test_conditions_say_available_and_how_it_got_there(cluster: Cluster) -> None:
    cluster.create("Deployment", "web", spec=workload("web", replicas=1))
    deployment = cluster.await_("Deployment", "web", lambda one: "NewReplicaSetAvailable" in _told(one, "Progressing"))
    told = "Deployment has minimum availability."
    assert _told(deployment, "Available") == ("True", "MinimumReplicasAvailable", told)
    told = f'ReplicaSet "web-{_hash_of(cluster)}" has successfully progressed.'
    assert _told(deployment, "Progressing") == ("True", "NewReplicaSetAvailable", told)


def test_a_condition_says_why_no_pod_can_be_created(cluster: Cluster) -> None:
    """In the words of the refusal, as long as it lasts; its event is on the ReplicaSet."""
    cluster.create("Deployment", "web", spec=workload("web", pod_spec(serviceAccountName="absent"), replicas=1))
    refused = cluster.await_("Deployment", "web", lambda one: _told(one, "ReplicaFailure")[0])
    status, reason, message = _told(refused, "ReplicaFailure")
    assert (status, reason) == ("True", "FailedCreate")
    assert re.match(r'pods "web-[a-z0-9-]+" is forbidden: error looking up service account .* not found$', message)
    assert "Error creating: pods" in cluster.await_event("FailedCreate", f"web-{_hash_of(cluster)}")["message"]
    cluster.create("ServiceAccount", "absent")
    assert not condition(await_available(cluster, 1), "ReplicaFailure")


def test_a_rollout_keeps_all_replicas_available(cluster: Cluster) -> None:
    """25 % of two may be missing: rounded down, none; and 25 % may be too many: rounded up, one."""
    cluster.create("Deployment", "web", spec=workload("web", replicas=2))
    await_available(cluster, 2)
    since, before = cluster.now("Pod"), names(cluster.pods())
    cluster.patch("Deployment", "web", image_change(NEW))
    deployment = await_available(cluster, 2)
    assert min(cluster.count_pods(since, before, is_ready)) == 2
    assert max(cluster.count_pods(since, before, lambda _: True)) == 3
    assert deployment["metadata"]["annotations"][REVISION] == "2"
    sizes = {one["metadata"]["annotations"][REVISION]: one["spec"]["replicas"] for one in cluster.every("ReplicaSet")}
    assert sizes == {"1": 0, "2": 2}


def test_recreate_starts_nothing_before_all_old_pods_are_gone(cluster: Cluster) -> None:
    spec = workload("web", replicas=2, strategy={"type": "Recreate"})
    cluster.create("Deployment", "web", spec=spec)
    await_available(cluster, 2)
    old, since = names(cluster.pods()), cluster.now("Pod")
    cluster.patch("Deployment", "web", image_change(NEW))
    seen = cluster.history("Pod", since, lambda event: event.type == "ADDED")
    assert {event.name for event in seen if event.type == "DELETED"} == old
    await_available(cluster, 2)


def test_going_back_uses_the_old_replica_set_again(cluster: Cluster) -> None:
    made = cluster.create("Deployment", "web", spec=workload("web", replicas=1))
    await_available(cluster, 1)
    (first,) = cluster.every("ReplicaSet")
    for image in (NEW, made["spec"]["template"]["spec"]["containers"][0]["image"]):
        cluster.patch("Deployment", "web", image_change(image))
        await_available(cluster, 1)
    again = cluster.get("ReplicaSet", first["metadata"]["name"])
    assert (again["metadata"]["uid"], again["spec"]["replicas"]) == (first["metadata"]["uid"], 1)
    assert again["metadata"]["annotations"][REVISION] == "3"
    assert len(cluster.every("ReplicaSet")) == 2


def test_scaling_goes_both_ways(cluster: Cluster) -> None:
    """A pod that is deleted is replaced; deleting the Deployment deletes its ReplicaSets and pods."""
    cluster.create("Deployment", "web", spec=workload("web", replicas=1))
    await_available(cluster, 1)
    for replicas in (3, 0, 1):
        cluster.patch("Deployment", "web", {"spec": {"replicas": replicas}})
        await_available(cluster, replicas)
    (before,) = cluster.await_pods(1)
    cluster.delete("Pod", before["metadata"]["name"])
    until(lambda: names([before]).isdisjoint(names(cluster.pods())) and cluster.pods())
    cluster.await_pods(1)
    cluster.delete("Deployment", "web")
    until(lambda: not cluster.every("ReplicaSet"))
    cluster.await_no_pods()


def test_a_replica_set_alone_keeps_its_number(cluster: Cluster) -> None:
    cluster.create("ReplicaSet", "group", spec=workload("group", replicas=2))
    cluster.await_("ReplicaSet", "group", lambda one: one.get("status", {}).get("availableReplicas") == 2)
    status = cluster.get("ReplicaSet", "group")["status"]
    wanted = {"availableReplicas": 2, "fullyLabeledReplicas": 2, "observedGeneration": 1, "readyReplicas": 2}
    assert wanted | {"replicas": 2} == {key: value for key, value in status.items() if key != "terminatingReplicas"}
    assert all(map(is_ready, cluster.pods()))
    before = names(cluster.pods())
    cluster.delete("Pod", min(before))
    until(lambda: min(before) not in names(cluster.pods()))
    assert len(names(cluster.await_pods(2)) & before) == 1
