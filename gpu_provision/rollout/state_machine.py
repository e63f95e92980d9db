"""The rollout as a state machine: from a snapshot of the fleet to the next action of every node.

A node passes states without a wait in one write.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain
from math import inf
from typing import assert_never

from gpu_provision.model.rollout_policy import OnFailure
from gpu_provision.rollout import budgets, node_steps, predicates, states
from gpu_provision.rollout.budgets import admit, failed_nodes
from gpu_provision.rollout.canary import soaking_canaries
from gpu_provision.rollout.node_decision import IDLE, NodeDecision, act, remove_rollout_state
from gpu_provision.rollout.snapshot import (
    NO_DRIVER,
    Action,
    Admission,
    BudgetDomain,
    Cordon,
    FleetNode,
    HoldReason,
    Policy,
    RollBack,
    Snapshot,
    StateTransition,
    apply_transition,
    cordon_node,
    transition_to,
    write_annotations,
)
from gpu_provision.rollout.states import EARLY, FOREIGN_STATES, LATE, UNDER_WAY, UpgradeState


def coalesce(actions: tuple[Action, ...], snapshot: Snapshot, policy: Policy) -> Iterator[Action]:
    """Yield the actions of a decision, with consecutive transitions of a node joined to one."""
    nodes = {node.name: node for node in snapshot.nodes}
    for action in actions:
        if isinstance(action, StateTransition):
            node = nodes[action.node]
            yield _extend_transition(action, node, policy.domains[node.domain], snapshot.now)
        else:
            yield action


def _extend_transition(move: StateTransition, node: FleetNode, domain: BudgetDomain, now: float) -> StateTransition:
    reached = apply_transition(node, move)
    waits_for_jobs = bool(domain.policy.wait_for_completion.pod_selector)
    # A job may start before the cordon, so the wait for jobs needs a snapshot of the cordoned node. So do the restart
    # of the driver and evictions, which are no transitions.
    while move.state in UNDER_WAY and not (move.cordon is Cordon.SET and waits_for_jobs):
        match decide_node(reached, domain, now).actions:
            case (StateTransition() as following,) if (
                following.state in _PASSABLE and following.state is not reached.state
            ):
                reached = apply_transition(reached, following)
                move = _join_transitions(node, move, following)
            case _:
                break
    return move


_PASSABLE = UNDER_WAY | {UpgradeState.DONE}
"""States that one write may pass; waits and failures have their own writes, as other nodes depend on them."""


def _join_transitions(node: FleetNode, move: StateTransition, following: StateTransition) -> StateTransition:
    notes = dict(move.annotations) | dict(following.annotations)
    return replace(
        following,
        cordon=move.cordon if following.cordon is Cordon.KEEP else following.cordon,
        annotations=tuple(sorted((key, value) for key, value in notes.items() if node.annotations.get(key) != value)),
        labels=tuple((dict(move.labels) | dict(following.labels)).items()),
        reason="; ".join(filter(None, (move.reason, following.reason))),
    )


_STAYS_CORDONED = (EARLY | LATE) - {UpgradeState.CORDON_REQUIRED, UpgradeState.UNCORDON_REQUIRED}


def decide_node(  # noqa: PLR0911 - one case after the other
    node: FleetNode, domain: BudgetDomain, now: float, *, is_soaking: bool = False
) -> NodeDecision:
    """Return the next actions of a node. ``is_soaking``: whether it is a canary in its soak time."""
    if node.exclusion_reason:
        return NodeDecision(
            wait_reason=node.exclusion_reason if predicates.upgrade_reason(node) or node.state in UNDER_WAY else ""
        )
    if node.state in FOREIGN_STATES:
        return NodeDecision(wait_reason=f"{states.STATE} is {node.labels[states.STATE]}, which another program manages")
    if node.desired == NO_DRIVER and predicates.is_free(node):
        return remove_rollout_state(node, predicates.upgrade_reason(node) or "has a host driver")
    if not domain.policy.auto_upgrade and node.state not in LATE:
        return _keep_driver(node)
    if repair := _repair_metadata(node, now):
        return repair
    if is_soaking and not predicates.is_healthy(node):
        return node_steps.fail_canary(node, now)
    if node.is_leaving and node.state not in EARLY:
        return node_steps.remove_from_node(node, domain, now)
    return _decide_by_state(node, domain, now)


def _decide_by_state(node: FleetNode, domain: BudgetDomain, now: float) -> NodeDecision:  # noqa: C901, PLR0911 - one case a state
    match node.state:
        case UpgradeState.UNKNOWN | UpgradeState.DONE:
            return node_steps.compare_driver(node, now)
        case UpgradeState.UPGRADE_REQUIRED:
            return node_steps.check_queue(node, domain, now)
        case UpgradeState.CORDON_REQUIRED:
            return node_steps.cordon(node, now)
        case UpgradeState.WAIT_FOR_JOBS_REQUIRED:
            return node_steps.wait_for_jobs(node, domain, now)
        case UpgradeState.POD_DELETION_REQUIRED:
            return node_steps.delete_pods(node, domain, now)
        case UpgradeState.DRAIN_REQUIRED:
            return node_steps.drain(node, domain, now)
        case UpgradeState.POD_RESTART_REQUIRED:
            return node_steps.restart(node, domain, now)
        case UpgradeState.VALIDATION_REQUIRED:
            return node_steps.validate(node, domain, now)
        case UpgradeState.UNCORDON_REQUIRED:
            return node_steps.uncordon(node, now)
        case UpgradeState.FAILED:
            return node_steps.recover(node, now)
        case UpgradeState.NODE_MAINTENANCE_REQUIRED | UpgradeState.POST_MAINTENANCE_REQUIRED | UpgradeState.FOREIGN:
            return IDLE
        case _:
            assert_never(node.state)


def _keep_driver(node: FleetNode) -> NodeDecision:
    """Keep the driver, and remove everything that a rollout wrote; the GPU Operator leaves all cordons."""
    if (decision := remove_rollout_state(node, "auto_upgrade is off")).actions:
        return decision
    if node.is_leaving:
        pods = predicates.name_pods(predicates.losing_pods(node))
        return NodeDecision(wait_reason=f"auto_upgrade is off, and pods use its GPUs: {pods}")
    reason = predicates.upgrade_reason(node)
    return NodeDecision(wait_reason=f"{reason}, but auto_upgrade is off") if reason else IDLE


def _repair_metadata(node: FleetNode, now: float) -> NodeDecision | None:
    """Repair what another client has changed; the clock of the state continues."""
    state, since = node.state, node.state_since()
    if predicates.inherits_cordon(node):
        mark = {states.CORDONED: node.cordoned_by or states.MANAGER}
        return act(write_annotations(node, state, mark, reason="resumes the upgrade of the GPU Operator"))
    if state in EARLY | LATE and since is None:
        return act(transition_to(node, state, now, reason="resumes the upgrade"))
    if state in _STAYS_CORDONED and not node.is_cordoned:
        return act(cordon_node(node, state, since or now, "the cordon was lifted by another client"))
    if state not in EARLY | LATE and states.CORDONED in node.annotations and not predicates.owns_cordon(node):
        return act(write_annotations(node, state, {states.CORDONED: None}, reason="the cordon has another manager now"))
    return None


_MARKED_FIRST = frozenset({UpgradeState.UPGRADE_REQUIRED, UpgradeState.FAILED})
"""States of waits and failures, which are written before another node starts."""


class RolloutPhase(StrEnum):
    """The phase of the rollout as a whole."""

    ROLLING = "rolling"  # nodes are under way, or there are actions
    SOAKING = "soaking"  # nodes wait for the soak time of canaries
    CLOSED = "closed"  # nodes wait for the maintenance window
    PAUSED = "paused"  # nodes wait, as too many have failed
    HELD = "held"  # nodes wait for a user's action
    FAILED = "failed"  # no node waits, and some have failed
    DONE = "done"  # every node has the desired driver


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The next actions of the fleet."""

    phase: RolloutPhase
    actions: tuple[Action, ...] = ()  # in any order; the next decision repeats those that were not executed
    wait_reasons: Mapping[str, str] = field(default_factory=dict)  # node -> why it waits
    until: float = inf  # when to decide again without an event, in unix seconds; inf for never
    failures: Mapping[str, str] = field(default_factory=dict)  # node -> why it failed
    queue: tuple[FleetNode, ...] = ()  # the nodes that wait only for slots, in order; includes starting ones


