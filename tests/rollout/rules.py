"""The invariants of every decision of a rollout, written independently of the state machine."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from gpu_provision.model.rollout_policy import RolloutPolicy, UpgradePolicy
from gpu_provision.rollout import states
from gpu_provision.rollout.snapshot import (
    Action,
    BudgetDomain,
    Cordon,
    Evict,
    FleetNode,
    GpuUse,
    Pod,
    Policy,
    RemoveLabels,
    Restart,
    RollBack,
    Snapshot,
    StateTransition,
)
from gpu_provision.rollout.state_machine import Decision, RolloutPhase
from gpu_provision.rollout.states import UpgradeState
from tests.rollout.world import Machine, World

ACTIVE = {
    UpgradeState.CORDON_REQUIRED,
    UpgradeState.WAIT_FOR_JOBS_REQUIRED,
    UpgradeState.POD_DELETION_REQUIRED,
    UpgradeState.DRAIN_REQUIRED,
    UpgradeState.POD_RESTART_REQUIRED,
    UpgradeState.VALIDATION_REQUIRED,
    UpgradeState.UNCORDON_REQUIRED,
}
EMPTYING = {UpgradeState.CORDON_REQUIRED, UpgradeState.WAIT_FOR_JOBS_REQUIRED}


def starts(decision: Decision) -> list[str]:
    moves = [action for action in decision.actions if isinstance(action, StateTransition)]
    return [action.node for action in moves if action.state is UpgradeState.CORDON_REQUIRED]


class Rules:
    """Watches a world. Any decision that breaks a rule fails the test that runs it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.started: list[str] = []
        world.observers.append(self.judge)
        world.judges.append(self.judge_strides)

    def judge(self, seen: Snapshot, decision: Decision) -> None:
        nodes = {node.name: node for node in seen.nodes}
        fresh = [name for name in starts(decision) if nodes[name].state is not UpgradeState.CORDON_REQUIRED]
        self._one_move_each(decision)
        self._limits(seen, nodes, fresh)
        self._failures_stop(seen, fresh)
        self._known(decision, fresh)
        self._window(seen, fresh)
        self._canaries_first(seen, nodes, fresh)
        for action in decision.actions:
            match action:
                case Evict():
                    self._eviction(nodes[action.node], action)
                case Restart():
                    self._restart(nodes[action.node])
                case RemoveLabels():
                    self._take_off(nodes[action.node])
                case StateTransition():
                    self._move(nodes[action.node], action)
        self.started += fresh

    def judge_strides(self, seen: Snapshot, actions: Iterable[Action]) -> None:
        """Hold what is written against the rules that no number of states in one write may get around."""
        nodes = {node.name: node for node in seen.nodes}
        for action in actions:
            if isinstance(action, StateTransition):
                self._move(nodes[action.node], action)
                fresh = action.cordon is Cordon.SET and nodes[action.node].state is UpgradeState.UPGRADE_REQUIRED
                waits_for_jobs = self.world.policy.domains[nodes[action.node].domain].policy.wait_for_completion
                blind = fresh and waits_for_jobs.pod_selector and action.state not in EMPTYING
                assert not blind, "jobs that came before the cordon have not been seen"

    @staticmethod
    def _one_move_each(decision: Decision) -> None:
        moved = [action.node for action in decision.actions if isinstance(action, StateTransition)]
        assert len(moved) == len(set(moved)), "a node goes one step at a time"

    def _known(self, decision: Decision, fresh: list[str]) -> None:
        """How a write ends is known only afterwards."""
        acting = {action.node for action in decision.actions if not isinstance(action, RollBack)}
        assert not acting & self.world.writing.keys(), "a node goes one step at a time"
        to = {move.state for move in self.world.writing.values()}
        assert not fresh or not to & {UpgradeState.FAILED, UpgradeState.UPGRADE_REQUIRED}, "who waits or failed is open"
        assert not to or not any(isinstance(action, RollBack) for action in decision.actions)

    def _limits(self, seen: Snapshot, nodes: dict[str, FleetNode], fresh: list[str]) -> None:
        fleet = self.world.policy.fleet
        if fresh:  # those whose start is on its way have their slots as well
            fresh = [*fresh, *(name for name, move in self.world.writing.items() if move.state in ACTIVE)]
        self._within(seen.nodes, fresh, fleet.max_parallel_upgrades, fleet.max_unavailable)
        for name, domain in self.world.policy.domains.items():
            members = [node for node in seen.nodes if node.domain == name]
            mine = [each for each in fresh if nodes[each].domain == name]
            self._within(members, mine, domain.policy.max_parallel_upgrades, domain.policy.max_unavailable)

    @staticmethod
    def _within(members: Iterable[FleetNode], fresh: list[str], parallel: int, unavailable: int | str) -> None:
        """Starting nodes never brings the unavailable ones above the limit; those that are so anyway may start."""
        if not fresh:
            return
        everybody = list(members)
        away = {node.name for node in everybody if is_away(node)}
        limit = unavailable if isinstance(unavailable, int) else math.ceil(len(everybody) * int(unavailable[:-1]) / 100)
        newly = set(fresh) - away
        assert not newly or len(away | newly) <= limit, f"{sorted(away | newly)} are more than {unavailable}"
        busy = {node.name for node in everybody if node.state in ACTIVE}
        assert not parallel or len(busy | set(fresh)) <= parallel, f"{sorted(busy | set(fresh))} at a time"

    def _failures_stop(self, seen: Snapshot, fresh: list[str]) -> None:
        broken = [node.name for node in seen.nodes if failed_now(node)]
        limit = self.world.policy.fleet.stop_after_failures
        assert not fresh or len(broken) < limit, f"{fresh} start although {broken} failed"

    def _window(self, seen: Snapshot, fresh: list[str]) -> None:
        """The windows of the generated policies open every day."""
        window = self.world.policy.fleet.maintenance_window
        if window is None or not fresh:
            return
        clock = datetime.fromtimestamp(seen.now, ZoneInfo(window.timezone))
        hour, minute = map(int, window.start.split(":"))
        since = (clock.hour * 60 + clock.minute - hour * 60 - minute) % (24 * 60)
        assert since < window.minutes, f"{fresh} start at {clock:%H:%M}, outside the maintenance window"

    def _canaries_first(self, seen: Snapshot, nodes: dict[str, FleetNode], fresh: list[str]) -> None:
        canary = self.world.policy.fleet.canary
        fresh = [name for name in fresh if not self.world.machines[name].leaves]
        if canary is None or seen.is_rolling_back or not fresh:
            return
        marked_nodes = [node for node in seen.nodes if node.annotations.get(states.CANARY) == seen.target]
        chosen = [node for node in marked_nodes if not self.world.machines[node.name].leaves]
        assert all(node.state is not UpgradeState.FAILED for node in chosen), "a failed canary touches no other node"
        marked = {
            action.node: dict(action.annotations).get(states.CANARY)
            for action in self.world.decisions[-1].actions
            if isinstance(action, StateTransition)
        }
        others = [name for name in fresh if marked[name] != seen.target and nodes[name] not in chosen]
        if others:
            assert chosen, "no node starts before a canary"
            ends = [float(node.annotations[states.SINCE]) + canary.soak_seconds for node in chosen]
            assert all(node.state is UpgradeState.DONE for node in chosen), f"{others} start before canaries are done"
            assert all(seen.now >= end for end in ends), f"{others} start before canaries have soaked"
            assert all(node.driver is not None and node.driver.is_ready for node in chosen), "canaries are not well"

    def _eviction(self, node: FleetNode, action: Evict) -> None:
        policy = self.world.policy.domains[node.domain].policy
        pod = next(pod for pod in node.pods if pod.uid == action.uid)
        assert node.state in {UpgradeState.POD_DELETION_REQUIRED, UpgradeState.DRAIN_REQUIRED}, "not the time to evict"
        assert node.is_cordoned, "an eviction from a node that takes new pods is for nothing"
        assert not pod.is_daemon
        assert not pod.is_finished
        if node.state is UpgradeState.POD_DELETION_REQUIRED:
            assert pod.use is not GpuUse.NONE, f"{pod} does not use a GPU"
            assert pod.owner or policy.pod_deletion.force
            assert not pod.has_empty_dir or policy.pod_deletion.delete_empty_dir
        else:
            assert policy.drain.enable
            assert pod.labels.get(states.DRAIN_SKIP) != "true"
            assert pod.owner or policy.drain.force
            assert not pod.has_empty_dir or policy.drain.delete_empty_dir

    def _restart(self, node: FleetNode) -> None:
        assert node.state is UpgradeState.POD_RESTART_REQUIRED, "not the time to restart a driver"
        assert node.driver is not None
        forced = node.has_flag(states.FORCED) or node.has_flag(states.REQUESTED)
        assert forced or node.driver.digest != node.desired.digest, (
            "a driver that is as wanted is restarted for nothing"
        )
        assert not [pod for pod in node.pods if uses_gpu(pod)], "GPU work loses its driver"
        assert node.is_cordoned

    def _take_off(self, node: FleetNode) -> None:
        machine = self.world.machines[node.name]
        assert machine.leaves
        assert node.state is UpgradeState.POD_RESTART_REQUIRED, "not the time to take the stack off"
        assert not self.world.users(machine), "GPU work loses its driver"
        assert node.is_cordoned

    def _move(self, node: FleetNode, action: StateTransition) -> None:
        machine = self.world.machines[node.name]
        if machine.leaves:
            no_stack = not machine.has_labels and machine.driver is None
            is_over = action.state is UpgradeState.UNKNOWN
            given_up = not self.world.policy.domains[node.domain].policy.auto_upgrade
            assert not is_over or no_stack or given_up or node.state not in ACTIVE, "given back with the stack on it"
            assert action.state not in {UpgradeState.VALIDATION_REQUIRED, UpgradeState.DONE}, "nothing has to be proven"
        elif node.state is UpgradeState.FAILED:
            allowed = {UpgradeState.FAILED, UpgradeState.VALIDATION_REQUIRED, UpgradeState.UPGRADE_REQUIRED}
            given_up = not self.world.policy.domains[node.domain].policy.auto_upgrade
            assert given_up or action.state in allowed, "validation is never skipped on recovery"
        if action.state is UpgradeState.FAILED and node.state is not UpgradeState.FAILED:
            assert action.reason
            notes = {**node.annotations, **dict(action.annotations)}
            assert notes[states.REASON] == action.reason
        if action.state is UpgradeState.DONE and node.state in ACTIVE:
            untouched = node.driver is not None and node.driver.uid == node.annotations.get(states.BEGAN_WITH)
            assert untouched or self.world.is_proven(machine), "a driver that has proven nothing"
            assert untouched or self.world.offers_gpus(machine), "given back before pods can have its GPUs"
        if action.cordon is Cordon.LIFT:
            assert not machine.is_foreign, "that cordon is another client's"


