"""The actions by which a node gets other MIG devices, after its driver is current and its GPU pods are gone."""

from __future__ import annotations

from dataclasses import replace

from gpu_provision.components import labels
from gpu_provision.rollout import predicates, snapshot, states
from gpu_provision.rollout.node_decision import NodeDecision, act, enter_state, evict_newcomers, fail, wait_until
from gpu_provision.rollout.snapshot import FleetNode, transition_to
from gpu_provision.rollout.states import UpgradeState

NO_REQUEST: tuple[tuple[str, str | None], ...] = ((labels.MIG_CONFIG, None), (labels.MIG_STATE, None))
"""The labels of a node that requests no MIG configuration."""


def change_geometry(node: FleetNode, until: float, now: float) -> NodeDecision:
    """Request the desired MIG configuration, wait until the MIG manager has applied it, then validate.

    The state goes with the request, since that of the previous configuration would count.
    """
    if not node.desired.mig:
        return enter_state(node, UpgradeState.VALIDATION_REQUIRED, now)
    if not node.mig_manager:
        return wait_until(node, "the MIG manager is not ready", until, now)
    if predicates.requests_other_geometry(node):
        if predicates.gpu_pods(node):
            return evict_newcomers(node, now)
        if node.annotations.get(states.MIG_MANAGER) == node.mig_manager:
            restart_manager = snapshot.RestartMigManager(node=node.name, uid=node.mig_manager)
            return NodeDecision((restart_manager,), "the MIG manager to restart", until)
        move = transition_to(node, node.state, now, reason=predicates.geometry_reason(node))
        return act(replace(move, labels=((labels.MIG_CONFIG, node.desired.mig), (labels.MIG_STATE, None))))
    return _await_geometry(node, until, now)


def _await_geometry(node: FleetNode, until: float, now: float) -> NodeDecision:
    match node.labels.get(labels.MIG_STATE, ""):
        case labels.MIG_SUCCESS:
            return enter_state(node, UpgradeState.VALIDATION_REQUIRED, now)
        case labels.MIG_FAILED:
            trouble = f"the MIG manager could not apply {node.desired.mig}; the log of its pod has the reason"
            return fail(node, now, trouble)
        case state:
            waits = f"the MIG manager applies {node.desired.mig} ({state or 'not begun'})"
            return wait_until(node, waits, until, now)
