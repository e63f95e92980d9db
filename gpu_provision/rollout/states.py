"""Where a node stands in the replacement of its driver: the states and keys of the GPU Operator, and our own marks.

State and memory are on the node, so any process can go on where another one was killed, and dashboards and scripts
made for the reference work. Keys under ``nvidia.com`` mean what they mean there; those under ``gpu-provision.io`` hold
what the reference forgets, such as whose cordon a node has.
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
    """Value of the label ``STATE``. Each says when it is set."""

    UNKNOWN = ""  # never looked at, or the label was removed to have it looked at again
    DONE = "upgrade-done"  # the driver is as wanted, and proven to work if we replaced it
    UPGRADE_REQUIRED = "upgrade-required"  # the driver has to be replaced; waits for a slot
    CORDON_REQUIRED = "cordon-required"  # has a slot, comes next: the cordon
    WAIT_FOR_JOBS_REQUIRED = "wait-for-jobs-required"  # cordoned; jobs may end by themselves
    POD_DELETION_REQUIRED = "pod-deletion-required"  # pods that use GPUs are being evicted
    DRAIN_REQUIRED = "drain-required"  # that was not enough; all pods are being evicted
    POD_RESTART_REQUIRED = "pod-restart-required"  # empty of GPU work; the driver pod is being replaced
    VALIDATION_REQUIRED = "validation-required"  # the new driver is ready and has to prove itself
    UNCORDON_REQUIRED = "uncordon-required"  # proven; comes next: the uncordon
    FAILED = "upgrade-failed"  # stays as it is, with the reason on the node, until something changes
    NODE_MAINTENANCE_REQUIRED = "node-maintenance-required"  # a maintenance operator is at work
    POST_MAINTENANCE_REQUIRED = "post-maintenance-required"  # likewise
    FOREIGN = "(another)"  # the label has a value that is none of these

    __hash__ = str.__hash__  # that of an Enum is in Python, and sets of states are asked all the time


_BEFORE_RESTART = ("cordon-required", "wait-for-jobs-required", "pod-deletion-required", "drain-required")
EARLY = frozenset(map(UpgradeState, _BEFORE_RESTART))
"""Under way, and the driver has not been touched yet."""

LATE = frozenset({UpgradeState.POD_RESTART_REQUIRED, UpgradeState.VALIDATION_REQUIRED, UpgradeState.UNCORDON_REQUIRED})
"""Under way, and there is no way back but through a working driver."""

FOREIGN_STATES = frozenset(
    {UpgradeState.NODE_MAINTENANCE_REQUIRED, UpgradeState.POST_MAINTENANCE_REQUIRED, UpgradeState.FOREIGN}
)
"""In the hands of another program; never touched."""

UPGRADING = EARLY | LATE
"""In the middle of an upgrade that a run goes on with."""

UNDER_WAY = UPGRADING | FOREIGN_STATES
"""Takes a slot."""

MANAGER = "gpu-provision"
"""The field manager of everything that a rollout writes to nodes."""

# Labels of nodes and pods, as in the reference.
STATE = "nvidia.com/gpu-driver-upgrade-state"
SKIP = "nvidia.com/gpu-driver-upgrade.skip"
DRAIN_SKIP = "nvidia.com/gpu-driver-upgrade-drain.skip"  # on pods

# Annotations of nodes, as in the reference.
ENABLED = "nvidia.com/gpu-driver-upgrade-enabled"  # read by the driver manager, which then leaves evictions to us
REQUESTED = "nvidia.com/gpu-driver-upgrade-requested"
SAFE_LOAD = "nvidia.com/gpu-driver-upgrade.driver-wait-for-safe-load"
WAS_CORDONED = "nvidia.com/gpu-driver-upgrade.node-initial-state.unschedulable"
JOBS_SINCE = "nvidia.com/gpu-driver-upgrade-wait-for-pod-completion-start-time"
VALIDATION_SINCE = "nvidia.com/gpu-driver-upgrade-validation-start-time"

# Annotations of nodes, ours.
SINCE = "gpu-provision.io/upgrade-since"  # unix seconds at which the state was entered
TARGET = "gpu-provision.io/upgrade-target"  # digest of the content that the node is on its way to
BEGAN_WITH = "gpu-provision.io/upgrade-began-with"  # uid of the driver pod as the upgrade found it
FORCED = "gpu-provision.io/upgrade-forced"  # "true": that pod is replaced although it is as wanted
CORDONED = "gpu-provision.io/upgrade-cordoned"  # field manager of a cordon that is ours to lift
CORDONED_BY = "gpu-provision.io/upgrade-cordoned-by"  # whose cordon was there before, as far as it is known
CANARY = "gpu-provision.io/upgrade-canary"  # digest of the fleet's content for which the node was a canary
REASON = "gpu-provision.io/upgrade-reason"  # why the upgrade failed
FAILED_IN = "gpu-provision.io/upgrade-failed-in"  # the state in which it failed
FAILED_WITH = "gpu-provision.io/upgrade-failed-with"  # uid of the driver pod with which it failed

STATE_ANNOTATIONS = (JOBS_SINCE, VALIDATION_SINCE, REASON, FAILED_IN, FAILED_WITH)
"""Annotations that mean something in one state only."""

UPGRADE_ANNOTATIONS = (*STATE_ANNOTATIONS, WAS_CORDONED, TARGET, BEGAN_WITH, FORCED, CORDONED, CORDONED_BY)
"""Annotations that are gone when an upgrade is over."""

ALL_ANNOTATIONS = (*UPGRADE_ANNOTATIONS, ENABLED, REQUESTED, SINCE, CANARY)
"""Every annotation that a rollout writes, for taking them back."""

NOT_READY = "the driver is not ready"
"""Beginning of what a node waits for, or failed of, whose new driver pod does not get ready."""

_NAMED = {state.value: state for state in UpgradeState if state is not UpgradeState.FOREIGN}


def parse_state(label: str) -> UpgradeState:
    """Return the state that a label's value names; FOREIGN for a value that this tool does not write."""
    return _NAMED.get(label, UpgradeState.FOREIGN)