def is_away(node: FleetNode) -> bool:
    """Whether a node takes no work."""
    return node.is_cordoned or not node.is_ready or node.state in ACTIVE or node.state is UpgradeState.FAILED


def failed_now(node: FleetNode) -> bool:
    is_failed = node.state is UpgradeState.FAILED and not node.is_leaving
    return is_failed and node.annotations.get(states.TARGET) == node.desired.digest


def uses_gpu(pod: Pod) -> bool:
    """Whether a pod is sure to lose something with the driver, or can be evicted in time.

    One with a claim that could not be read stays: it may be to a network card.
    """
    hint = pod.use not in {GpuUse.REQUEST, GpuUse.CLAIM}
    return pod.use not in {GpuUse.NONE, GpuUse.SOME_CLAIM} and not pod.is_finished and not (pod.is_daemon and hint)


def judge_the_end(world: World, decision: Decision) -> None:
    """Hold the end of a rollout against what every end has to be."""
    assert not [action for action in decision.actions if isinstance(action, StateTransition | Restart)], (
        "it had not ended"
    )
    for machine in world.machines.values():
        policy = world.policy.domains[machine.domain].policy
        _judge_one(world, machine, policy, decision)
    reasons = {name for name, machine in world.machines.items() if machine.state is UpgradeState.FAILED}
    assert set(decision.failures) == reasons
    if decision.phase is RolloutPhase.DONE:
        staying = [machine for machine in world.machines.values() if not machine.leaves]
        upgraded = [each for each in staying if world.policy.domains[each.domain].policy.auto_upgrade]
        assert all(machine.state is UpgradeState.DONE for machine in upgraded)


