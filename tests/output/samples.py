"""Hand-made plans, states and results for the views' tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gpu_provision.hosts.result import HostsResult
from gpu_provision.model.cluster import ObjectRef
from gpu_provision.model.plan import Action, Change, Eviction, FieldChange, NodePreview, Plan, Schedule, Wave
from gpu_provision.model.progress import ComponentStatus, NodeStatus, RunResult, State, Status
from tests.data_file import document

NAMESPACE = "gpu-operator-resources"


def node_label(name: str) -> Change:
    return Change(
        component="node_labels",
        action=Action.UPDATE,
        ref=ObjectRef("v1", "Node", "", name),
        fields=(FieldChange('metadata.labels."nvidia.com/gpu.present"', None, "true"),),
        manifest={"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}},
    )


def upgrade() -> Change:
    image = "example.com/dcgm-exporter"
    template = {"spec": {"containers": [{"name": "dcgm", "image": f"{image}:4.4.1"}]}}
    return Change(
        component="dcgm_exporter",
        action=Action.UPDATE,
        ref=ObjectRef("apps/v1", "DaemonSet", NAMESPACE, "nvidia-dcgm-exporter"),
        fields=(
            FieldChange("spec.template.spec.containers[dcgm].image", f"{image}:4.2.0", f"{image}:4.4.1"),
            FieldChange('spec.template.metadata.labels."gpu-provision.io/digest"', "aaaa", "bbbb"),
        ),
        nodes=("h100-1", "t4-1", "t4-2"),
        manifest={
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": "nvidia-dcgm-exporter", "namespace": NAMESPACE},
            "spec": {"template": template},
        },
    )


def validation(node: str) -> Change:
    return Change(
        component="driver_validation",
        action=Action.RUN,
        ref=ObjectRef("v1", "Pod", NAMESPACE, f"nvidia-driver-validation-{node}-0a1b2c3d"),
        certain=False,
        manifest={"apiVersion": "v1", "kind": "Pod", "spec": {"nodeName": node}},
    )


def secret(old: str, new: str) -> Change:
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


WHY = "desired driver 580.95.05"
SOAKED = 1_800_000_000.0
_T = TypeVar("_T")
_DATA = document(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


def _made(kind: type[_T], name: str) -> _T:
    return msgspec.convert(_DATA[name], kind)


def train(number: int, **fields: Any) -> Eviction:
    return Eviction(namespace="ml", name=f"train-{number}", owner="StatefulSet train", use="requests GPUs", **fields)


def _wave(first: int, last: int, **fields: Any) -> Wave:
    nodes = (
        NodePreview(node=f"gpu-{number:04}", why=WHY, evicts=(train(number),)) for number in range(first, last + 1)
    )
    return Wave(nodes=tuple(nodes), **fields)


ROLLOUT = Schedule(
    under_way=("t4-9",),
    waves=(
        _wave(1, 1, is_canary=True),
        *(_wave(first, min(first + 9, 1000), not_before=SOAKED) for first in range(2, 1001, 10)),
        Wave(nodes=(_made(NodePreview, "last_node"),), not_before=SOAKED),
    ),
    skipped=tuple((f"h100-{number}", "the node is NotReady") for number in range(1, 31)),
    stop_after=2,
)
"""A thousand nodes that are alike, and one that is not."""

PLAN = replace(
    _made(Plan, "plan"),
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
)
CONFLICT, WARNING = PLAN.findings
EMPTY_PLAN = Plan(inventory="prod", release="26.7.0", cluster="prod-a", components=("driver",), changes=())
RESULT, HOSTS = _made(RunResult, "result"), _made(HostsResult, "hosts")
(EVIDENCE,) = RESULT.evidence
STATUS = Status(
    inventory="sandbox",
    cluster="sandbox (v1.34.0)",
    release="26.7.0",
    components=_made(tuple[ComponentStatus, ...], "components"),
    nodes=tuple(NodeStatus(**row, state=State.READY) for row in _DATA["nodes"]),
    evidence=(EVIDENCE,),
)
