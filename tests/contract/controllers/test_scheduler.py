"""The scheduler: where pods go, and what it says about those that go nowhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpu_provision.diagnostics import pods as diagnose
from gpu_provision.reconcile.states import BUSY
from tests.contract.client import Object, until
from tests.contract.controllers.cluster import DEDICATED, TAINTED, Cluster, condition, is_ready, node_of
from tests.contract.controllers.manifests import container, pod_spec

PaperNode = Callable[..., str]


def gpus(count: int) -> Object:
    return container(resources={"limits": {"nvidia.com/gpu": str(count)}})


def on(node: str, *containers: Object, **more: object) -> Object:
    return pod_spec(*containers, nodeSelector={"kubernetes.io/hostname": node}, **more)


def await_unschedulable(cluster: Cluster, name: str, why: str = "") -> Object:
    """Return a pod once the scheduler has said that it fits nowhere, and why.

    It hears of pods and of nodes by two ways: what it says first may be of a node that it has not heard of yet.
    """
    return cluster.await_("Pod", name, lambda pod: _is_unschedulable(pod) and why in scheduler_message(pod))


def _is_unschedulable(pod: Object) -> bool:
    return bool(condition(pod, "PodScheduled").get("status") == "False")


def await_bound(cluster: Cluster, name: str) -> str:
    return node_of(cluster.await_("Pod", name, node_of))


def scheduler_message(pod: Object) -> str:
    return str(condition(pod, "PodScheduled")["message"])


def test_a_pod_is_bound_and_says_so(cluster: Cluster) -> None:
    """The pods of another scheduler are left alone."""
    cluster.create("Pod", "theirs", spec=pod_spec(schedulerName="contract"))
    cluster.create("Pod", "web", spec=pod_spec())
    node = await_bound(cluster, "web")
    pod = cluster.await_("Pod", "web", is_ready)
    assert condition(pod, "PodScheduled")["status"] == "True"
    event, message = cluster.await_event("Scheduled", "web"), f"Successfully assigned {cluster.namespace}/web to {node}"
    assert (event["type"], event["message"]) == ("Normal", message)
    theirs = cluster.get("Pod", "theirs")
    assert (node_of(theirs), theirs["status"].get("conditions") or []) == ("", [])


def test_a_tainted_node_takes_only_who_tolerates_it(cluster: Cluster) -> None:
    cluster.create("Pod", "in", spec=on(TAINTED, tolerations=[DEDICATED]))
    cluster.create("Pod", "out", spec=on(TAINTED))
    assert await_bound(cluster, "in") == TAINTED
    new = "untolerated taint"  # which one is not told by all
    old = "taint {contract.example/dedicated: yes}, that the pod didn't tolerate"
    await_unschedulable(cluster, "out", new if cluster.server.at_least(1, 24) else old)


def test_a_pod_that_fits_nowhere_has_a_condition_and_an_event(cluster: Cluster) -> None:
    cluster.create("Pod", "big", spec=pod_spec(gpus(64)))
    pod = await_unschedulable(cluster, "big")
    found = condition(pod, "PodScheduled")
    assert found["reason"] == "Unschedulable"
    assert found["message"].startswith("0/")
    assert "nodes are available: " in found["message"]
    event = cluster.await_event("FailedScheduling", "big", lambda one: one["message"] == found["message"])
    assert event["type"] == "Warning"
    assert pod["status"]["phase"] == "Pending"


def test_too_few_gpus_are_named_in_the_words_that_the_tool_reads(cluster: Cluster, paper_node: PaperNode) -> None:
    """The engine puts a validation off, and diagnose names the remedy, by these words."""
    name = paper_node(gpus=1)
    cluster.create("Pod", "first", spec=on(name, gpus(1)))
    assert await_bound(cluster, "first") == name
    cluster.create("Pod", "second", spec=on(name, gpus(1)))
    pod = await_unschedulable(cluster, "second", BUSY)
    assert diagnose.cause(pod) == f"Unschedulable: {scheduler_message(pod)}"


def test_a_gpu_that_gets_free_is_given_to_who_waits(cluster: Cluster, paper_node: PaperNode) -> None:
    """Whether its pod has gone or has ended; and GPUs that appear, as when a device plugin has registered."""
    name, ends = paper_node(gpus=0), {"status": {"phase": "Succeeded"}}
    cluster.create("Pod", "first", spec=on(name, gpus(1), restartPolicy="Never"))
    await_unschedulable(cluster, "first")
    more = {"nvidia.com/gpu": "1"}
    cluster.patch("Node", name, {"status": {"capacity": more, "allocatable": more}}, "status")
    for pod, waits in (("first", "second"), ("second", "third")):
        assert await_bound(cluster, pod) == name
        cluster.create("Pod", waits, spec=on(name, gpus(1)))
        await_unschedulable(cluster, waits)
        if pod == "first":
            cluster.patch("Pod", pod, ends, "status")
        else:
            cluster.delete("Pod", pod, gracePeriodSeconds=0)
    assert await_bound(cluster, "third") == name


def test_a_full_node_takes_no_more_pods(cluster: Cluster, paper_node: PaperNode) -> None:
    """Of init containers the largest counts."""
    name = paper_node(gpus=2, pods=1)
    cluster.create("Pod", "pod", spec=on(name, gpus(1), initContainers=[{**gpus(3), "name": "first"}]))
    await_unschedulable(cluster, "pod", BUSY)
    cluster.create("Pod", "first", spec=on(name))
    await_bound(cluster, "first")
    cluster.create("Pod", "second", spec=on(name))
    await_unschedulable(cluster, "second", "Too many pods")


def test_a_cordoned_node_takes_no_pod(cluster: Cluster, change_node: Callable[..., None]) -> None:
    change_node("sim-2", unschedulable=True)
    name = until(lambda: _turned_away_from(cluster, "sim-2"))  # the first may come before the scheduler has heard
    assert "were unschedulable" in scheduler_message(cluster.get("Pod", name))
    change_node("sim-2", unschedulable=False)
    assert await_bound(cluster, name) == "sim-2"


def _turned_away_from(cluster: Cluster, node: str) -> str:
    """Create a pod for a node; return its name, or nothing if it was bound."""
    made = cluster.server.make(cluster.path("Pod"), {"metadata": {"generateName": "web-"}, "spec": on(node)})
    name: str = made["metadata"]["name"]
    pod = cluster.await_("Pod", name, lambda pod: node_of(pod) or _is_unschedulable(pod))
    return "" if node_of(pod) else name


def test_a_label_that_a_node_gets_is_seen(cluster: Cluster, on_nodes: Callable[..., Object]) -> None:
    """Until then, no node with that label is the reason."""
    cluster.create("Pod", "web", spec=pod_spec(nodeSelector={cluster.mark: "yes"}))
    await_unschedulable(cluster, "web", "didn't match Pod's node affinity")
    on_nodes("sim-3")
    assert await_bound(cluster, "web") == "sim-3"


def test_required_anti_affinity_keeps_pods_apart(cluster: Cluster, paper_node: PaperNode) -> None:
    """As between the drivers of two DaemonSets on one node; it counts in both directions."""
    name, labels = paper_node(), {"labels": {"kind": "driver"}}
    term = {"labelSelector": {"matchLabels": labels["labels"]}, "topologyKey": "kubernetes.io/hostname"}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    cluster.create("Pod", "first", metadata=labels, spec=on(name, affinity=affinity))
    assert await_bound(cluster, "first") == name
    cluster.create("Pod", "second", metadata=labels, spec=on(name, affinity=affinity))
    cluster.create("Pod", "quiet", metadata=labels, spec=on(name))
    for waits in ("second", "quiet"):
        await_unschedulable(cluster, waits, "anti-affinity")
    cluster.create("Pod", "other", spec=on(name))
    assert await_bound(cluster, "other") == name
    cluster.delete("Pod", "quiet")
    cluster.delete("Pod", "first", gracePeriodSeconds=0)
    assert await_bound(cluster, "second") == name


@pytest.mark.parametrize(
    ("name", "value"), [("system-node-critical", 2_000_001_000), ("system-cluster-critical", 2_000_000_000)]
)
def test_the_system_s_priority_classes_are_there(cluster: Cluster, name: str, value: int) -> None:
    cluster.create("Pod", "vital", spec=pod_spec(priorityClassName=name))
    spec = cluster.get("Pod", "vital")["spec"]
    assert (spec["priority"], spec["preemptionPolicy"]) == (value, "PreemptLowerPriority")


def test_pods_of_a_deployment_spread_over_nodes_that_are_alike(cluster: Cluster) -> None:
    requests = {"requests": {"cpu": "1", "memory": "1Gi"}}
    for number in range(3):
        cluster.create("Pod", f"web-{number}", spec=pod_spec(container(resources=requests)))
    bound = {await_bound(cluster, f"web-{number}") for number in range(3)}
    assert len(bound) == 3
