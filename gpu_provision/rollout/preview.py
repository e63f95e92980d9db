"""Preview of a rollout: the order of nodes, the evictions, and the obstacles.

The state machine itself decides, again and again, with each started node taken as done, so that the order is that of
the rollout. Once nodes wait only for slots, the slots are allocated to the end, unless a node leaves, which changes
the limits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf

from gpu_provision.components import labels
from gpu_provision.model.plan import Eviction, NodePreview, Schedule, Wave
from gpu_provision.model.rollout_policy import UpgradePolicy
from gpu_provision.rollout import budgets, predicates, state_machine, states
from gpu_provision.rollout.snapshot import (
    DriverPod,
    FleetNode,
    GpuUse,
    Pod,
    Policy,
    Snapshot,
    StackPresence,
    StateTransition,
    apply_transition,
)
from gpu_provision.rollout.state_machine import Decision
from gpu_provision.rollout.states import UpgradeState


def plan_waves(snapshot: Snapshot, policy: Policy) -> Schedule:
    """Return the rollout of the next run, which retries failed nodes."""
    moves = {move.node: move for move in state_machine.retry_failed(snapshot)}
    seen = replace(snapshot, nodes=tuple(_apply_transition(node, moves.get(node.name)) for node in snapshot.nodes))
    under_way = tuple(node.name for node in seen.nodes if node.is_under_way)
    seen = _complete_upgrades(seen, under_way)
    waves: list[Wave] = []
    marked = set(moves)
    while True:
        seen, decision, written = _settle_transitions(seen, policy)
        marked |= written
        started = tuple(move for move in _transitions(decision) if move.state is UpgradeState.CORDON_REQUIRED)
        opening = seen.now if seen.now > snapshot.now else None
        if decision.queue and started and not any(node.is_leaving for node in decision.queue):
            # No successful upgrade blocks another one, so these are the remaining ones.
            over = partial(_complete_upgrade, now=seen.now)
            rounds = budgets.plan_rounds(seen, policy, decision.queue, over)
            coming = [Wave(nodes=_node_previews(nodes, policy), not_before=opening) for nodes in rounds]
            waves += coming
            seen = _complete_upgrades(seen, _node_names(coming))
        elif started:
            waves.append(_wave(seen, policy, started, opening))
            seen = _complete_upgrades(seen, (move.node for move in started), {move.node: move for move in started})
        elif decision.until < inf:
            seen = replace(seen, now=decision.until)
        else:
            staying = marked - {*under_way, *_node_names(waves)}
            return Schedule(
                under_way=under_way,
                waves=tuple(waves),
                skipped=tuple({**decision.failures, **decision.wait_reasons}.items()),
                marked=tuple(node.name for node in snapshot.nodes if node.name in staying),
                stop_after=policy.fleet.stop_after_failures,
            )


def _node_names(waves: Iterable[Wave]) -> Iterator[str]:
    return (outlook.node for wave in waves for outlook in wave.nodes)


def _settle_transitions(seen: Snapshot, policy: Policy) -> tuple[Snapshot, Decision, set[str]]:
    """Apply all transitions that do not start a node; return also the names of their nodes."""
    decision, written = state_machine.decide(seen, policy), set[str]()
    while marks := {
        move.node: move for move in _transitions(decision) if move.state is not UpgradeState.CORDON_REQUIRED
    }:
        seen = replace(seen, nodes=tuple(_apply_transition(node, marks.get(node.name)) for node in seen.nodes))
        decision = state_machine.decide(seen, policy)
        written |= marks.keys()
    return seen, decision, written


def _transitions(decision: Decision) -> Iterator[StateTransition]:
    return (action for action in decision.actions if isinstance(action, StateTransition))


def _apply_transition(node: FleetNode, move: StateTransition | None) -> FleetNode:
    return apply_transition(node, move) if move else node


def _complete_upgrades(
    seen: Snapshot, names: Iterable[str], moves: Mapping[str, StateTransition] | None = None
) -> Snapshot:
    moved = {name: (moves or {}).get(name) for name in names}
    now = (
        _complete_upgrade(_apply_transition(node, moved[node.name]), seen.now) if node.name in moved else node
        for node in seen.nodes
    )
    return replace(seen, nodes=tuple(now))


def _complete_upgrade(node: FleetNode, now: float) -> FleetNode:
    if node.is_leaving:
        uncordoned = node.is_cordoned and not predicates.owns_cordon(node)
        return replace(node, labels={}, annotations={}, is_cordoned=uncordoned, pods=(), stack=StackPresence.BARE)
    gone = {*states.UPGRADE_ANNOTATIONS, states.REQUESTED, states.SAFE_LOAD}
    kept = {key: value for key, value in node.annotations.items() if key not in gone}
    return replace(
        node,
        labels=_labels_afterwards(node),
        annotations={**kept, states.SINCE: str(int(now))},
        is_cordoned=node.is_cordoned and not predicates.owns_cordon(node),
        driver=node.driver and DriverPod(uid=f"next-{node.name}", digest=node.desired.digest, is_ready=True),
        validation_result=None,
        pods=(),
    )


def _labels_afterwards(node: FleetNode) -> dict[str, str]:
    mig = {labels.MIG_CONFIG: node.desired.mig, labels.MIG_STATE: labels.MIG_SUCCESS} if node.desired.mig else {}
    return {**node.labels, **mig, states.STATE: UpgradeState.DONE.value}


def _wave(seen: Snapshot, policy: Policy, started: tuple[StateTransition, ...], not_before: float | None) -> Wave:
    nodes = {node.name: node for node in seen.nodes}
    starting = [nodes[move.node] for move in started]
    marked = any(dict(move.annotations).get(states.CANARY) for move in started)
    again = any(node.annotations.get(states.CANARY) == seen.target for node in starting)  # marked already
    return Wave(
        nodes=_node_previews(starting, policy),
        not_before=not_before,
        is_canary=policy.fleet.canary is not None and (marked or again),
    )


def _node_previews(nodes: Sequence[FleetNode], policy: Policy) -> tuple[NodePreview, ...]:
    narrow = _narrow_budgets(nodes)
    return tuple(_node_preview(node, policy, narrow) for node in nodes)


def _narrow_budgets(nodes: Iterable[FleetNode]) -> frozenset[tuple[str, str]]:
    """Return namespace and name of the budgets that allow some, but not all, evictions of one wave at once."""
    wanted: Counter[tuple[str, str]] = Counter()
    allowed: dict[tuple[str, str], int] = {}
    for pod in (pod for node in nodes for pod in predicates.gpu_pods(node)):
        for budget in pod.budgets:
            wanted[pod.namespace, budget.name] += 1
            allowed[pod.namespace, budget.name] = budget.allowed
    return frozenset(key for key, number in wanted.items() if 0 < allowed[key] < number)


def _node_preview(node: FleetNode, policy: Policy, narrow: frozenset[tuple[str, str]]) -> NodePreview:
    domain = policy.domains[node.domain]
    rules = domain.policy
    jobs = predicates.awaited_jobs(node, rules)
    evicts = tuple(_evictions(node, rules, jobs, narrow))
    keeps_cordon = node.is_cordoned and not predicates.owns_cordon(node)
    times = [domain.restart_seconds, domain.validation_seconds]
    times += [rules.wait_for_completion.timeout_seconds] if jobs else []
    times += [rules.pod_deletion.timeout_seconds] if evicts else []
    times += [rules.drain.timeout_seconds] if evicts and rules.drain.enable else []
    return NodePreview(
        node=node.name,
        why=predicates.upgrade_reason(node),
        leaves=node.is_leaving,
        keeps_driver=bool(predicates.geometry_reason(node)) and not predicates.driver_reason(node),
        waits_for=tuple(_eviction(pod, certain=False) for pod in jobs),
        evicts=evicts,
        stays=tuple(_eviction(pod) for pod in predicates.possible_gpu_pods(node)),
        cordoned_by=(node.cordoned_by or "another client") if keeps_cordon else "",
        seconds=sum(times) if all(times) else 0,
    )


def _evictions(
    node: FleetNode, rules: UpgradePolicy, jobs: tuple[Pod, ...], narrow: frozenset[tuple[str, str]]
) -> Iterator[Eviction]:
    holding = predicates.gpu_pods(node)
    yield from (_eviction(pod, certain=pod not in jobs, narrow=narrow) for pod in holding)
    drained = predicates.pods_to_drain(node, rules.drain) if rules.drain.enable else ()
    yield from (_eviction(pod, certain=False) for pod in drained if pod not in holding)


def _eviction(pod: Pod, *, certain: bool = True, narrow: Collection[tuple[str, str]] = ()) -> Eviction:
    return Eviction(
        namespace=pod.namespace,
        name=pod.name,
        owner=pod.owner,
        use=pod.use.value,
        certain=certain,
        returns=pod.tolerates_cordons and bool(pod.owner) and pod.use is not GpuUse.NONE,
        budgets=tuple(budget.name for budget in pod.budgets if budget.allowed < 1),
        slowed_by=tuple(budget.name for budget in pod.budgets if (pod.namespace, budget.name) in narrow),
    )
