"""Snapshots of live objects."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_provision.rollout import states
from gpu_provision.rollout.gpu_use import claims_of, gpu_use_of
from gpu_provision.rollout.observe import (
    ClusterObjects,
    DesiredDriver,
    budgets_of,
    fleet_digest,
    is_stack_pod,
    observe,
    pod_of,
)
from gpu_provision.rollout.snapshot import DesiredContent, DisruptionBudget, DriverPod, FleetNode, GpuUse
from gpu_provision.rollout.states import UpgradeState, installation_digest

CASES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
READY = {"conditions": [{"type": "Ready", "status": "True"}], "phase": "Running"}
STACK, COMPONENT = "gpu-provision.io/stack", "gpu-provision.io/component"


def template(digest: str) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "d", "env": [{"name": "DRIVER_CONFIG_DIGEST", "value": digest}]}]}}


def node(name: str = "n1", *, spec: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": "7", **metadata}, "spec": spec or {}, "status": READY}


def stack_pod(component: str, **parts: Any) -> dict[str, Any]:
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
    assert snapshot.is_rolling_back, "the desired content is the previous one"


def test_the_driver_is_compared_by_its_installation() -> None:
    """The rest of the pod template may differ without a restart."""
    found = seen_node(stack_pod("driver", digest="old"))
    assert found.desired == DesiredContent("new", "560")
    assert found.driver == DriverPod(uid="driver-1", digest="old", is_ready=True)
    assert installation_digest({"spec": {"containers": [{"name": "d"}]}}) == ""


def test_state_memory_and_cordon_are_read_off_the_node() -> None:
    """The owner of the cordon is in managedFields."""
    entries = [
        {"manager": "kubelet", "time": "2026-11-21T09:00:00Z", "fieldsV1": {"f:status": {}}},
        {"manager": "gpu-provision", "time": "2026-11-21T07:00:00Z", "fieldsV1": {"f:spec": {"f:unschedulable": {}}}},
        {"manager": "kubectl-cordon", "time": "2026-11-21T08:00:00Z", "fieldsV1": {"f:spec": {"f:unschedulable": {}}}},
    ]
    live = node(
        spec={"unschedulable": True},
        labels={states.STATE: "pod-restart-required"},
        annotations={states.SINCE: "12"},
        managedFields=entries,
    )
    found = seen_node(of=live)
    assert found.state is UpgradeState.POD_RESTART_REQUIRED
    assert (found.revision, found.state_since(), found.is_cordoned) == ("7", 12.0, True)
    assert found.cordoned_by == "kubectl-cordon"
    assert seen_node().cordoned_by == ""


@pytest.mark.parametrize("case", CASES["offers"], ids=str)
def test_a_node_offers_gpus_with_a_ready_device_plugin(case: dict[str, Any]) -> None:
    """What the kubelet offers may be old for some seconds; where a label keeps the plugin off, nothing is to come."""
    live = node(labels={"nvidia.com/gpu.deploy.device-plugin": case["operand"]})
    live["status"] = {**READY, "allocatable": case["offered"]}
    status = READY if case["plugin"] == "READY" else case["plugin"]
    pods = [] if status is None else [stack_pod("device_plugin", status=status)]
    declared = DesiredDriver(domain="d", template=template("new"), position=0, has_device_plugin=True)
    declared = replace(declared, devices=case.get("devices"))
    for wish, expected in ((declared, case["offers"]), (replace(declared, has_device_plugin=False), True)):
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
    driver = seen_node(stack_pod("driver", status=status), work(**{resource: "1"})).driver
    assert driver is not None
    assert (driver.restarts, driver.is_held_up) == expected


def pod(*, metadata: dict[str, Any] | None = None, status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    owner = {"kind": "ReplicaSet", "name": "web-5d4", "controller": True}
    base = {"name": "web", "namespace": "default", "uid": "u-1", "labels": {"app": "web"}, "ownerReferences": [owner]}
    return {
        "metadata": base | (metadata or {}),
        "spec": {"containers": [{"name": "main"}], **spec},
        "status": status or {"phase": "Running"},
    }


@pytest.mark.parametrize("case", CASES["uses"], ids=str)
def test_a_pod_that_uses_gpus_is_recognized(case: dict[str, Any]) -> None:
    """The reference knows requests of containers and claims alone."""
    found = pod(status=case.get("status"), **case.get("spec", {}))
    assert gpu_use_of(found, {("default", "mine")}) is GpuUse[case["use"]]


def test_a_claim_that_could_not_be_read_is_a_doubt() -> None:
    """Surer signs count before it; a pod without a claim leaves none."""
    claiming = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "mine"}]}
    assert gpu_use_of(pod(**claiming), None) is GpuUse.SOME_CLAIM
    assert gpu_use_of(pod(runtimeClassName="nvidia", **claiming), None) is GpuUse.RUNTIME_CLASS
    assert gpu_use_of(pod(), None) is GpuUse.NONE
    assert claims_of(None) is None


def test_claims_that_hold_gpus_are_those_of_the_gpu_driver() -> None:
    """Admin access holds nothing, and another driver's devices do not count."""

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
    assert (found.is_terminating, found.has_empty_dir, found.refusal, found.is_finished) == (True, True, "no", False)
    assert pod_of(pod(status={"phase": "Succeeded"})).is_finished


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
    ("marks", "account", "is_own"),
    [
        ({"gpu-provision.io/stack": "prod"}, "default", True),
        ({}, "default", False),
        (CUDA, "nvidia-operator-validator", True),
        (PLUGIN, "nvidia-operator-validator", True),
        (CUDA, "default", False),
    ],
)
def test_pods_of_the_stack(marks: dict[str, str], account: str, *, is_own: bool) -> None:
    """Pods of the stack, which the driver manager pauses, or of the validator, by their service account."""
    assert is_stack_pod(pod(metadata={"labels": marks, "ownerReferences": []}, serviceAccountName=account)) is is_own


@pytest.mark.parametrize("case", CASES["tolerations"], ids=str)
def test_a_pod_that_tolerates_cordons_is_recognized(case: dict[str, Any]) -> None:
    """Its successor may come to the node that it was just evicted from."""
    assert pod_of(pod(tolerations=[case["toleration"]])).tolerates_cordons is case["tolerates"]
