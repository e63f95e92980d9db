"""Which pods use GPUs, however they came by them."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_provision.rollout.snapshot import Budget, Use
from gpu_provision.rollout.workloads import budgets_of, claims_of, is_ours, pod_of, use_of


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
        (pod(), Use.NONE),
        (pod(containers=container(resources={"limits": {"nvidia.com/gpu": "1"}})), Use.REQUEST),
        (pod(containers=container(resources={"limits": {"nvidia.com/gpu": "0"}})), Use.NONE),
        (pod(containers=container(resources={"requests": {"nvidia.com/mig-1g.5gb": 1}})), Use.REQUEST),
        (pod(containers=container(resources={"limits": {"nvidia.com/gpu.shared": "2"}})), Use.REQUEST),
        (pod(containers=container(resources={"limits": {"cpu": "1", "rdma/hca": "1"}})), Use.NONE),
        (pod(initContainers=container(resources={"limits": {"nvidia.com/gpu": "1"}})), Use.REQUEST),
        (pod(runtimeClassName="nvidia"), Use.RUNTIME_CLASS),
        (pod(runtimeClassName="kata"), Use.NONE),
        (pod(volumes=[{"name": "d", "hostPath": {"path": "/dev/nvidia0"}}]), Use.HOST_PATH),
        (pod(volumes=[{"name": "d", "hostPath": {"path": "/run/nvidia/driver"}}]), Use.HOST_PATH),
        (pod(volumes=[{"name": "d", "hostPath": {"path": "/dev"}}]), Use.NONE),
        (pod(containers=container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])), Use.ENVIRONMENT),
        (pod(containers=container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}])), Use.NONE),
        (pod(resourceClaims=[{"name": "gpu", "resourceClaimName": "mine"}]), Use.CLAIM),
        (pod(resourceClaims=[{"name": "gpu", "resourceClaimName": "nic"}]), Use.NONE),
        (
            pod(
                resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "t"}],
                status={"phase": "Running", "resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "mine"}]},
            ),
            Use.CLAIM,
        ),
    ],
)
def test_a_pod_that_uses_gpus_is_recognized(found: dict[str, Any], use: Use) -> None:
    """The reference knows requests of containers and claims alone."""
    assert use_of(found, {("default", "mine")}) is use


def test_a_claim_that_nobody_could_look_at_is_a_doubt() -> None:
    """Surer signs count before it; a pod without a claim leaves none."""
    claiming = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "mine"}]}
    assert use_of(pod(**claiming), None) is Use.SOME_CLAIM
    assert use_of(pod(runtimeClassName="nvidia", **claiming), None) is Use.RUNTIME_CLASS
    assert use_of(pod(), None) is Use.NONE
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


def test_state_data_and_refusals_are_told() -> None:
    """A pod that is over holds nothing."""
    found = pod_of(
        pod(metadata={"deletionTimestamp": "2026-11-21T08:00:00Z"}, volumes=[{"name": "d", "emptyDir": {}}]),
        refusals={"u-1": "no"},
    )
    assert (found.is_terminating, found.has_empty_dir, found.refusal, found.is_over) == (True, True, "no", False)
    assert pod_of(pod(status={"phase": "Succeeded"})).is_over


def test_budgets_cover_the_pods_of_their_namespace_that_they_select() -> None:
    """A budget without status allows nothing: nobody has counted yet."""

    def budget(name: str, namespace: str, selector: Any, **status: Any) -> dict[str, Any]:
        return {
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"selector": selector},
            "status": status,
        }

    budgets = budgets_of(
        [
            budget("web", "default", {"matchLabels": {"app": "web"}}, disruptionsAllowed=1),
            budget("all", "default", {}),
            budget("none", "default", None, disruptionsAllowed=1),
            budget("other", "elsewhere", {}, disruptionsAllowed=1),
            budget("db", "default", {"matchLabels": {"app": "db"}}, disruptionsAllowed=1),
        ]
    )
    assert pod_of(pod(), budgets=budgets).budgets == (Budget("web", 1), Budget("all", 0))


def test_pods_of_the_stack_are_ours() -> None:
    """The driver manager pauses them by itself."""
    assert is_ours(pod(metadata={"labels": {"gpu-provision.io/stack": "prod"}}))
    assert not is_ours(pod())


@pytest.mark.parametrize("app", ["nvidia-cuda-validator", "nvidia-device-plugin-validator"])
def test_pods_that_the_validator_starts_are_ours(app: str) -> None:
    """They have no controller and none of our labels. A pod of another account may be anybody's."""
    made = {"labels": {"app": app}, "ownerReferences": []}
    assert is_ours(pod(metadata=made, serviceAccountName="nvidia-operator-validator"))
    assert not is_ours(pod(metadata=made, serviceAccountName="default"))


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
