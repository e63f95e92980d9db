"""The guard of nodes, where its cluster does not answer as hoped; what it does on a cluster is in the scenarios."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_provision.components.labels import COMPONENT, CORDONED
from gpu_provision.hosts.messages import NodeRole
from gpu_provision.kube.client import KubeClient, connect
from gpu_provision.kube.errors import AlreadyExistsError
from gpu_provision.model.cluster import ObjectRef
from gpu_provision.model.findings import Finding, RunFailedError, UnreachableError
from gpu_provision.model.hosts import Drain
from gpu_provision.model.inventory import ClusterConfig
from gpu_provision.nodes import drain
from gpu_provision.nodes.maintenance import NodeMaintenance
from gpu_provision.rollout import states
from tests.components.builders import inventory
from tests.sandbox.apiserver.conftest import Running

BOOT = "boot-1"


@pytest.fixture
def guard(server: Running) -> Iterator[NodeMaintenance]:
    target = ClusterConfig(kubeconfig=str(server.server.kubeconfig))
    with contextlib.closing(NodeMaintenance(replace(inventory(), cluster=target))) as made:
        yield made


@pytest.fixture
def cluster(server: Running) -> KubeClient:
    return connect(str(server.server.kubeconfig))


def node(cluster: KubeClient, name: str, **labels: str) -> ObjectRef:
    cluster.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
    return ObjectRef("v1", "Node", "", name)


def test_nodes_are_members_unless_the_control_plane_runs_on_them(cluster: KubeClient, guard: NodeMaintenance) -> None:
    """All nodes are asked for at once: a hundred hosts cost one request."""
    node(cluster, "worker")
    node(cluster, "control", **{"node-role.kubernetes.io/control-plane": ""})
    node(cluster, "old-control", **{"node-role.kubernetes.io/master": ""})
    places = [guard.membership(name).role for name in ("worker", "control", "old-control", "elsewhere")]
    assert places == [NodeRole.MEMBER, NodeRole.CONTROL_PLANE, NodeRole.CONTROL_PLANE, NodeRole.NOT_A_NODE]
    assert guard._cluster is not None
    assert guard._cluster.requests == 1


def test_a_cluster_that_does_not_answer_is_not_known(tmp_path: Path) -> None:
    """Whether that matters is for the host to say."""
    missing = ClusterConfig(kubeconfig=str(tmp_path / "none"))
    standing = NodeMaintenance(replace(inventory(), cluster=missing)).membership("worker")
    assert standing.role is NodeRole.UNKNOWN
    assert "kubeconfig" in standing.unknown_reason


@pytest.fixture(autouse=True)
def home(cluster: KubeClient, guard: NodeMaintenance) -> None:
    with contextlib.suppress(AlreadyExistsError):
        name = guard.inventory.cluster.namespace
        cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})


def first_run(server: Running, namespace: str) -> NodeMaintenance:
    target = ClusterConfig(kubeconfig=str(server.server.kubeconfig), namespace=namespace)
    return NodeMaintenance(replace(inventory(), cluster=target))


def test_two_first_runs_do_not_drain_at_the_same_time(cluster: KubeClient, server: Running) -> None:
    """The namespace of the lock is made before the first cordon, as an apply makes it, and stays for that."""
    node(cluster, "one")
    ref = node(cluster, "two")
    with (
        contextlib.closing(first_run(server, "fresh")) as first,
        contextlib.closing(first_run(server, "fresh")) as other,
    ):
        first.cordon_and_drain("one", Drain(), lambda _: None)
        with pytest.raises(RunFailedError, match="another run is writing"):
            other.cordon_and_drain("two", Drain(), lambda _: None)
    assert "unschedulable" not in cluster.read(ref)["spec"]
    made = cluster.read(ObjectRef("v1", "Namespace", "", "fresh"))["metadata"]
    assert made["labels"][COMPONENT] == "prerequisites"
    assert "deletionTimestamp" not in made


def test_first_run_without_a_drain_leaves_no_namespace(
    cluster: KubeClient, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is as if it had not been."""
    node(cluster, "kept")

    def fail(*_: object, **__: object) -> tuple[str, ...]:
        raise RunFailedError(Finding(code="GP696", what="too late"))

    monkeypatch.setattr(drain, "drain", fail)
    with contextlib.closing(first_run(server, "vain")) as guard, pytest.raises(RunFailedError):
        guard.cordon_and_drain("kept", Drain(), lambda _: None)
    left = cluster.get(ObjectRef("v1", "Namespace", "", "vain"))
    assert left is None or left["metadata"]["deletionTimestamp"], "controllers take it away, and here are none"


