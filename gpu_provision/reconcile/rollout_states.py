"""The states of drivers, and of nodes that leave, while a rollout looks after them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import assert_never

from gpu_provision.model.progress import NodeState, State
from gpu_provision.model.rollout_policy import UpgradePolicy
from gpu_provision.planning.states import TO_BE_LABELLED, Key
from gpu_provision.planning.upgrades import AT_WORK, DRIVER, KEEPS, STAYS, is_kept
from gpu_provision.planning.validation import FAILED_WITH
from gpu_provision.rollout import predicates
from gpu_provision.rollout import states as upgrade
from gpu_provision.rollout.predicates import is_free
from gpu_provision.rollout.snapshot import FleetNode, Snapshot, ValidationResult
from gpu_provision.rollout.state_machine import Decision, RolloutPhase
from gpu_provision.rollout.states import EARLY, LATE, UpgradeState

_VALIDATION = "driver_validation"
_REST = frozenset({UpgradeState.UNKNOWN, UpgradeState.DONE})


def driver_state(node: FleetNode, decision: Decision, raw: NodeState) -> NodeState:
    """Return the state of a driver that the rollout looks after, and how far it is.

    A driver that has yet to prove itself is ready here, since its proof requires that; see `pending_validation_states`.
    """
    return replace(_state(node, decision, raw), step=node.labels.get(upgrade.STATE, ""))


def leaving_state(node: FleetNode, decision: Decision, raw: NodeState, policy: UpgradePolicy) -> NodeState:
    """Return the state of a node that leaves: with its labels to be written once nothing on it would suffer."""
    step, wait = node.labels.get(upgrade.STATE, ""), decision.waits.get(node.name, "")
    if node.state is UpgradeState.FAILED and node.name in decision.failures:
        return replace(raw, state=State.FAILED, reason=f"{STAYS}: {decision.failures[node.name]}", step=step)
    if node.state in EARLY | LATE | {UpgradeState.FAILED}:
        return _progressing(raw, node, decision, step=step)
    if is_free(node) and not predicates.is_marked(node):
        return replace(raw, state=State.PROGRESSING, reason=TO_BE_LABELLED)
    if not policy.auto_upgrade or node.labels.get(upgrade.SKIP) == "true" or decision.phase is RolloutPhase.CLOSED:
        return replace(raw, state=State.READY, reason=f"{STAYS}: {wait}")
    if decision.phase in {RolloutPhase.PAUSED, RolloutPhase.HELD}:
        return replace(raw, state=State.BLOCKED, reason=f"{STAYS}: {wait}")
    return replace(raw, state=State.PROGRESSING, reason=f"waits: {wait}" if wait else "is about to leave")


def validation_results(raw: Mapping[Key, NodeState]) -> dict[str, ValidationResult]:
    """Return what validation says of the driver that each node has now; nothing where it has not ended."""
    found = ((node, state) for (component, node), state in raw.items() if component == _VALIDATION and node)
    ended = ((node, state) for node, state in found if _has_passed(state) or state.state is State.FAILED)
    return {
        node: ValidationResult(passed=_has_passed(state), reason=state.reason.removeprefix(FAILED_WITH))
        for node, state in ended
    }


def _has_passed(state: NodeState) -> bool:
    return state.state is State.READY and not state.reason


def pending_validation_states(
    snapshot: Snapshot, decision: Decision, settled: Mapping[Key, NodeState]
) -> dict[Key, NodeState]:
    """Return the states of ready drivers whose nodes are still to be given back."""
    found = ((node, settled.get((DRIVER, node.name))) for node in snapshot.nodes if node.state in LATE)
    return {
        (DRIVER, node.name): _progressing(state, node, decision)
        for node, state in found
        if state is not None and state.state is State.READY
    }


def drivers_without_deadline(nodes: Iterable[FleetNode]) -> frozenset[Key]:
    """Return the drivers whose time the rollout keeps, or that wait for their turn."""
    ours = EARLY | LATE | {UpgradeState.UPGRADE_REQUIRED}
    return frozenset((DRIVER, node.name) for node in nodes if node.state in ours or predicates.why(node))


def _state(node: FleetNode, decision: Decision, raw: NodeState) -> NodeState:
    if node.state is UpgradeState.FAILED:
        return _failed(node, decision, raw)
    if node.state is UpgradeState.UPGRADE_REQUIRED:
        return _waiting(node, decision, raw)
    if node.state in EARLY | LATE:
        return replace(raw, state=State.READY, reason="") if _serves(node) else _progressing(raw, node, decision)
    if node.state in _REST:
        return replace(raw, state=State.READY, reason="") if _rests(node, raw) else raw
    if raw.state is State.READY:
        return raw
    return replace(raw, state=State.BLOCKED, reason=f"{KEEPS}: {decision.waits.get(node.name, '')}")


def _failed(node: FleetNode, decision: Decision, raw: NodeState) -> NodeState:
    if node.name not in decision.failures:
        return replace(raw, state=State.PROGRESSING, reason="its upgrade failed, and is tried once more")
    return replace(raw, state=State.FAILED, reason=decision.failures[node.name])


def _waiting(node: FleetNode, decision: Decision, raw: NodeState) -> NodeState:
    """Return the state of a node that has not started: will it, in this run, and if not, is that as it should be?"""
    is_between = node.driver is None or node.driver.is_terminating
    wait = decision.waits.get(node.name, "")
    if is_kept(raw) or (is_between and decision.phase is not RolloutPhase.ROLLING):
        return raw
    match decision.phase:
        case RolloutPhase.CLOSED:
            return replace(raw, state=State.READY, reason=f"{KEEPS}: {wait}")
        case RolloutPhase.PAUSED | RolloutPhase.HELD:
            return replace(raw, state=State.BLOCKED, reason=f"{KEEPS}: {wait}")
        case RolloutPhase.ROLLING | RolloutPhase.SOAKING | RolloutPhase.FAILED | RolloutPhase.DONE:
            return replace(raw, state=State.PROGRESSING, reason=f"waits: {wait}" if wait else "is about to start")
        case _:
            assert_never(decision.phase)


def _progressing(state: NodeState, node: FleetNode, decision: Decision, *, step: str = "") -> NodeState:
    reason = decision.waits.get(node.name) or f"is in {node.state.value}"
    return replace(state, state=State.PROGRESSING, reason=reason, step=step)


def _serves(node: FleetNode) -> bool:
    """Whether what needs the driver on a node can go on."""
    return node.state in LATE and predicates.is_current(node) and node.driver is not None and node.driver.is_ready


def _rests(node: FleetNode, raw: NodeState) -> bool:
    """Whether a node is over with it although the watch may not have shown our last write yet."""
    ready = node.driver is not None and node.driver.is_ready and predicates.is_current(node)
    return ready and raw.reason.startswith(AT_WORK)