def decide(snapshot: Snapshot, policy: Policy, writing: Mapping[str, StateTransition] | None = None) -> Decision:
    """Return the next actions. The same snapshot always has the same decision.

    ``writing``: node -> its transition in flight. Such a node has no other action until the write has ended.
    """
    writing = writing or {}
    snapshot = _apply_pending(snapshot, writing)
    soaking = soaking_canaries(snapshot, policy.fleet.canary)
    decisions = {
        node.name: decide_node(node, policy.domains[node.domain], snapshot.now, is_soaking=node.name in soaking)
        if node.name not in writing
        else IDLE
        for node in snapshot.nodes
    }
    acting = tuple(action for each in decisions.values() for action in each.actions)
    moves = [action for action in chain(writing.values(), acting) if isinstance(action, StateTransition)]
    ready = (node for node in snapshot.nodes if decisions[node.name].is_candidate)
    # No node starts before waits and failures are written; otherwise the order of nodes, and the limit of failures,
    # would depend on the order of writes.
    is_open = not any(move.state in _MARKED_FIRST for move in moves)
    candidates = tuple(sorted(ready, key=lambda node: budgets.sort_key(node, policy.fleet.order))) if is_open else ()
    opened = admit(snapshot, policy, candidates)
    starting, held = budgets.allocate_slots(snapshot, policy, candidates, opened)
    mark = snapshot.target if opened.hold_reason is HoldReason.CANARIES else None
    actions = (
        *acting,
        *(node_steps.start(node, snapshot.now, None if node.is_leaving else mark) for node in starting),
        *(() if writing else _roll_back(snapshot, policy, opened)),  # ends the run, so after all writes
    )
    waits = {name: each.wait_reason for name, each in decisions.items() if each.wait_reason} | held
    return Decision(
        phase=_phase(snapshot, (*actions, *writing), waits, opened if candidates else None),
        actions=actions,
        wait_reasons=waits,
        until=min([*(each.until for each in decisions.values()), opened.until if candidates else inf]),
        failures=_failures(snapshot.nodes),
        queue=candidates if opened.hold_reason is HoldReason.NOTHING else (),
    )


