"""Hand-made plans, states and results for the views' tests."""

from __future__ import annotations

from typing import Any

from gpu_provision.hosts.result import HostOutcome, HostsResult
from gpu_provision.model.cluster import Manifest, ObjectRef
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.plan import Action, Change, Eviction, FieldChange, NodePreview, Plan, Schedule, Wave
from gpu_provision.model.progress import ComponentStatus, Evidence, NodeState, NodeStatus, RunResult, State, Status

NAMESPACE = "gpu-operator-resources"


def node_label(name: str) -> Change:
    """Return the change that labels one node."""
    return Change(
        component="node_labels",
        action=Action.UPDATE,
        ref=ObjectRef("v1", "Node", "", name),
        fields=(FieldChange('metadata.labels."nvidia.com/gpu.present"', None, "true"),),
        manifest={"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}},
    )


def exporter(version: str) -> Manifest:
    """Return a small DaemonSet."""
    container = {"name": "dcgm", "image": f"example.com/dcgm-exporter:{version}"}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "nvidia-dcgm-exporter", "namespace": NAMESPACE},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }


def upgrade(*, certain: bool = True) -> Change:
    """Return the change of one image version."""
    return Change(
        component="dcgm_exporter",
        action=Action.UPDATE,
        ref=ObjectRef("apps/v1", "DaemonSet", NAMESPACE, "nvidia-dcgm-exporter"),
        fields=(
            FieldChange(
                "spec.template.spec.containers[dcgm].image",
                "example.com/dcgm-exporter:4.2.0",
                "example.com/dcgm-exporter:4.4.1",
            ),
            FieldChange('spec.template.metadata.labels."gpu-provision.io/digest"', "aaaa", "bbbb"),
        ),
        nodes=("h100-1", "t4-1", "t4-2"),
        certain=certain,
        manifest=exporter("4.4.1"),
    )


def validation(node: str) -> Change:
    """Return the change that runs a validation pod on a node."""
    return Change(
        component="driver_validation",
        action=Action.RUN,
        ref=ObjectRef("v1", "Pod", NAMESPACE, f"nvidia-driver-validation-{node}-0a1b2c3d"),
        certain=False,
        manifest={"apiVersion": "v1", "kind": "Pod", "spec": {"nodeName": node}},
    )


def secret(old: str, new: str) -> Change:
    """Return a change of a Secret's value."""
    return Change(
        component="driver",
        action=Action.UPDATE,
        ref=ObjectRef("v1", "Secret", NAMESPACE, "licensing"),
        fields=(FieldChange("data.token", old, new),),
        manifest={
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "licensing", "namespace": NAMESPACE},
            "data": {"token": new},
        },
    )


WHY = "driver 580.95.05 is wanted"
SOAKED = 1_800_000_000.0

CONFLICT = Finding(
    code="GP304",
    where=f"ConfigMap {NAMESPACE}/mig-config",
    what="field data.config belongs to helm",
    fix="let helm give the field up",
)
WARNING = Finding(code="GP202", where="gpu-99", what="a GPU node is not in the inventory", severity=Severity.WARNING)


def train(number: int, **fields: Any) -> Eviction:
    """Return a pod of one training that runs on many nodes."""
    return Eviction(namespace="ml", name=f"train-{number}", owner="StatefulSet train", use="requests GPUs", **fields)


ROLLOUT = Schedule(
    under_way=("t4-9",),
    waves=(
        Wave(nodes=(NodePreview(node="gpu-0001", why=WHY, evicts=(train(1),)),), is_canary=True),
        *(
            Wave(
                nodes=tuple(
                    NodePreview(node=f"gpu-{number:04}", why=WHY, evicts=(train(number),))
                    for number in range(first, min(first + 10, 1001))
                ),
                not_before=SOAKED,
            )
            for first in range(2, 1001, 10)
        ),
        Wave(
            nodes=(
                NodePreview(
                    node="t4-1",
                    why="driver 570.1 is wanted",
                    waits_for=(Eviction(namespace="ml", name="job-x", owner="Job job", certain=False),),
                    evicts=(
                        Eviction(
                            namespace="web", name="demo", use="sets NVIDIA_VISIBLE_DEVICES", budgets=("demo", "all")
                        ),
                        Eviction(namespace="web", name="cpu", owner="ReplicaSet cpu", certain=False),
                    ),
                    stays=(
                        Eviction(namespace="mon", name="netdata-a", owner="DaemonSet netdata", use="requests GPUs"),
                    ),
                    cordoned_by="kubectl-cordon",
                ),
            ),
            not_before=SOAKED,
        ),
    ),
    skipped=tuple((f"h100-{number}", "the node is NotReady") for number in range(1, 31)),
    stop_after=2,
)
"""A thousand nodes that are alike, and one that is not."""

