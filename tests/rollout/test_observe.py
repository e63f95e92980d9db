"""What a snapshot says of objects as a cluster shows them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpu_provision.rollout import states
from gpu_provision.rollout.observe import (
    ClusterObjects,
    DesiredDriver,
    budgets_of,
    claims_of,
    fleet_digest,
    is_ours,
    observe,
    pod_of,
    use_of,
)
from gpu_provision.rollout.snapshot import DesiredContent, DisruptionBudget, DriverPod, FleetNode, GpuUse
from gpu_provision.rollout.states import UpgradeState, installation_digest

READY = {"conditions": [{"type": "Ready", "status": "True"}], "phase": "Running"}
STACK, COMPONENT = "gpu-provision.io/stack", "gpu-provision.io/component"


def template(digest: str) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "d", "env": [{"name": "DRIVER_CONFIG_DIGEST", "value": digest}]}]}}


def node(name: str = "n1", *, spec: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": "7", **metadata}, "spec": spec or {}, "status": READY}


def ours(component: str, **parts: Any) -> dict[str, Any]:
    """Return a pod of the stack on node n1."""
    owners = [{"kind": "DaemonSet", "name": "driver", "controller": True}]
    labels = {STACK: "prod", COMPONENT: component, **parts.pop("labels", {})}
    metadata = {"name": component, "uid": f"{component}-1", "labels": labels, "ownerReferences": owners}
    content = template(parts.pop("digest", "old"))["spec"]
    metadata |= parts.pop("metadata", {})
    return {"metadata": metadata, "spec": {**content, "nodeName": "n1"}, "status": parts.pop("status", READY)}


def work(**resources: str) -> dict[str, Any]:
    containers = [{"name": "m", "resources": {"limits": resources}}]
    metadata = {"name": "train", "namespace": "default", "uid": "w-1"}
    return {"metadata": metadata, "spec": {"nodeName": "n1", "containers": containers}, "status": {"phase": "Running"}}


def seen_node(*pods: dict[str, Any], of: dict[str, Any] | None = None) -> FleetNode:
    declared = {"n1": DesiredDriver(domain="d", position=3, template=template("new"), version="560")}
    (found,) = observe(declared, ClusterObjects(nodes=[of or node()], pods=pods), now=1.0).nodes
    return found


def test_nodes_come_in_the_order_of_the_inventory() -> None:
    """A node that is declared and does not exist is no node."""
    declared = {
        name: DesiredDriver(domain="d", position=place, template=template("new")) for place, name in enumerate("cba")
    }
    live = [node("a"), node("c"), node("stranger")]
    snapshot = observe(declared, ClusterObjects(nodes=live, pods=()), now=5.0, previous=fleet_digest(declared))
    assert [each.name for each in snapshot.nodes] == ["c", "a"]
    assert snapshot.now == 5.0
    assert snapshot.is_rolling_back, "what is wanted is what was there before"


def test_the_driver_is_compared_by_its_installation() -> None:
    """The rest of the pod template may differ without a restart."""
    found = seen_node(ours("driver", digest="old"))
    assert found.wanted == DesiredContent("new", "560")
    assert found.driver == DriverPod(uid="driver-1", digest="old", is_ready=True)
    assert installation_digest({"spec": {"containers": [{"name": "d"}]}}) == ""


def test_state_memory_and_cordon_are_read_off_the_node() -> None:
    """Whose cordon it is stands in the API server's books."""
    books = [
        {"manager": "kubelet", "time": "2026-11-21T09:00:00Z", "fieldsV1": {"f:status": {}}},
        {"manager": "gpu-provision", "time": "2026-11-21T07:00:00Z", "fieldsV1": {"f:spec": {"f:unschedulable": {}}}},
        {"manager": "kubectl-cordon", "time": "2026-11-21T08:00:00Z", "fieldsV1": {"f:spec": {"f:unschedulable": {}}}},
    ]
    live = node(
        spec={"unschedulable": True},
        labels={states.STATE: "pod-restart-required"},
        annotations={states.SINCE: "12"},
        managedFields=books,
    )
    found = seen_node(of=live)
    assert found.state is UpgradeState.POD_RESTART_REQUIRED
    assert (found.revision, found.since(), found.is_cordoned) == ("7", 12.0, True)
    assert found.cordoned_by == "kubectl-cordon"
    assert seen_node().cordoned_by == ""