def retry_failed(snapshot: Snapshot) -> tuple[StateTransition, ...]:
    """Return the transitions of a new run that retry failed nodes."""
    failed_here = (node for node in snapshot.nodes if node.state is UpgradeState.FAILED and not node.exclusion_reason)
    return tuple(node_steps.retry(node, snapshot.now) for node in failed_here)


def _apply_pending(snapshot: Snapshot, writing: Mapping[str, StateTransition]) -> Snapshot:
    """Return the snapshot for the limits: a node takes its slot before the write, and releases the slot after it."""
    if not writing:
        return snapshot
    nodes = (
        apply_transition(node, writing[node.name]) if node.name in writing and not node.is_under_way else node
        for node in snapshot.nodes
    )
    return replace(snapshot, nodes=tuple(nodes))


def _roll_back(snapshot: Snapshot, policy: Policy, opened: Admission) -> Iterator[RollBack]:
    """Yield the rollback that the policy requires; a failed rollback is not rolled back."""
    wanted = policy.fleet.on_failure is OnFailure.ROLLBACK and opened.hold_reason is HoldReason.FAILURES
    if wanted and snapshot.previous and not snapshot.is_rolling_back:
        yield RollBack(target=snapshot.previous, reason=f"failed: {', '.join(failed_nodes(snapshot))}")


def _phase(
    snapshot: Snapshot, actions: Collection[object], waits: Collection[str], opened: Admission | None
) -> RolloutPhase:
    if actions or any(node.is_under_way for node in snapshot.nodes):
        return RolloutPhase.ROLLING
    if opened is not None and opened.hold_reason is HoldReason.CANARIES and opened.until < inf:
        return RolloutPhase.SOAKING
    if opened is not None:
        return _HELD_BY.get(opened.hold_reason, RolloutPhase.HELD)
    if waits:
        return RolloutPhase.HELD
    return RolloutPhase.FAILED if _failures(snapshot.nodes) else RolloutPhase.DONE


_HELD_BY = {HoldReason.FAILURES: RolloutPhase.PAUSED, HoldReason.WINDOW: RolloutPhase.CLOSED}


def _failures(nodes: Collection[FleetNode]) -> dict[str, str]:
    broken = (node for node in nodes if node.state is UpgradeState.FAILED)
    return {node.name: node.annotations.get(states.REASON, "the reason is not on record") for node in broken}
