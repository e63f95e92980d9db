"""DaemonSets: which nodes get a pod, what the pods are like, and what the status says."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.contract.client import Object, until
from tests.contract.controllers.cluster import DEDICATED, NODES, TAINTED, Cluster, names, nodes_of
from tests.contract.controllers.manifests import PROBE, container, owner, pod_spec, workload

OnNodes = Callable[..., Object]
AUTOMATIC_TOLERATIONS = [
    {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"},
    {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"},
    {"key": "node.kubernetes.io/disk-pressure", "operator": "Exists", "effect": "NoSchedule"},
    {"key": "node.kubernetes.io/memory-pressure", "operator": "Exists", "effect": "NoSchedule"},
    {"key": "node.kubernetes.io/pid-pressure", "operator": "Exists", "effect": "NoSchedule"},
    {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"},
]


def counts(daemonset: Object) -> dict[str, int]:
    """Return the numbers of a DaemonSet's status by short names; those that are left out are 0."""
    short = {
        "desired": "desiredNumberScheduled",
        "current": "currentNumberScheduled",
        "ready": "numberReady",
        "updated": "updatedNumberScheduled",
        "available": "numberAvailable",
        "unavailable": "numberUnavailable",
        "misscheduled": "numberMisscheduled",
    }
    return {key: daemonset.get("status", {}).get(field, 0) for key, field in short.items()}


def await_counts(cluster: Cluster, name: str, **wanted: int) -> Object:
    """Return a DaemonSet once its status has these numbers, for its present generation."""

    def holds(daemonset: Object) -> bool:
        observed = daemonset.get("status", {}).get("observedGeneration") == daemonset["metadata"]["generation"]
        return observed and wanted.items() <= counts(daemonset).items()

    return cluster.await_("DaemonSet", name, holds)


def test_pods_are_pinned_to_their_node_by_affinity(cluster: Cluster) -> None:
    """What diagnose reads the node of an unbound pod off; every node without a taint gets one."""
    cluster.create("DaemonSet", "agent", spec=workload("agent"))
    pods = cluster.await_pods(len(NODES), "app=agent")
    assert nodes_of(pods) == sorted(NODES)
    for pod in pods:
        by_name = {"key": "metadata.name", "operator": "In", "values": [pod["spec"]["nodeName"]]}
        terms = {"nodeSelectorTerms": [{"matchFields": [by_name]}]}
        node_affinity = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
        assert pod["spec"]["affinity"]["nodeAffinity"] == node_affinity
    message = f"Created pod: {pods[0]['metadata']['name']}"
    event = cluster.await_event("SuccessfulCreate", "agent", lambda event: event["message"] == message)
    assert (event["type"], event["source"]) == ("Normal", {"component": "daemonset-controller"})


@pytest.mark.parametrize(
    ("operator", "values", "chosen"),
    [
        ("In", ["sim-1", "sim-2"], ["sim-1", "sim-2"]),
        ("NotIn", ["sim-1", "sim-2"], ["sim-3"]),
        ("Exists", None, ["sim-1", "sim-2", "sim-3"]),
        ("DoesNotExist", None, []),
    ],
)
def test_required_node_affinity_chooses_the_nodes(
    cluster: Cluster, operator: str, values: list[str] | None, chosen: list[str]
) -> None:
    expression = {"key": "kubernetes.io/hostname", "operator": operator, "values": values}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    # Nodes that other tests made for themselves have other names.
    cluster.create("DaemonSet", "agent", spec=workload("agent", pod_spec(affinity=affinity)))
    await_counts(cluster, "agent", desired=len(chosen), ready=len(chosen))
    assert nodes_of(cluster.pods()) == chosen


def test_the_status_counts_pods_that_are_ready(cluster: Cluster) -> None:
    """A number that is 0 is left out, but for the four that always stand there."""
    cluster.create("DaemonSet", "agent", spec=workload("agent"))
    status = await_counts(cluster, "agent", desired=3, current=3, ready=3, updated=3, available=3)["status"]
    assert (status["observedGeneration"], status["numberMisscheduled"]) == (1, 0)
    assert "numberUnavailable" not in status
    cluster.create("DaemonSet", "none", spec=workload("none", pod_spec(nodeSelector={cluster.mark: "none"})))
    assert await_counts(cluster, "none", desired=0)["status"] == {
        "currentNumberScheduled": 0,
        "desiredNumberScheduled": 0,
        "numberMisscheduled": 0,
        "numberReady": 0,
        "observedGeneration": 1,
    }


def test_pods_are_owned_and_controlled_by_their_daemonset(cluster: Cluster) -> None:
    """They carry the template's labels, revision and generation, and the revision holds the template."""
    made = cluster.create("DaemonSet", "agent", spec=workload("agent"))
    pods = cluster.await_pods(3)
    (revision,) = cluster.every("ControllerRevision")
    hashed = {"app": "agent", "controller-revision-hash": revision["metadata"]["labels"]["controller-revision-hash"]}
    for pod in pods:
        assert pod["metadata"]["labels"] == {**hashed, "pod-template-generation": "1"}
        assert pod["metadata"]["generateName"] == "agent-"
        assert re.fullmatch(r"agent-[a-z0-9]{5}", pod["metadata"]["name"])
    for owned in (*pods, revision):
        assert owned["metadata"]["ownerReferences"] == [owner(made, controller=True, blockOwnerDeletion=True)]
    assert revision["metadata"]["name"] == f"agent-{hashed['controller-revision-hash']}"
    assert revision["metadata"]["labels"] == hashed
    assert revision["revision"] == 1
    assert revision["data"]["spec"]["template"] == {"$patch": "replace", **made["spec"]["template"]}