def test_a_driver_pod_that_stays_counts_more_than_one_that_goes() -> None:
    """Both are there for a moment while one is replaced."""
    going = ours("driver", metadata={"uid": "driver-0", "deletionTimestamp": "2026-11-21T08:00:00Z"})
    assert seen_node(going, ours("driver", digest="new")).driver == DriverPod(
        uid="driver-1", digest="new", is_ready=True
    )
    alone = seen_node(going).driver
    assert alone is not None
    assert (alone.is_terminating, alone.is_ready) == (True, False)


@pytest.mark.parametrize(
    ("operand", "plugin", "offered", "offers"),
    [
        ("true", READY, {"nvidia.com/gpu": "1", "cpu": "8"}, True),
        ("true", READY, {"nvidia.com/gpu": "0", "nvidia.com/mig-1g.5gb": "7"}, True),
        ("true", READY, {"nvidia.com/gpu": "0", "cpu": "8"}, False),
        ("true", {"phase": "Running"}, {"nvidia.com/gpu": "1"}, False),
        ("true", None, {"nvidia.com/gpu": "1"}, False),
        ("paused-for-driver-upgrade", None, {"nvidia.com/gpu": "1"}, False),
        ("false", None, {}, True),
    ],
)
def test_a_node_offers_gpus_with_a_ready_device_plugin(
    operand: str, plugin: dict[str, Any] | None, offered: dict[str, str], *, offers: bool
) -> None:
    """What the kubelet offers may be old for some seconds; where a label keeps the plugin off, nothing is to come."""
    live = node(labels={"nvidia.com/gpu.deploy.device-plugin": operand})
    live["status"] = {**READY, "allocatable": offered}
    pods = [] if plugin is None else [ours("device_plugin", status=plugin)]
    declared = DesiredDriver(domain="d", template=template("new"), position=0, has_device_plugin=True)
    for wish, expected in ((declared, offers), (replace(declared, has_device_plugin=False), True)):
        (found,) = observe({"n1": wish}, ClusterObjects(nodes=[live], pods=pods), now=1.0).nodes
        assert found.offers_gpus is expected


@pytest.mark.parametrize(
    ("manager", "restarts", "resource", "expected"),
    [(True, 20, "nvidia.com/gpu", (4, False)), (False, 1, "nvidia.com/gpu", (4, True)), (False, 1, "cpu", (4, False))],
    ids=["its container is ready", "it gave up because of a GPU pod", "it gave up for another reason"],
)
def test_gpu_pods_hold_a_driver_up_once_its_manager_gave_up(
    manager: bool,  # noqa: FBT001 - a column
    restarts: int,
    resource: str,
    expected: tuple[int, bool],
) -> None:
    """Such a driver pod was deleted by hand or by a reboot. Restarts are those of containers that are not ready."""
    status = {
        "phase": "Pending",
        "initContainerStatuses": [{"name": "k8s-driver-manager", "ready": manager, "restartCount": restarts}],
        "containerStatuses": [{"name": "nvidia-driver-ctr", "ready": False, "restartCount": 4}],
    }
    driver = seen_node(ours("driver", status=status), work(**{resource: "1"})).driver
    assert driver is not None
    assert (driver.restarts, driver.is_held_up) == expected


def test_pods_of_others_are_in_the_way_and_ours_are_not() -> None:
    """The driver manager pauses our operands by itself."""
    found = seen_node(work(**{"nvidia.com/gpu": "1"}), ours("device_plugin"))
    assert [pod.name for pod in found.pods] == ["train"]


