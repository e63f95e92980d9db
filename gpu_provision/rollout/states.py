"""States of a node in the replacement of its driver: labels and annotations of the GPU Operator and of this tool.

The state is on the node, so any process can resume an interrupted rollout, and dashboards and scripts for the GPU
Operator work. Keys under ``nvidia.com`` have the meaning of the GPU Operator; those under ``gpu-provision.io`` hold
more, such as the owner of a cordon.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from gpu_provision.components import labels
from gpu_provision.model.cluster import Manifest, NodeFacts
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.text import join_limited


class UpgradeState(StrEnum):
    """Value of the label ``STATE``."""

    UNKNOWN = ""  # new, or the label was removed
    DONE = "upgrade-done"  # the driver is as desired, and validated if this tool replaced it
    UPGRADE_REQUIRED = "upgrade-required"  # the driver has to be replaced; waits for a slot
    CORDON_REQUIRED = "cordon-required"  # has a slot, will be cordoned
    WAIT_FOR_JOBS_REQUIRED = "wait-for-jobs-required"  # cordoned; jobs may end by themselves
    POD_DELETION_REQUIRED = "pod-deletion-required"  # pods that use GPUs are being evicted
    DRAIN_REQUIRED = "drain-required"  # that was not enough; all pods are being evicted
    POD_RESTART_REQUIRED = "pod-restart-required"  # no GPU pods; the driver pod is being replaced
    VALIDATION_REQUIRED = "validation-required"  # the new driver is ready and will be validated
    UNCORDON_REQUIRED = "uncordon-required"  # validated, will be uncordoned
    FAILED = "upgrade-failed"  # the reason is on the node
    NODE_MAINTENANCE_REQUIRED = "node-maintenance-required"  # a maintenance operator changes the node
    POST_MAINTENANCE_REQUIRED = "post-maintenance-required"  # likewise
    FOREIGN = "(another)"  # the label has a value that is none of these

    __hash__ = str.__hash__  # faster than that of an Enum, which is in Python


_BEFORE_RESTART = ("cordon-required", "wait-for-jobs-required", "pod-deletion-required", "drain-required")
EARLY = frozenset(map(UpgradeState, _BEFORE_RESTART))
"""Under way, before the replacement of the driver."""

LATE = frozenset({UpgradeState.POD_RESTART_REQUIRED, UpgradeState.VALIDATION_REQUIRED, UpgradeState.UNCORDON_REQUIRED})
"""Under way, after the replacement of the driver has begun."""

FOREIGN_STATES = frozenset(
    {UpgradeState.NODE_MAINTENANCE_REQUIRED, UpgradeState.POST_MAINTENANCE_REQUIRED, UpgradeState.FOREIGN}
)
"""States of another program; such a node is never changed."""

UPGRADING = EARLY | LATE
"""In the middle of an upgrade that a run resumes."""

UNDER_WAY = UPGRADING | FOREIGN_STATES
"""Takes a slot."""

MANAGER = "gpu-provision"
"""The field manager of everything that a rollout writes to nodes."""

# Labels of nodes and pods, as in the reference.
STATE = "nvidia.com/gpu-driver-upgrade-state"
SKIP = "nvidia.com/gpu-driver-upgrade.skip"
DRAIN_SKIP = "nvidia.com/gpu-driver-upgrade-drain.skip"  # on pods

# Annotations of nodes, as in the reference.
ENABLED = "nvidia.com/gpu-driver-upgrade-enabled"  # the driver manager then leaves evictions to the rollout
REQUESTED = "nvidia.com/gpu-driver-upgrade-requested"
SAFE_LOAD = "nvidia.com/gpu-driver-upgrade.driver-wait-for-safe-load"
WAS_CORDONED = "nvidia.com/gpu-driver-upgrade.node-initial-state.unschedulable"
JOBS_SINCE = "nvidia.com/gpu-driver-upgrade-wait-for-pod-completion-start-time"
VALIDATION_SINCE = "nvidia.com/gpu-driver-upgrade-validation-start-time"

# Annotations of nodes, of this tool.
SINCE = "gpu-provision.io/upgrade-since"  # unix seconds at which the state was entered
TARGET = "gpu-provision.io/upgrade-target"  # digest of the content of the upgrade
BEGAN_WITH = "gpu-provision.io/upgrade-began-with"  # uid of the driver pod before the upgrade
FORCED = "gpu-provision.io/upgrade-forced"  # "true": that pod is replaced although it is current
CORDONED = "gpu-provision.io/upgrade-cordoned"  # field manager of a cordon that the rollout may lift
CORDONED_BY = "gpu-provision.io/upgrade-cordoned-by"  # field manager of an earlier cordon, if known
CANARY = "gpu-provision.io/upgrade-canary"  # digest of the fleet's content for which the node was a canary
MIG_MANAGER = "gpu-provision.io/upgrade-mig-manager"  # uid of the MIG manager's pod that failed before the upgrade
REASON = "gpu-provision.io/upgrade-reason"  # why the upgrade failed
FAILED_IN = "gpu-provision.io/upgrade-failed-in"  # the state in which it failed
FAILED_WITH = "gpu-provision.io/upgrade-failed-with"  # uid of the driver pod with which it failed

STATE_ANNOTATIONS = (JOBS_SINCE, VALIDATION_SINCE, REASON, FAILED_IN, FAILED_WITH)
"""Annotations of a single state."""

UPGRADE_ANNOTATIONS = (*STATE_ANNOTATIONS, WAS_CORDONED, TARGET, BEGAN_WITH, FORCED, MIG_MANAGER, CORDONED, CORDONED_BY)
"""Annotations that are removed at the end of an upgrade."""

ALL_ANNOTATIONS = (*UPGRADE_ANNOTATIONS, ENABLED, REQUESTED, SINCE, CANARY)
"""Every annotation that a rollout writes."""

NOT_READY = "the driver is not ready"
"""Beginning of the reason of a node whose new driver pod does not become ready."""

_NAMED = {state.value: state for state in UpgradeState if state is not UpgradeState.FOREIGN}


def parse_state(label: str) -> UpgradeState:
    """Return the state of a label's value; FOREIGN for an unknown value."""
    return _NAMED.get(label, UpgradeState.FOREIGN)