PLAN = Plan(
    inventory="prod",
    release="26.7.0",
    cluster="prod-a (v1.34.1)",
    components=("prerequisites", "node_labels", "driver_validation", "dcgm_exporter"),
    changes=(
        *(node_label(f"gpu-{number:02}") for number in range(1, 9)),
        validation("t4-1"),
        validation("t4-2"),
        Change(
            component="dcgm_exporter",
            action=Action.CREATE,
            ref=ObjectRef("v1", "Service", NAMESPACE, "nvidia-dcgm-exporter"),
            manifest={"apiVersion": "v1", "kind": "Service", "metadata": {"name": "nvidia-dcgm-exporter"}},
        ),
        upgrade(),
        Change(
            component="mig_manager",
            action=Action.DELETE,
            ref=ObjectRef("apps/v1", "DaemonSet", NAMESPACE, "nvidia-mig-manager"),
        ),
    ),
    findings=(CONFLICT, WARNING),
)
EMPTY_PLAN = Plan(inventory="prod", release="26.7.0", cluster="prod-a", components=("driver",), changes=())

EVIDENCE = Evidence(
    component="driver_validation",
    node="t4-1",
    pod="nvidia-driver-validation-t4-1-0a1b2c3d",
    passed=True,
    lines=("[Vector addition of 50000 elements]", "Test PASSED", "Done"),
)

STATUS = Status(
    inventory="sandbox",
    cluster="sandbox (v1.34.0)",
    release="26.7.0",
    components=(
        ComponentStatus(
            component="driver",
            title="NVIDIA driver",
            version="580.95.05",
            desired=3,
            ready=2,
            state=State.PROGRESSING,
            reason="t4-2: ImagePullBackOff",
        ),
        ComponentStatus(
            component="prerequisites", title="Prerequisites", version="", desired=1, ready=1, state=State.READY
        ),
    ),
    nodes=(
        NodeStatus(
            node="t4-1",
            pool="t4",
            os="ubuntu 22.04",
            gpu="Tesla-T4",
            gpus=1,
            driver="580.95.05",
            allocatable=1,
            state=State.READY,
        ),
        NodeStatus(
            node="cpu-1",
            pool="cpu",
            os="ubuntu 22.04",
            gpu="",
            gpus=None,
            driver="",
            allocatable=None,
            state=State.READY,
            reason="no GPU: gets no GPU component",
        ),
    ),
    evidence=(EVIDENCE,),
)

RESULT = RunResult(
    changed=12,
    requests=80,
    seconds=61.25,
    states=(
        NodeState(component="nfd", node="", state=State.READY),
        NodeState(component="driver", node="t4-1", state=State.READY),
        NodeState(component="driver", node="t4-2", state=State.FAILED, reason="driver does not build"),
        NodeState(component="toolkit", node="t4-1", state=State.READY),
        NodeState(component="toolkit", node="t4-2", state=State.BLOCKED, reason="driver failed"),
    ),
    evidence=(EVIDENCE,),
)
HOSTS = HostsResult(
    hosts=(
        *(
            HostOutcome(name=f"gpu-{number:02}", changes=("load kernel module ipmi_msghandler",), gpus=8)
            for number in (1, 2, 3)
        ),
        HostOutcome(name="t4-1", gpus=1),
        HostOutcome(name="t4-2", failed=True, reason="cannot be reached", gpus=None),
    )
)