def _judge_one(world: World, machine: Machine, policy: UpgradePolicy, decision: Decision) -> None:
    waits = decision.wait_reasons.get(machine.name, "")
    if machine.is_foreign:
        assert machine.cordoned_by, "another client wants it cordoned"
    if machine.is_forgotten:
        assert not {states.STATE, *states.ALL_ANNOTATIONS} & {*machine.labels, *machine.annotations}, "marks stayed"
        assert machine.is_foreign or not machine.cordoned_by, "the cordon of the rollout stayed"
    elif not policy.auto_upgrade and machine.state not in ACTIVE:
        assert not set(machine.annotations) & set(states.ALL_ANNOTATIONS)
        assert machine.is_foreign or not machine.cordoned_by
    elif machine.state is UpgradeState.DONE:
        assert waits or (machine.driver is not None and machine.driver.digest == world.content)
        assert machine.is_foreign or not machine.cordoned_by, "the cordon of the rollout stayed"
        assert not set(machine.annotations) & set(states.UPGRADE_ANNOTATIONS), "memory stayed"
    elif machine.state is UpgradeState.FAILED:
        assert machine.annotations[states.REASON], "failed without a reason"
    else:
        assert waits, f"{machine.name} ended in {machine.state!r} without a word"
        endless = 0 in (
            policy.pod_deletion.timeout_seconds,
            policy.drain.timeout_seconds,
            policy.wait_for_completion.timeout_seconds,
        )
        assert machine.state not in ACTIVE or endless, f"{machine.name} stays in {machine.state}: {waits}"