_MAX_NAMES = 8


def writer_of(metadata: Mapping[str, Any]) -> tuple[str, str]:
    """Return the last field manager of a node's ``spec.unschedulable``, and its time; empty if unknown."""
    entries = [
        (str(entry.get("time", "")), str(entry.get("manager", "")))
        for entry in metadata.get("managedFields") or ()
        if "f:unschedulable" in ((entry.get("fieldsV1") or {}).get("f:spec") or {})
    ]
    at, manager = max(entries, default=("", ""))
    return manager, at


def is_of_rollout(notes: Mapping[str, str], manager: str) -> bool:
    """Whether the rollout may lift the cordon of a node: it has set the cordon, and no other manager has since.

    ``manager``: the last one of the cordon; empty if unknown.
    """
    mark = notes.get(CORDONED)
    if mark is None or notes.get(WAS_CORDONED) == "true" or labels.CORDONED in notes:
        return False
    return manager in {"", mark}


def cordoned_by(node: NodeFacts) -> str:
    """Return who cordoned a node, in words; empty if it is not cordoned."""
    if not node.unschedulable:
        return ""
    if purpose := node.annotations.get(labels.CORDONED):
        return f"gpu-provision: {purpose}"
    if is_of_rollout(node.annotations, node.cordoned_by):
        return f"gpu-provision: {_step_of(node) or 'driver rollout'}"
    return ", ".join(filter(None, (node.cordoned_by, node.cordoned_at))) or "unknown"


def _step_of(node: NodeFacts) -> str:
    step, failed_in = node.labels.get(STATE, ""), node.annotations.get(FAILED_IN, "")
    return f"{step} in {failed_in}" if step == UpgradeState.FAILED and failed_in else step


def unfinished_node_findings(nodes: Iterable[NodeFacts], inventory: str) -> tuple[Finding, ...]:
    """Return warnings about nodes of a stack that stay cordoned or in the middle of a rollout.

    Equal nodes share one warning. A node that another manager cordoned counts only if its rollout has begun.
    """
    unfinished: dict[tuple[str, str, bool], list[str]] = {}
    for node in nodes:
        if node.labels.get(labels.INVENTORY) == inventory and (left := _unfinished_upgrade(node)):
            unfinished.setdefault(left, []).append(node.name)
    return tuple(_unfinished_finding(*left, names) for left, names in unfinished.items())


_RESUMES = "resumes the rollout there"
_NEXT = {
    **dict.fromkeys(EARLY, f"{_RESUMES}; the driver that runs has not been touched"),
    **dict.fromkeys(LATE, f"{_RESUMES}; until then the node may have no driver"),
    UpgradeState.FAILED: "tries once more there",
}


def _unfinished_upgrade(node: NodeFacts) -> tuple[str, str, bool] | None:
    """Return the condition of a node, what the next run does, and whether gpu-provision cordoned the node."""
    purpose = node.annotations.get(labels.CORDONED)
    if node.unschedulable and purpose:
        return f"cordoned ({purpose})", "uncordons it once the host is ready", True
    is_ours = node.unschedulable and is_of_rollout(node.annotations, node.cordoned_by)
    state = parse_state(node.labels.get(STATE, ""))
    if not is_ours and state not in _NEXT:
        return None
    step, by = _step_of(node) or "driver rollout", cordoned_by(node)
    halfway = f"in the middle of the driver rollout ({step}), {f'cordoned by {by}' if by else 'not cordoned'}"
    return f"cordoned ({step})" if is_ours else halfway, _NEXT.get(state, _RESUMES), is_ours


def _unfinished_finding(how: str, next_run: str, is_ours: bool, names: list[str]) -> Finding:  # noqa: FBT001 - as above
    by_hand = f"; to uncordon by hand: kubectl uncordon {' '.join(names[:_MAX_NAMES])}" if is_ours else ""
    return Finding(
        code="GP517",
        what=f"{join_limited(names, _MAX_NAMES)} {'stays' if len(names) == 1 else 'stay'} {how}",
        consequence=f"the next run {next_run}",
        fix=f"run the same command again{by_hand}",
        severity=Severity.WARNING,
    )


_DIGEST = "DRIVER_CONFIG_DIGEST"


def installation_digest(pod: Manifest) -> str:
    """Return the digest of a driver's installation, as the driver manager compares it.

    An adopted pod has a label with the digest of this tool.
    """
    if adopted := ((pod.get("metadata") or {}).get("labels") or {}).get(labels.INSTALLATION):
        return str(adopted)
    variables = (variable for each in pod["spec"]["containers"] for variable in each.get("env") or ())
    return next((each.get("value", "") for each in variables if each["name"] == _DIGEST), "")