def test_silent_cluster_leaves_the_node_cordoned(
    cluster: KubeClient, guard: NodeMaintenance, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = node(cluster, "lost")

    def silent(*_: object, **__: object) -> tuple[str, ...]:
        raise UnreachableError(Finding(code="GP301", what="the API server does not answer"))

    monkeypatch.setattr(drain, "drain", silent)
    monkeypatch.setattr("gpu_provision.nodes.drain.uncordon", silent)
    with pytest.raises(RunFailedError, match="its node stays cordoned"):
        guard.cordon_and_drain("lost", Drain(), lambda _: None)
    assert guard.cordoned == {"lost"}
    assert CORDONED in cluster.read(ref)["metadata"]["annotations"]


def test_a_node_that_is_not_ready_in_the_new_boot_stays_cordoned(cluster: KubeClient, guard: NodeMaintenance) -> None:
    """A Ready of the boot before is none: a kubelet that is gone does not take it back."""
    ref, said = node(cluster, "late"), list[str]()
    guard.cordon_and_drain("late", Drain(), said.append)
    with pytest.raises(RunFailedError, match="not ready 0 s later") as caught:
        guard.wait_and_uncordon("late", BOOT, 0, said.append)
    assert caught.value.findings[0].evidence == "its kubelet has not reported since the reboot"
    assert cluster.read(ref)["spec"]["unschedulable"]
    assert guard.cordoned == {"late"}


def test_stop_ends_all_drains(cluster: KubeClient, guard: NodeMaintenance) -> None:
    """A node is given back that has pods left; they could be evicted, and are not."""
    ref = node(cluster, "stopped")
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "on-stopped", "namespace": "default"},
        "spec": {"nodeName": "stopped", "containers": [{"name": "c", "image": "i"}]},
    }
    cluster.create(pod)
    guard.stop()
    with pytest.raises(RunFailedError):
        guard.cordon_and_drain("stopped", Drain(force=True), lambda _: None)
    assert "unschedulable" not in cluster.read(ref)["spec"]
    assert "deletionTimestamp" not in cluster.read(ObjectRef("v1", "Pod", "default", "on-stopped"))["metadata"]


def test_a_cordon_of_a_rollout_outlives_a_reboot(cluster: KubeClient, guard: NodeMaintenance) -> None:
    """Its node failed to get another driver, say; its owner lifts it."""
    ref = node(cluster, "upgraded")
    marks = {"annotations": {states.CORDONED: states.MANAGER}, "labels": {states.STATE: "upgrade-failed"}}
    status = {"nodeInfo": {"bootID": BOOT}, "conditions": [{"type": "Ready", "status": "True"}]}
    cluster.merge_patch(ref, {"metadata": marks, "spec": {"unschedulable": True}})
    cluster.merge_patch(ref, {"status": status}, part="status")
    guard.cordon_and_drain("upgraded", Drain(), lambda _: None)
    guard.wait_and_uncordon("upgraded", BOOT, 30, lambda _: None)
    live = cluster.read(ref)
    assert live["spec"]["unschedulable"]
    assert live["metadata"]["annotations"] == marks["annotations"]