_MAX_NAMES = 8


def writer_of(metadata: Mapping[str, Any]) -> tuple[str, str]:
    """Return which field manager wrote ``spec.unschedulable`` of a node last, and when; empty where unknown."""
    entries = [
        (str(entry.get("time", "")), str(entry.get("manager", "")))
        for entry in metadata.get("managedFields") or ()
        if "f:unschedulable" in ((entry.get("fieldsV1") or {}).get("f:spec") or {})
    ]
    at, manager = max(entries, default=("", ""))
    return manager, at


def is_of_rollout(notes: Mapping[str, str], manager: str) -> bool:
    """Whether the rollout may lift the cordon of a node: its annotations say so, and no other manager set it since.

    The ``manager`` that set it last is empty if unknown.
    """
    mark = notes.get(CORDONED)
    if mark is None or notes.get(WAS_CORDONED) == "true" or labels.CORDONED in notes:
        return False
    return manager in {"", mark}


def cordoned_by(node: NodeFacts) -> str:
    """Return who keeps new pods off a node, in words; empty if it is not cordoned."""
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
    """Return which nodes of a stack a run has left cordoned or halfway to another driver, and what the next one does.

    Equal nodes share one warning. A node that another manager cordoned is named only if the rollout has begun on it.
    """
    found: dict[tuple[str, str, bool], list[str]] = {}
    for node in nodes:
        if node.labels.get(labels.INVENTORY) == inventory and (left := _unfinished_upgrade(node)):
            found.setdefault(left, []).append(node.name)
    return tuple(_unfinished_finding(*left, names) for left, names in found.items())


_RESUMES = "resumes the rollout there"
_NEXT = {
    **dict.fromkeys(EARLY, f"{_RESUMES}; the driver that runs has not been touched"),
    **dict.fromkeys(LATE, f"{_RESUMES}; until then the node may have no driver"),
    UpgradeState.FAILED: "tries once more there",
}


def _unfinished_upgrade(node: NodeFacts) -> tuple[str, str, bool] | None:
    """Return how a node stays, what the next run does, and whether the cordon is the one of gpu-provision."""
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
    """Return the digest of all that a driver's installation depends on, as the driver manager itself compares it.

    A pod that was adopted says by a label which of our digests its own stands for.
    """
    if taken_over := ((pod.get("metadata") or {}).get("labels") or {}).get(labels.INSTALLATION):
        return str(taken_over)
    variables = (variable for each in pod["spec"]["containers"] for variable in each.get("env") or ())
    return next((each.get("value", "") for each in variables if each["name"] == _DIGEST), "")