def pod(*, metadata: dict[str, Any] | None = None, status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """Return a pod of a ReplicaSet."""
    owner = {"kind": "ReplicaSet", "name": "web-5d4", "controller": True}
    base = {"name": "web", "namespace": "default", "uid": "u-1", "labels": {"app": "web"}, "ownerReferences": [owner]}
    return {
        "metadata": base | (metadata or {}),
        "spec": {"containers": [{"name": "main"}], **spec},
        "status": status or {"phase": "Running"},
    }


def container(**fields: Any) -> list[dict[str, Any]]:
    return [{"name": "main", **fields}]


@pytest.mark.parametrize(
    ("found", "use"),
    [
        (pod(), GpuUse.NONE),
        (pod(containers=container(resources={"limits": {"nvidia.com/gpu": "1"}})), GpuUse.REQUEST),
        (pod(containers=container(resources={"limits": {"nvidia.com/gpu": "0"}})), GpuUse.NONE),
        (pod(containers=container(resources={"requests": {"nvidia.com/mig-1g.5gb": 1}})), GpuUse.REQUEST),
        (pod(containers=container(resources={"limits": {"nvidia.com/gpu.shared": "2"}})), GpuUse.REQUEST),
        (pod(containers=container(resources={"limits": {"cpu": "1", "rdma/hca": "1"}})), GpuUse.NONE),
        (pod(initContainers=container(resources={"limits": {"nvidia.com/gpu": "1"}})), GpuUse.REQUEST),
        (pod(runtimeClassName="nvidia"), GpuUse.RUNTIME_CLASS),
        (pod(runtimeClassName="kata"), GpuUse.NONE),
        (pod(volumes=[{"name": "d", "hostPath": {"path": "/dev/nvidia0"}}]), GpuUse.HOST_PATH),
        (pod(volumes=[{"name": "d", "hostPath": {"path": "/run/nvidia/driver"}}]), GpuUse.HOST_PATH),
        (pod(volumes=[{"name": "d", "hostPath": {"path": "/dev"}}]), GpuUse.NONE),
        (pod(containers=container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])), GpuUse.ENVIRONMENT),
        (pod(containers=container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}])), GpuUse.NONE),
        (pod(resourceClaims=[{"name": "gpu", "resourceClaimName": "mine"}]), GpuUse.CLAIM),
        (pod(resourceClaims=[{"name": "gpu", "resourceClaimName": "nic"}]), GpuUse.NONE),
        (
            pod(
                resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "t"}],
                status={"phase": "Running", "resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "mine"}]},
            ),
            GpuUse.CLAIM,
        ),
    ],
)
def test_a_pod_that_uses_gpus_is_recognized(found: dict[str, Any], use: GpuUse) -> None:
    """The reference knows requests of containers and claims alone."""
    assert use_of(found, {("default", "mine")}) is use


def test_a_claim_that_could_not_be_read_is_a_doubt() -> None:
    """Surer signs count before it; a pod without a claim leaves none."""
    claiming = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "mine"}]}
    assert use_of(pod(**claiming), None) is GpuUse.SOME_CLAIM
    assert use_of(pod(runtimeClassName="nvidia", **claiming), None) is GpuUse.RUNTIME_CLASS
    assert use_of(pod(), None) is GpuUse.NONE
    assert claims_of(None) is None


def test_claims_that_hold_gpus_are_those_of_the_gpu_driver() -> None:
    """Admin access holds nothing, and another driver's devices are not ours."""

    def claim(name: str, **result: Any) -> dict[str, Any]:
        allocation = {"devices": {"results": [result]}}
        return {"metadata": {"name": name, "namespace": "default"}, "status": {"allocation": allocation}}

    waiting: dict[str, Any] = {"metadata": {"name": "waiting", "namespace": "default"}}
    found = [
        claim("gpu", driver="gpu.nvidia.com"),
        claim("nic", driver="nic.example.com"),
        claim("admin", driver="gpu.nvidia.com", adminAccess=True),
        waiting,
    ]
    assert claims_of(found) == {("default", "gpu")}


