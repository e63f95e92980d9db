"""Where a node stands in the replacement of its driver: the states and keys of the GPU Operator, and our own marks.

State and memory are on the node, so any process can go on where another one was killed, and dashboards and scripts
made for the reference work. Keys under ``nvidia.com`` mean what they mean there; those under ``gpu-provision.io`` hold
what it forgets.
"""

from __future__ import annotations

from enum import StrEnum


class UpgradeState(StrEnum):
    """Value of the label ``STATE``. Each says when it is set."""

    UNKNOWN = ""  # never looked at, or somebody removed the label to have it looked at anew
    DONE = "upgrade-done"  # the driver is as wanted, and proven to work if we replaced it
    UPGRADE_REQUIRED = "upgrade-required"  # the driver is to be replaced; waits for a slot
    CORDON_REQUIRED = "cordon-required"  # has a slot, is to be cordoned
    WAIT_FOR_JOBS_REQUIRED = "wait-for-jobs-required"  # cordoned; jobs may end by themselves
    POD_DELETION_REQUIRED = "pod-deletion-required"  # pods that use GPUs are being evicted
    DRAIN_REQUIRED = "drain-required"  # that was not enough; all pods are being evicted
    POD_RESTART_REQUIRED = "pod-restart-required"  # empty of GPU work; the driver pod is being replaced
    VALIDATION_REQUIRED = "validation-required"  # the new driver is ready and has to prove itself
    UNCORDON_REQUIRED = "uncordon-required"  # proven; is to be given back
    FAILED = "upgrade-failed"  # stays as it is, with the reason on the node, until something changes
    NODE_MAINTENANCE_REQUIRED = "node-maintenance-required"  # a maintenance operator is at work
    POST_MAINTENANCE_REQUIRED = "post-maintenance-required"  # likewise
    FOREIGN = "(another)"  # the label has a value that is none of these

    __hash__ = str.__hash__  # that of an Enum is in Python, and sets of states are asked all the time


EARLY = frozenset(
    {
        UpgradeState.CORDON_REQUIRED,
        UpgradeState.WAIT_FOR_JOBS_REQUIRED,
        UpgradeState.POD_DELETION_REQUIRED,
        UpgradeState.DRAIN_REQUIRED,
    }
)
"""Under way, and the driver has not been touched yet."""

LATE = frozenset({UpgradeState.POD_RESTART_REQUIRED, UpgradeState.VALIDATION_REQUIRED, UpgradeState.UNCORDON_REQUIRED})
"""Under way, and there is no way back but through a working driver."""

ELSEWHERE = frozenset(
    {UpgradeState.NODE_MAINTENANCE_REQUIRED, UpgradeState.POST_MAINTENANCE_REQUIRED, UpgradeState.FOREIGN}
)
"""In the hands of somebody else; never touched."""

UPGRADING = EARLY | LATE
"""In the middle of an upgrade that a run goes on with."""

UNDER_WAY = UPGRADING | ELSEWHERE
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

PASSING = (JOBS_SINCE, VALIDATION_SINCE, REASON, FAILED_IN, FAILED_WITH)
"""Annotations that mean something in one state only."""

MEMORY = (*PASSING, WAS_CORDONED, TARGET, BEGAN_WITH, FORCED, CORDONED, CORDONED_BY)
"""Annotations that are gone when an upgrade is over."""

ALL_ANNOTATIONS = (*MEMORY, ENABLED, REQUESTED, SINCE, CANARY)
"""Every annotation that a rollout writes, for taking them back."""


_NAMED = {state.value: state for state in UpgradeState if state is not UpgradeState.FOREIGN}


def state_named(label: str) -> UpgradeState:
    """Return the state that a label's value names; FOREIGN for a value that nobody here has written."""
    return _NAMED.get(label, UpgradeState.FOREIGN)