@pytest.mark.parametrize("host_network", [False, True], ids=["own network", "host network"])
def test_pods_tolerate_what_every_daemon_must(cluster: Cluster, host_network: bool) -> None:  # noqa: FBT001 - a parameter
    """And their own toleration brings them to the tainted node."""
    spec = pod_spec(hostNetwork=host_network, tolerations=[DEDICATED])
    cluster.create("DaemonSet", "agent", spec=workload("agent", spec))
    more = {"key": "node.kubernetes.io/network-unavailable", "operator": "Exists", "effect": "NoSchedule"}
    pods = cluster.await_pods(4)
    assert nodes_of(pods) == sorted((*NODES, TAINTED))
    assert pods[0]["spec"]["tolerations"] == [DEDICATED, *AUTOMATIC_TOLERATIONS, *([more] if host_network else [])]


def test_deleting_it_deletes_its_pods_and_revisions(cluster: Cluster) -> None:
    """A pod that is deleted alone comes back on its node."""
    cluster.create("DaemonSet", "agent", spec=workload("agent"))
    before = cluster.await_pods(3)
    cluster.delete("Pod", before[0]["metadata"]["name"])
    until(lambda: before[0]["metadata"]["name"] not in names(cluster.pods()))
    after = cluster.await_pods(3)
    assert len(names(before) & names(after)) == 2
    assert nodes_of(after) == sorted(NODES)
    cluster.delete("DaemonSet", "agent")
    cluster.await_no_pods()
    until(lambda: not cluster.every("ControllerRevision"))


def test_a_pod_that_failed_is_replaced(cluster: Cluster, on_nodes: OnNodes) -> None:
    """As after an eviction by the kubelet."""
    spec = pod_spec(nodeSelector=on_nodes("sim-1"))
    cluster.create("DaemonSet", "agent", spec=workload("agent", spec))
    (pod,) = cluster.await_pods(1)
    failed = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
    cluster.patch("Pod", pod["metadata"]["name"], {"status": failed}, "status")
    until(lambda: names(cluster.pods()) and names([pod]).isdisjoint(names(cluster.pods())))
    cluster.await_pods(1)
    event = cluster.await_event("FailedDaemonPod", "agent")
    assert event["type"] == "Warning"
    assert event["message"] == (
        f"Found failed daemon pod {cluster.namespace}/{pod['metadata']['name']} on node sim-1, will try to kill it"
    )


def test_taking_the_label_from_a_node_takes_its_pod(cluster: Cluster, on_nodes: OnNodes) -> None:
    """And a node that gets the label gets a pod."""
    spec = pod_spec(nodeSelector=on_nodes("sim-1", "sim-2"))
    cluster.create("DaemonSet", "agent", spec=workload("agent", spec))
    await_counts(cluster, "agent", desired=2, available=2)
    assert nodes_of(cluster.pods()) == ["sim-1", "sim-2"]
    cluster.patch("Node", "sim-2", {"metadata": {"labels": {cluster.mark: None}}})
    await_counts(cluster, "agent", desired=1, current=1, misscheduled=0)
    until(lambda: nodes_of(cluster.every("Pod")) == ["sim-1"])
    on_nodes("sim-3")
    assert nodes_of(cluster.await_pods(2)) == ["sim-1", "sim-3"]


def test_a_node_that_joins_gets_a_pod(cluster: Cluster, paper_node: Callable[..., str]) -> None:
    """But none yet before it is ready: daemons tolerate that a node becomes unready, not that it never was ready."""
    spec = pod_spec(nodeSelector={cluster.mark: "yes"})
    paper_node(ready=False, labels={cluster.mark: "yes"})
    cluster.create("DaemonSet", "agent", spec=workload("agent", spec))
    await_counts(cluster, "agent", desired=0)
    name = paper_node(labels={cluster.mark: "yes"})
    assert nodes_of(cluster.await_pods(1, condition=lambda pod: pod["spec"].get("nodeName"))) == [name]
    await_counts(cluster, "agent", desired=1, current=1, unavailable=1)


def test_a_cordoned_node_gets_a_pod(cluster: Cluster, on_nodes: OnNodes, change_node: Callable[..., None]) -> None:
    """It becomes ready with its readiness probe."""
    change_node("sim-3", unschedulable=True)
    spec = pod_spec(container(readinessProbe=PROBE), nodeSelector=on_nodes("sim-3"))
    cluster.create("DaemonSet", "agent", spec=workload("agent", spec))
    assert nodes_of(cluster.await_pods(1)) == ["sim-3"]


def test_orphaned_pods_are_adopted_by_the_same_template(cluster: Cluster) -> None:
    """What is deleted as orphan leaves pods and revisions."""
    cluster.create("DaemonSet", "agent", spec=workload("agent"))
    before = cluster.await_pods(3)
    await_counts(cluster, "agent", updated=3, ready=3, available=3)  # else its controller may adopt once more
    cluster.delete("DaemonSet", "agent", propagationPolicy="Orphan")
    cluster.await_gone("DaemonSet", "agent")
    left = (*cluster.pods(), *cluster.every("ControllerRevision"))
    assert [one["metadata"].get("ownerReferences") or [] for one in left] == [[]] * 4
    made = cluster.create("DaemonSet", "agent", spec=workload("agent"))
    after = cluster.await_pods(3, condition=lambda pod: pod["metadata"].get("ownerReferences"))
    assert names(before) == names(after)
    assert {pod["metadata"]["ownerReferences"][0]["uid"] for pod in after} == {made["metadata"]["uid"]}
    await_counts(cluster, "agent", updated=3)