def test_the_controller_of_a_pod_says_who_starts_it_again() -> None:
    """A DaemonSet does so on the same node, and so does the kubelet for a static pod."""
    assert pod_of(pod()).owner == "ReplicaSet web-5d4"
    assert not pod_of(pod()).is_daemon
    daemon = {"ownerReferences": [{"kind": "DaemonSet", "name": "netdata", "controller": True}]}
    assert pod_of(pod(metadata=daemon)).is_daemon
    static = {"annotations": {"kubernetes.io/config.mirror": "abc"}, "ownerReferences": [{"kind": "Node", "name": "n"}]}
    assert pod_of(pod(metadata=static)).is_daemon
    bare = pod_of(pod(metadata={"ownerReferences": []}))
    assert (bare.owner, bare.is_daemon) == ("", False)


def test_state_data_and_refusals_are_reported() -> None:
    """A pod that is over holds nothing."""
    found = pod_of(
        pod(metadata={"deletionTimestamp": "2026-11-21T08:00:00Z"}, volumes=[{"name": "d", "emptyDir": {}}]),
        refusals={"u-1": "no"},
    )
    assert (found.is_terminating, found.has_empty_dir, found.refusal, found.is_over) == (True, True, "no", False)
    assert pod_of(pod(status={"phase": "Succeeded"})).is_over


def test_budgets_cover_selected_pods_of_their_namespace() -> None:
    """A budget without status allows nothing: its pods are not counted yet."""

    def budget(name: str, namespace: str, selector: Any, **status: Any) -> dict[str, Any]:
        return {"metadata": {"name": name, "namespace": namespace}, "spec": {"selector": selector}, "status": status}

    budgets = budgets_of(
        [
            budget("web", "default", {"matchLabels": {"app": "web"}}, disruptionsAllowed=1),
            budget("all", "default", {}),
            budget("none", "default", None, disruptionsAllowed=1),
            budget("other", "elsewhere", {}, disruptionsAllowed=1),
            budget("db", "default", {"matchLabels": {"app": "db"}}, disruptionsAllowed=1),
        ]
    )
    assert pod_of(pod(), budgets=budgets).budgets == (DisruptionBudget("web", 1), DisruptionBudget("all", 0))


CUDA, PLUGIN = ({"app": f"nvidia-{name}-validator"} for name in ("cuda", "device-plugin"))


@pytest.mark.parametrize(
    ("marks", "account", "ours"),
    [
        ({"gpu-provision.io/stack": "prod"}, "default", True),
        ({}, "default", False),
        (CUDA, "nvidia-operator-validator", True),
        (PLUGIN, "nvidia-operator-validator", True),
        (CUDA, "default", False),
    ],
)
def test_pods_that_are_ours(marks: dict[str, str], account: str, *, ours: bool) -> None:
    """Of the stack, which the driver manager pauses by itself; or those that the validator starts, by its account."""
    assert is_ours(pod(metadata={"labels": marks, "ownerReferences": []}, serviceAccountName=account)) is ours


@pytest.mark.parametrize(
    ("toleration", "tolerates"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": "node.kubernetes.io/unschedulable"}, True),
        ({"key": "node.kubernetes.io/unschedulable", "value": "true"}, False),
        ({"operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "nvidia.com/gpu", "operator": "Exists"}, False),
    ],
)
def test_a_pod_that_tolerates_cordons_is_recognized(toleration: dict[str, Any], *, tolerates: bool) -> None:
    """Its successor may come to the node that it was just evicted from."""
    metadata = {"name": "web", "namespace": "default", "uid": "1"}
    pod = {"metadata": metadata, "spec": {"containers": [], "tolerations": [toleration]}, "status": {}}
    assert pod_of(pod).tolerates_cordons is tolerates