ONE = UpgradePolicy()
NO_LIMIT = UpgradePolicy(max_parallel_upgrades=0, max_unavailable="100%")


def world(*machines: Machine, policy: UpgradePolicy = ONE, fleet: RolloutPolicy | None = None) -> World:
    """Return a world whose decisions are judged."""
    domain = BudgetDomain(policy=policy, restart_seconds=60, validation_seconds=60)
    found = World(machines, Policy(fleet=fleet or RolloutPolicy(), domains={"shared": domain}))
    Rules(found)
    return found


UP_TO_RESTART = ("upgrade-required", "cordon-required", "wait-for-jobs-required", "pod-deletion-required")
UP_TO_RESTART += ("pod-restart-required",)
"""The states of a node until its driver pod is deleted."""


def states_of(found: World, node: str = "node-1") -> list[str]:
    """Return the states that a node went through, with the moment at which the stack's labels went."""
    actions = (action for decision in found.decisions for action in decision.actions)
    of_node = (each for each in actions if isinstance(each, StateTransition | RemoveLabels) and each.node == node)
    return [each.state.value if isinstance(each, StateTransition) else "labels off" for each in of_node]


def ended(found: World) -> World:
    """Run a rollout to its end, which has to be a good one."""
    judge_the_end(found, found.run())
    return found


def until(found: World, state: UpgradeState, node: str = "node-1", **changes: Any) -> Machine:
    """Run until a node is in a state, and change it there as another client does."""
    machine = found.machines[node]
    while machine.state is not state:
        found.step()
    for name, value in changes.items():
        setattr(machine, name, value)
    machine.revision += bool(changes)
    return machine


def fleet_of(count: int, **first: Any) -> list[Machine]:
    return [Machine(name=f"node-{number}", **(first if number == 1 else {})) for number in range(1, count + 1)]
