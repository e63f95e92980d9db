"""States of drivers, MIG managers and leaving nodes while a rollout works on their nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import assert_never

from gpu_provision.components import labels, mig_manager
from gpu_provision.model.progress import NodeState, State
from gpu_provision.model.rollout_policy import UpgradePolicy
from gpu_provision.planning.states import LABELS_PENDING, ComponentNode
from gpu_provision.planning.upgrades import DRIVER, DRIVER_KEPT, STACK_KEPT, UPGRADE_UNFINISHED, is_kept
from gpu_provision.planning.verdicts import FAILED_WITH
from gpu_provision.rollout import predicates
from gpu_provision.rollout import states as upgrade
from gpu_provision.rollout.snapshot import FleetNode, ValidationResult
from gpu_provision.rollout.state_machine import Decision, RolloutPhase
from gpu_provision.rollout.states import LATE, UpgradeState


def rollout_state(node: FleetNode, decision: Decision, raw: NodeState) -> NodeState:
    """Return the state of a driver or a MIG manager in the rollout of its node.

    What the rollout does for the MIG devices of a node with a current driver concerns its MIG manager alone.
    """
    changes_mig = bool(node.desired.mig) and not predicates.driver_reason(node) and predicates.is_driver_ready(node)
    changes_mig = changes_mig and (
        bool(predicates.geometry_reason(node)) or node.labels.get(labels.MIG_STATE) != labels.MIG_SUCCESS
    )
    if raw.component != DRIVER:
        return _state_in_rollout(node, decision, raw, is_up=raw.state is State.READY) if changes_mig else raw
    raw = replace(raw, step=node.labels.get(upgrade.STATE, ""))
    if changes_mig:
        is_unfinished = raw.reason.startswith(UPGRADE_UNFINISHED)
        return replace(raw, state=State.READY, reason="") if is_unfinished else raw
    driver = node.driver
    is_up = driver is not None and driver.is_ready and predicates.is_current(node)
    return _state_in_rollout(node, decision, raw, is_up=is_up)


def _state_in_rollout(node: FleetNode, decision: Decision, raw: NodeState, *, is_up: bool) -> NodeState:  # noqa: PLR0911 - one case after the other
    """Return the state of a driver or a MIG manager that the rollout of its node replaces or changes.

    A driver before its validation is ready here, as the validation requires that; see `pending_validation_states`.
    """
    if node.state is UpgradeState.FAILED and node.name in decision.failures:
        return replace(raw, state=State.FAILED, reason=decision.failures[node.name])
    if node.state is UpgradeState.FAILED:
        return replace(raw, state=State.PROGRESSING, reason="its upgrade failed, and is retried")
    if node.state is UpgradeState.UPGRADE_REQUIRED:
        is_between = not node.has_host_driver and (node.driver is None or node.driver.is_terminating)
        if is_kept(raw) or (is_between and decision.phase is not RolloutPhase.ROLLING):
            return raw
        return _waiting_state(raw, node, decision, DRIVER_KEPT, "is about to start")
    if node.state in upgrade.UPGRADING:
        is_usable = node.state in LATE and is_up
        return replace(raw, state=State.READY, reason="") if is_usable else _progressing_state(raw, node, decision)
    if node.state in (UpgradeState.UNKNOWN, UpgradeState.DONE):
        is_over = is_up and raw.reason.startswith(UPGRADE_UNFINISHED)  # the watch may lag behind the last write
        return replace(raw, state=State.READY, reason="") if is_over else raw
    if raw.state is State.READY:
        return raw
    return replace(raw, state=State.BLOCKED, reason=f"{DRIVER_KEPT}: {decision.wait_reasons.get(node.name, '')}")


def leaving_state(node: FleetNode, decision: Decision, raw: NodeState, policy: UpgradePolicy) -> NodeState:
    """Return the state of a leaving node; its labels are written once no pod would lose a GPU."""
    begun = replace(raw, step=node.labels.get(upgrade.STATE, ""))
    if node.state is UpgradeState.FAILED and node.name in decision.failures:
        return replace(begun, state=State.FAILED, reason=f"{STACK_KEPT}: {decision.failures[node.name]}")
    if node.state in upgrade.UPGRADING or node.state is UpgradeState.FAILED:
        return _progressing_state(begun, node, decision)
    if predicates.is_free(node) and not predicates.has_rollout_metadata(node):
        return replace(raw, state=State.PROGRESSING, reason=LABELS_PENDING)
    if not policy.auto_upgrade or node.labels.get(upgrade.SKIP) == "true":
        return replace(raw, state=State.READY, reason=f"{STACK_KEPT}: {decision.wait_reasons.get(node.name, '')}")
    return _waiting_state(raw, node, decision, STACK_KEPT, "is about to leave")


def _waiting_state(raw: NodeState, node: FleetNode, decision: Decision, stays: str, begins: str) -> NodeState:
    """Return the state of a node that has not started: progressing if it starts in this run."""
    wait = decision.wait_reasons.get(node.name, "")
    match decision.phase:
        case RolloutPhase.CLOSED:
            return replace(raw, state=State.READY, reason=f"{stays}: {wait}")
        case RolloutPhase.PAUSED | RolloutPhase.HELD:
            return replace(raw, state=State.BLOCKED, reason=f"{stays}: {wait}")
        case RolloutPhase.ROLLING | RolloutPhase.SOAKING | RolloutPhase.FAILED | RolloutPhase.DONE:
            return replace(raw, state=State.PROGRESSING, reason=f"waits: {wait}" if wait else begins)
        case _:
            assert_never(decision.phase)


def _progressing_state(state: NodeState, node: FleetNode, decision: Decision) -> NodeState:
    reason = decision.wait_reasons.get(node.name) or f"is in {node.state.value}"
    return replace(state, state=State.PROGRESSING, reason=reason)


def validation_results(raw: Mapping[ComponentNode, NodeState]) -> dict[str, ValidationResult]:
    """Return the validation result of the current driver of each node; nodes without one are absent."""
    results = dict[str, ValidationResult]()
    for node, state in ((key[1], state) for key, state in raw.items() if key[0] == "driver_validation" and key[1]):
        if state.state is State.FAILED:
            results[node] = ValidationResult(passed=False, reason=state.reason.removeprefix(FAILED_WITH))
        elif state.state is State.READY and not state.reason:
            results[node] = ValidationResult(passed=True)
    return results


def pending_validation_states(
    nodes: Iterable[FleetNode], decision: Decision, settled: Mapping[ComponentNode, NodeState]
) -> dict[ComponentNode, NodeState]:
    """Return the states of ready drivers whose nodes are still to be validated or uncordoned."""
    late = ((node, settled.get((DRIVER, node.name))) for node in nodes if node.state in LATE)
    ready = ((node, state) for node, state in late if state is not None and state.state is State.READY)
    return {(DRIVER, node.name): _progressing_state(state, node, decision) for node, state in ready}


def drivers_without_deadline(nodes: Iterable[FleetNode]) -> frozenset[ComponentNode]:
    """Return the drivers whose timeouts the rollout applies, or that wait for a slot."""
    rolling = upgrade.UPGRADING | {UpgradeState.UPGRADE_REQUIRED}
    under_way = (node for node in nodes if node.state in rolling or predicates.upgrade_reason(node))
    return frozenset((name, node.name) for node in under_way for name in (DRIVER, mig_manager.NAME))
