"""Nodes: what their conditions and cordons do to their taints, and taints to their pods."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import yaml

from tests.contract.client import Object, Server, until
from tests.contract.controllers.cluster import NODES, Cluster, condition, is_ready, node_of, phase, status_of
from tests.contract.controllers.conftest import conditions
from tests.contract.controllers.manifests import container, pod_spec, workload

NOT_READY = "node.kubernetes.io/not-ready"
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
DRIVEN = {"key": "contract.example/driven", "value": "out", "effect": "NoExecute"}

ChangeNode = Callable[..., None]


def taints(cluster: Cluster, node: str) -> set[tuple[str, str]]:
    return {(taint["key"], taint["effect"]) for taint in cluster.get("Node", node)["spec"].get("taints") or ()}


@pytest.fixture
def unready(server: Server) -> Iterator[Callable[..., None]]:
    """Makes nodes report that they are not ready, for the length of a test."""
    path = "/api/v1/namespaces/kube-system/configmaps"

    def declare(*names: str) -> None:
        faults = [{"fault": "image-pull-fails", "image": "no-such-image"}]
        faults += [{"fault": "node-not-ready", "node": name} for name in names]
        body = {"metadata": {"name": "sandbox-faults"}, "data": {"nodes": yaml.safe_dump(faults)}}
        if server.ask("POST", path, body).code == 409:
            server.patch(f"{path}/sandbox-faults", body)

    yield declare
    declare()
    until(lambda: all(status_of(server.get(f"/api/v1/nodes/{name}"), "Ready") == "True" for name in NODES))
    until(lambda: not any(_is_tainted(server.get(f"/api/v1/nodes/{name}")) for name in NODES))


def _is_tainted(node: Object) -> bool:
    return any(taint["key"] == NOT_READY for taint in node["spec"].get("taints") or ())


def test_a_node_that_reports_ready_loses_its_taint(cluster: Cluster, paper_node: Callable[..., str]) -> None:
    """That taint stands for conditions: a node that has none is not tainted for long."""
    name, mute = paper_node(ready=False), f"{cluster.namespace}-mute"
    until(lambda: (NOT_READY, "NoSchedule") in taints(cluster, name))
    cluster.patch("Node", name, {"status": {"conditions": conditions(ready=True)}}, "status")
    made = cluster.create("Node", mute)
    assert made["spec"]["taints"][0].items() >= {"key": NOT_READY, "effect": "NoSchedule"}.items()
    until(lambda: not taints(cluster, name) and not taints(cluster, mute))
    cluster.delete("Node", mute)


def test_a_cordon_is_a_taint(cluster: Cluster, change_node: ChangeNode) -> None:
    """A pod that is bound by name runs whatever the taints: the scheduler is not asked."""
    change_node("sim-2", unschedulable=True)
    until(lambda: (UNSCHEDULABLE, "NoSchedule") in taints(cluster, "sim-2"))
    cluster.create("Pod", "bound", spec=pod_spec(container("main", "true"), nodeName="sim-2", restartPolicy="Never"))
    cluster.await_("Pod", "bound", lambda pod: phase(pod) == "Succeeded")
    change_node("sim-2", unschedulable=False)
    until(lambda: not taints(cluster, "sim-2"))


@pytest.mark.parametrize("server", [pytest.param("real", marks=pytest.mark.real)], indirect=True)
def test_pods_of_a_node_that_falls_silent_are_not_ready(cluster: Cluster, paper_node: Callable[..., str]) -> None:
    """After 40 s of silence; kubelets of the sandbox never fall silent."""
    name = paper_node()
    cluster.create("Pod", "web", spec=pod_spec(nodeName=name))
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    cluster.patch("Pod", "web", {"status": {"phase": "Running", "conditions": [ready]}}, "status")
    until(lambda: status_of(cluster.get("Pod", "web"), "Ready") == "False", seconds=120)
    found = condition(cluster.get("Node", name), "Ready")
    assert (found["status"], found["reason"]) == ("Unknown", "NodeStatusUnknown")
    assert found["message"] == "Kubelet stopped posting node status."
    until(lambda: ("node.kubernetes.io/unreachable", "NoExecute") in taints(cluster, name))


def test_pods_of_daemonsets_stay_on_a_node_that_is_not_ready(cluster: Cluster, unready: Callable[..., None]) -> None:
    """And are ready: its kubelet speaks for them. Other pods tolerate it for 300 seconds unless they say otherwise."""
    cluster.create("DaemonSet", "agent", spec=workload("agent"))
    cluster.await_pods(3)
    hasty = {"key": NOT_READY, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0}
    cluster.create("Pod", "hasty", spec=pod_spec(nodeName="sim-3", tolerations=[hasty]))
    cluster.create("Pod", "patient", spec=pod_spec(nodeName="sim-3"))
    cluster.await_("Pod", "hasty", is_ready)
    patience = [one for one in cluster.get("Pod", "patient")["spec"]["tolerations"] if one["key"] == NOT_READY]
    assert patience == [hasty | {"tolerationSeconds": 300}]
    unready("sim-3")
    cluster.await_gone("Pod", "hasty")
    until(lambda: taints(cluster, "sim-3") >= {(NOT_READY, "NoSchedule"), (NOT_READY, "NoExecute")})
    found = condition(cluster.get("Node", "sim-3"), "Ready")
    assert (found["status"], found["reason"]) == ("False", "KubeletNotReady")
    assert not cluster.gone("Pod", "patient")
    assert "sim-3" in map(node_of, cluster.await_pods(3, "app=agent"))


def test_a_no_execute_taint_drives_out_who_does_not_tolerate_it(cluster: Cluster, change_node: ChangeNode) -> None:
    """Pods of a DaemonSet, too."""
    cluster.create("DaemonSet", "agent", spec=workload("agent"))
    cluster.await_pods(3)
    tolerates: Object = {"key": DRIVEN["key"], "operator": "Exists", "effect": "NoExecute"}
    for name, tolerations in (("goes", []), ("stays", [tolerates]), ("soon", [tolerates | {"tolerationSeconds": 1}])):
        cluster.create("Pod", name, spec=pod_spec(nodeName="sim-2", tolerations=tolerations))
        cluster.await_("Pod", name, is_ready)
    change_node("sim-2", taints=(DRIVEN,))
    cluster.await_gone("Pod", "goes")
    cluster.await_gone("Pod", "soon")
    assert is_ready(cluster.get("Pod", "stays"))
    event = cluster.await_event("TaintManagerEviction", "goes")
    assert event["message"] == f"Marking for deletion Pod {cluster.namespace}/goes"
    until(lambda: sorted(map(node_of, cluster.every("Pod", "app=agent"))) == ["sim-1", "sim-3"])


def test_pods_of_a_node_that_is_gone_go(cluster: Cluster, paper_node: Callable[..., str]) -> None:
    """No kubelet ends them. A real cluster takes a minute to believe it."""
    name = paper_node()
    cluster.create("Pod", "lost", spec=pod_spec(nodeName=name))
    cluster.delete("Node", name)
    cluster.await_gone("Pod", "lost", seconds=180)


def test_a_node_keeps_its_lease(cluster: Cluster) -> None:
    path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/sim-1"
    before = cluster.server.get(path)
    assert before["spec"]["holderIdentity"] == "sim-1"
    assert before["metadata"]["ownerReferences"][0]["kind"] == "Node"
    until(lambda: cluster.server.get(path)["spec"]["renewTime"] > before["spec"]["renewTime"])
