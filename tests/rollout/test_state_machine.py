"""A rollout node by node, in named situations; test_properties.py looks for the ones that were not thought of."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from gpu_provision.components import labels
from gpu_provision.model.rollout_policy import (
    Canary,
    MaintenanceWindow,
    OnFailure,
    Order,
    PodDeletion,
    RolloutPolicy,
    UpgradeDrain,
    UpgradePolicy,
    WaitForCompletion,
)
from gpu_provision.rollout import predicates, states
from gpu_provision.rollout.snapshot import BudgetDomain, Evict, GpuUse, Policy
from gpu_provision.rollout.state_machine import RolloutPhase, retry_failed
from gpu_provision.rollout.states import UpgradeState
from tests.rollout.rules import NO_LIMIT, ONE, UP_TO_RESTART, ended, fleet_of, states_of, until, world
from tests.rollout.world import BEGINNING, Machine, Trouble, Work, World


def reason(machine: Machine) -> str:
    return machine.annotations.get(states.REASON, "")


def test_a_node_has_the_states_of_the_gpu_operator() -> None:
    """Dashboards and scripts made for the reference see the states that they know, and upgrade-done at the end."""
    node = Machine(name="node-1", work=[Work(name="train")])
    found = ended(world(node))
    assert states_of(found) == [*UP_TO_RESTART, "validation-required", "uncordon-required", "upgrade-done"]
    assert found.decisions[-1].phase is RolloutPhase.DONE
    assert node.driver is not None
    assert node.driver.digest == found.content
    assert node.annotations.keys() == {states.ENABLED, states.SINCE}
    assert not node.cordoned_by
    evictions = [action for decision in found.decisions for action in decision.actions if isinstance(action, Evict)]
    assert len(evictions) == 1, "the pod is known by its uid while it ends"


def test_a_node_that_is_left_out_is_not_touched() -> None:
    """Whatever state it is in; the others go on without it."""
    fresh, failed = Machine(name="node-1", left_out="is left out"), Machine(name="node-2", left_out="is left out")
    failed.labels[states.STATE] = "upgrade-failed"
    found = world(fresh, failed, Machine(name="node-3"), policy=NO_LIMIT)
    found.run()
    assert found.restarts == ["node-3"]
    assert states.STATE not in fresh.labels
    assert failed.labels == {states.STATE: "upgrade-failed"}
    assert found.decisions[-1].wait_reasons == {"node-1": "is left out", "node-2": "is left out"}
    assert not retry_failed(found.snapshot())


def test_a_node_that_is_left_out_counts_all_the_same() -> None:
    """An earlier run left it in the middle: it has the only slot, and this run does not wait for it."""
    busy = Machine(name="node-1", left_out="is left out", labels={states.STATE: "pod-restart-required"})
    found = ended(world(busy, Machine(name="node-2"), policy=ONE))
    assert not found.restarts
    assert found.decisions[-1].phase is RolloutPhase.HELD
    assert "max_parallel_upgrades" in found.decisions[-1].wait_reasons["node-2"]


JOB = {"labels": {"job": "yes"}}
NEVER = math.inf
USES = (GpuUse.RUNTIME_CLASS, GpuUse.HOST_PATH, GpuUse.ENVIRONMENT, GpuUse.CLAIM)


def waits_for_jobs(seconds: int = 0) -> UpgradePolicy:
    return replace(ONE, wait_for_completion=WaitForCompletion(pod_selector="job=yes", timeout_seconds=seconds))


EVICTIONS = {
    "jobs may end by themselves": ([Work(name="train", **JOB, ends=BEGINNING + 500)], waits_for_jobs(), [NEVER]),
    "jobs that take too long are evicted": ([Work(name="train", **JOB)], waits_for_jobs(100), [103]),
    "a budget is obeyed, and outlived": ([Work(name="web", blocked_until=BEGINNING + 100)], ONE, [103]),
    "force takes what has no controller": (
        [Work(name="bare", owner=""), Work(name="data", has_empty_dir=True)],
        replace(ONE, pod_deletion=PodDeletion(force=True, delete_empty_dir=True)),
        [3, 3],
    ),
    "also those without a request, which the reference does not see": (
        [*(Work(name=use.name, use=use) for use in (*USES, GpuUse.NONE))],
        ONE,
        [3, 3, 3, 3, NEVER],
    ),
    "a drain comes where that was not enough": (
        [
            Work(name="bare", owner=""),
            Work(name="web", use=GpuUse.NONE),
            Work(name="kept", use=GpuUse.NONE, labels={states.DRAIN_SKIP: "true"}),
        ],
        replace(ONE, drain=UpgradeDrain(enable=True, force=True)),
        [3, 3, NEVER],
    ),
}


@pytest.mark.parametrize(("works", "policy", "gone"), EVICTIONS.values(), ids=EVICTIONS)
def test_evictions_of_an_upgrade(works: list[Work], policy: UpgradePolicy, gone: list[float]) -> None:
    """Seconds after which each pod is gone."""
    found = ended(world(Machine(name="node-1", work=works), policy=policy))
    assert [work.gone - BEGINNING for work in works] == gone
    assert ("drain-required" in states_of(found)) is policy.drain.enable
    assert found.decisions[-1].phase is RolloutPhase.DONE
    assert all(work.ends == NEVER or found.now >= work.ends for work in works)


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (Work(name="bare", owner=""), "default/bare has no controller that would start it elsewhere"),
        (Work(name="data", has_empty_dir=True), "keeps data in an emptyDir, and pod_deletion.delete_empty_dir"),
        (Work(name="daemon", is_daemon=True), "would be started again on this node at once"),
    ],
)
def test_a_node_that_cannot_be_emptied_is_not_even_cordoned(work: Work, words: str) -> None:
    """The reference cordons it, evicts what it can, and fails half way. It stops no other node."""
    node, other = fleet_of(2, work=[work, Work(name="web")])
    found = ended(world(node, other))
    assert words in found.decisions[-1].wait_reasons["node-1"]
    assert found.decisions[-1].phase is RolloutPhase.HELD
    assert (node.cordoned_by, node.work[1].gone, other.state) == ("", NEVER, UpgradeState.DONE)


@pytest.mark.parametrize("is_late", [False, True])
def test_a_pod_that_may_hold_the_driver_is_named(*, is_late: bool) -> None:
    """A monitor cannot be evicted for good, and may be harmless; a toleration of cordons may bring a pod back."""
    monitor = Work(name="netdata", use=GpuUse.RUNTIME_CLASS, is_daemon=True, owner="DaemonSet netdata")
    node = Machine(name="node-1", work=[] if is_late else [monitor], trouble=Trouble.CRASHES)
    found = world(node)
    while is_late and not predicates.is_current(found.snapshot().nodes[0]):
        found.step()
    node.work += [Work(name="sticky", owner="ReplicaSet sticky")] if is_late else []
    ended(found)
    assert "restarted 11 times" in reason(node)
    named = (
        "sticky (ReplicaSet sticky) requests GPUs" if is_late else "netdata (DaemonSet netdata) runs with the NVIDIA"
    )
    assert f"default/{named}" in reason(node)


def test_gpu_work_that_comes_before_the_restart_is_evicted() -> None:
    """A pod with nodeName takes no notice of a cordon."""
    found = world(Machine(name="node-1"))
    node = until(found, UpgradeState.POD_RESTART_REQUIRED, work=[Work(name="late")])
    ended(found)
    assert states_of(found).count("pod-deletion-required") == 2
    assert node.work[0].gone < NEVER


BY_HAND = {"cordoned_by": "kubectl-cordon", "is_foreign": True}
REBOOT = {labels.CORDONED: "reboot since 2026-11-21T08:00:00Z"}
FOR_REBOOT = {"cordoned_by": "gpu-provision", "is_foreign": True, "annotations": REBOOT}
RESTARTING = {"labels": {states.STATE: "pod-restart-required"}}


CORDONS = {
    "that was there before stays": (BY_HAND, {}, True, "kubectl-cordon"),
    "also where managed fields are stripped": (BY_HAND, {}, False, "kubectl-cordon"),
    "that was lifted on the way is set again": (BY_HAND, {"cordoned_by": "", "is_foreign": False}, True, ""),
    "that changed hands is not lifted": ({}, BY_HAND, True, "kubectl-cordon"),
    "for a reboot is the host phase's to lift": (FOR_REBOOT, {}, True, "gpu-provision"),
    "also that of a killed run": (FOR_REBOOT | RESTARTING, {}, True, "gpu-provision"),
    "of the GPU Operator is lifted": ({"cordoned_by": "gpu-operator"} | RESTARTING, {}, True, ""),
}


@pytest.mark.parametrize(("before", "meanwhile", "tells_managers", "cordoned_by"), CORDONS.values(), ids=CORDONS)
def test_a_cordon(before: dict[str, Any], meanwhile: dict[str, Any], *, tells_managers: bool, cordoned_by: str) -> None:
    """It is lifted by its owner."""
    node = Machine(name="node-1", **{**before, "annotations": dict(before.get("annotations", {}))})
    node.labels = dict(node.labels)
    found = world(node)
    found.tells_managers = tells_managers
    if before is BY_HAND and tells_managers:
        until(found, UpgradeState.POD_RESTART_REQUIRED)
        assert (node.annotations[states.WAS_CORDONED], node.annotations[states.CORDONED_BY]) == (
            "true",
            "kubectl-cordon",
        )
    if meanwhile:
        until(found, UpgradeState.VALIDATION_REQUIRED, **meanwhile)
        found.step()
        assert node.cordoned_by, "GPU work must not come back before the driver has"
    ended(found)
    assert (node.state, node.cordoned_by) == (UpgradeState.DONE, cordoned_by)
    assert node.annotations.get(labels.CORDONED) == before.get("annotations", {}).get(labels.CORDONED)


def test_switching_upgrades_off_gives_nodes_back() -> None:
    """The reference leaves them cordoned, with its annotations."""
    node = Machine(name="node-1", work=[Work(name="web", blocked_until=NEVER)])
    other = Machine(name="node-2", cordoned_by="kubectl-cordon", is_foreign=True)
    found = world(node, other, policy=NO_LIMIT)
    until(found, UpgradeState.POD_DELETION_REQUIRED)
    off = BudgetDomain(policy=replace(NO_LIMIT, auto_upgrade=False), restart_seconds=60)
    found.policy = Policy(fleet=found.policy.fleet, domains={"shared": off})
    ended(found)
    assert (node.labels, node.annotations, node.cordoned_by) == ({}, {}, "")
    assert other.cordoned_by == "kubectl-cordon"


def test_the_driver_runs_until_the_template_is_observed() -> None:
    """Until then the DaemonSet controller replaces a driver pod by the same one; then it is restarted once."""
    found = world(Machine(name="node-1", is_template_observed=False))
    node = until(found, UpgradeState.POD_RESTART_REQUIRED)
    found.step(kept=())
    assert found.decisions[-1].actions == ()
    node.is_template_observed = True
    assert ended(found).restarts == ["node-1"]


UNOBSERVED = "the DaemonSet controller has not observed the new template"


@pytest.mark.parametrize(
    ("node", "words", "is_restarted"),
    [
        ({"trouble": Trouble.CRASHES}, "the driver is not ready: restarted 11 times", True),
        ({"trouble": Trouble.HANGS}, "the driver is not ready, 60 s after pod-restart-required", True),
        ({"trouble": Trouble.DISPROVEN}, "the validation failed: vectorAdd found no device", True),
        ({"trouble": Trouble.UNPROVEN}, "the validation has not ended, 60 s after validation-required", True),
        ({"trouble": Trouble.UNOFFERED}, "does not offer the GPUs, 60 s after validation-required", True),
        ({"trouble": Trouble.WRONG_VERSION}, "driver 390 is loaded, desired: 560", True),
        ({"is_template_observed": False}, f"{UNOBSERVED}, 60 s after pod-restart-required", False),
        (
            {"work": [Work(name="web", blocked_until=NEVER)]},
            "not gone after 300 s (pod_deletion.timeout_seconds): default/web (ReplicaSet web): Cannot evict pod as it",
            False,
        ),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else "",
)
def test_a_failed_node_has_a_reason_and_its_cordon(node: dict[str, Any], words: str, *, is_restarted: bool) -> None:
    """And no further node starts after the first failure, unless the policy allows it."""
    failed, other = fleet_of(2, **node)
    found = ended(world(failed, other, policy=replace(ONE, max_unavailable=2)))
    assert words in reason(failed)
    assert found.decisions[-1].failures == {"node-1": reason(failed)}
    assert failed.cordoned_by == "gpu-provision"
    assert found.decisions[-1].phase is RolloutPhase.PAUSED
    assert found.decisions[-1].wait_reasons == {"node-2": "the rollout stopped: node-1 failed"}
    assert found.restarts == ["node-1"] * is_restarted


@pytest.mark.parametrize(
    ("trouble", "then", "ends"),
    [
        (Trouble.HANGS, Trouble.DISPROVEN, UpgradeState.FAILED),
        (Trouble.UNOFFERED, Trouble.NONE, UpgradeState.DONE),
        (Trouble.UNPROVEN, Trouble.NONE, UpgradeState.DONE),
    ],
    ids=["a driver that is ready late has to prove itself", "GPUs are offered late", "a validation passes late"],
)
def test_a_failed_node_is_retried_after_a_change(trouble: Trouble, then: Trouble, ends: UpgradeState) -> None:
    """With the driver pod that it has. The reference gives the node back without a look."""
    node, other = fleet_of(2, trouble=trouble)
    found = ended(world(node, other))
    assert node.driver
    node.trouble = then
    node.proofs |= {node.driver.uid: found.now} if trouble is Trouble.UNPROVEN else {}
    ended(found)
    assert states_of(found)[states_of(found).index("upgrade-failed") + 1] == "validation-required"
    assert (node.state, bool(node.cordoned_by)) == (ends, ends is UpgradeState.FAILED)
    assert found.restarts == ["node-1", "node-2"][: 1 + (ends is UpgradeState.DONE)]


@pytest.mark.parametrize("is_new_run", [False, True], ids=["other content is wanted", "a new run"])
def test_a_failed_node_is_tried_again(*, is_new_run: bool) -> None:
    """A failure does not count for other content; without its cause the command runs again."""
    node = Machine(name="node-1", trouble=Trouble.DISPROVEN)
    found = ended(world(node))
    if is_new_run:
        node.trouble, node.driver = Trouble.NONE, found._new_driver("550", found.now - 100)
        (move,) = retry_failed(found.snapshot())
        found.apply(move)
    else:
        found.content = "570"
    ended(found)
    assert (node.state, node.cordoned_by) == (UpgradeState.DONE, "")


def test_those_under_way_are_finished() -> None:
    """A pause leaves no node half way."""
    nodes = fleet_of(5)
    nodes[1].trouble = Trouble.DISPROVEN
    found = ended(world(*nodes, policy=replace(NO_LIMIT, max_parallel_upgrades=2)))
    assert [node.state for node in nodes] == [
        UpgradeState.DONE,
        UpgradeState.FAILED,
        *[UpgradeState.UPGRADE_REQUIRED] * 3,
    ]
    assert found.decisions[-1].phase is RolloutPhase.PAUSED


ROLL_BACK = RolloutPolicy(on_failure=OnFailure.ROLLBACK)


def test_a_rollback_brings_every_node_back() -> None:
    """Those that failed, those that are done, and none that was never touched."""
    nodes = fleet_of(4)
    nodes[1].trouble = Trouble.DISPROVEN
    found = ended(world(*nodes, fleet=ROLL_BACK))
    assert found.rolled_back == ["failed: node-2"]
    assert {node.driver.digest for node in nodes if node.driver} == {"550"}
    assert sorted(found.restarts) == ["node-1", "node-1", "node-2", "node-2"]
    assert {(node.state, node.cordoned_by) for node in nodes} == {(UpgradeState.DONE, "")}


@pytest.mark.parametrize(("previous", "rolled_back"), [("550", ["failed: node-1"]), ("", [])])
def test_a_rollback_is_not_rolled_back_and_needs_a_record(previous: str, rolled_back: list[str]) -> None:
    """The rollout pauses, and names the failed nodes."""
    found = world(*fleet_of(2, trouble=Trouble.ALWAYS), fleet=ROLL_BACK)
    found.previous = previous
    ended(found)
    assert found.rolled_back == rolled_back
    assert found.decisions[-1].failures == {"node-1": "the validation failed: vectorAdd found no device"}


@pytest.mark.parametrize("is_requested", [False, True])
def test_an_untouched_driver_that_is_as_wanted(*, is_requested: bool) -> None:
    """A change of mind releases its node; a request that failed is no reason to begin again, and again."""
    node = Machine(name="node-1", work=[Work(name="web", blocked_until=NEVER)])
    found = world(node, policy=replace(ONE, pod_deletion=PodDeletion(timeout_seconds=10 * is_requested)))
    if is_requested:
        node.annotations[states.REQUESTED] = "true"
    else:
        until(found, UpgradeState.POD_DELETION_REQUIRED)
    found.content = "550"
    ended(found)
    assert states_of(found).count("upgrade-failed") == is_requested
    assert not found.restarts
    assert is_requested or (states_of(found)[-2:], node.cordoned_by) == (["uncordon-required", "upgrade-done"], "")


class TestCanaries:
    """The first nodes go alone."""

    def test_the_others_follow_after_the_soak_time(self) -> None:
        """Which node is a canary stands on it."""
        nodes = fleet_of(3)
        fleet = RolloutPolicy(canary=Canary(nodes=1, soak_seconds=600))
        found = world(*nodes, policy=NO_LIMIT, fleet=fleet)
        while RolloutPhase.SOAKING not in {decision.phase for decision in found.decisions}:
            found.step()
        assert found.restarts == ["node-1"]
        assert nodes[0].annotations[states.CANARY] == "fleet-560"
        assert "canaries go first: node-1" in {decision.wait_reasons.get("node-2") for decision in found.decisions}
        assert "canaries have to stay well for 600 s more: node-1" in found.decisions[-1].wait_reasons["node-2"]
        ended(found)
        assert found.restarts == ["node-1", "node-2", "node-3"]
        assert found.now >= BEGINNING + 600

    def test_a_rolled_back_canary_is_first_again(self) -> None:
        """After a rollback the same content is tried again: the mark of the first try stands on the node."""
        nodes = fleet_of(3)
        nodes[1].annotations[states.CANARY] = "fleet-560"
        found = ended(world(*nodes, policy=NO_LIMIT, fleet=RolloutPolicy(canary=Canary(nodes=1))))
        assert found.restarts == ["node-2", "node-1", "node-3"]

    def test_an_unhealthy_canary_fails_in_its_soak_time(self) -> None:
        """That is what the time is for."""
        nodes = fleet_of(2, trouble=Trouble.LATE)
        found = ended(world(*nodes, policy=NO_LIMIT, fleet=RolloutPolicy(canary=Canary(soak_seconds=600))))
        assert reason(nodes[0]) == "did not stay well as a canary: the driver is not ready"
        assert found.restarts == ["node-1"]
        assert found.decisions[-1].wait_reasons == {"node-2": "canary node-1 failed"}

    def test_a_canary_that_is_not_ready_fails_once_and_recovers(self) -> None:
        """Its driver pod stays ready, as it does where the kubelet alone is away: that is no reason to try again."""
        canary, other = Machine(name="node-1"), Machine(name="node-2")
        found = world(canary, other, fleet=RolloutPolicy(canary=Canary(soak_seconds=30)))
        while canary.state is not UpgradeState.DONE:
            found.step()
        canary.is_ready = False
        ended(found)
        assert states_of(found)[-2:] == ["upgrade-done", "upgrade-failed"]
        assert reason(canary) == "did not stay well as a canary: the node is NotReady"
        assert found.restarts == ["node-1"]
        canary.is_ready = True
        assert ended(found).decisions[-1].phase is RolloutPhase.DONE
        assert found.restarts == ["node-1", "node-2"]

    def test_a_canary_that_falls_ill_holds_the_others_up(self) -> None:
        """They go on when it is well again."""
        nodes = fleet_of(20, trouble=Trouble.LATE)
        found = ended(world(*nodes, fleet=RolloutPolicy(canary=Canary(soak_seconds=30))))
        assert found.decisions[-1].wait_reasons["node-20"] == "canaries are not well: node-1"
        assert found.decisions[-1].phase is RolloutPhase.HELD
        nodes[0].trouble = Trouble.NONE
        assert ended(found).decisions[-1].phase is RolloutPhase.DONE

    def test_a_selector_chooses_among_those_that_need_the_upgrade(self) -> None:
        """And where it chooses none of them, the first node goes first."""
        nodes = [Machine(name="node-1"), Machine(name="node-2", labels={"stage": "test"})]
        fleet = RolloutPolicy(canary=Canary(nodes=0, node_selector={"stage": "test"}))
        assert ended(world(*nodes, policy=NO_LIMIT, fleet=fleet)).restarts == ["node-2", "node-1"]
        plain = [Machine(name="node-1"), Machine(name="node-2")]
        assert ended(world(*plain, policy=NO_LIMIT, fleet=fleet)).restarts == ["node-1", "node-2"]


class TestStarts:
    """When a node may start at all."""

    def test_nodes_start_in_the_window_and_finish_after_it(self) -> None:
        """BEGINNING is 8:00 UTC; nine seconds a node."""
        nodes = fleet_of(8)
        window = MaintenanceWindow(start="12:00", minutes=1)
        found = world(*nodes, fleet=RolloutPolicy(maintenance_window=window))
        found.run()
        closed = next(decision for decision in found.decisions if decision.phase is RolloutPhase.CLOSED)
        assert closed.wait_reasons["node-1"] == "the maintenance window is closed"
        assert closed.until == BEGINNING + 4 * 3600
        assert found.now > BEGINNING + 28 * 3600, "eight nodes take two windows"

    def test_nodes_start_in_the_declared_order(self) -> None:
        """The order is the user's."""
        names = ("node-10", "node-9", "node-1")
        by_name = ended(world(*(Machine(name=name) for name in (*names, "gpu-500"))))
        assert by_name.restarts == ["gpu-500", "node-1", "node-9", "node-10"]
        listed = ended(world(*(Machine(name=name) for name in names), fleet=RolloutPolicy(order=Order.LISTED)))
        assert listed.restarts == ["node-10", "node-9", "node-1"]
        busy = [Machine(name=name, work=[Work(name="web")] if name == "node-1" else []) for name in names]
        idle_first = ended(world(*busy, fleet=RolloutPolicy(order=Order.IDLE_FIRST)))
        assert idle_first.restarts == ["node-9", "node-10", "node-1"]

    def test_a_requested_node_is_upgraded_although_as_wanted(self) -> None:
        """Once; by annotation, or by writing the label. The reference forgets the wish if there is no slot."""
        asked = Machine(name="node-1", annotations={states.REQUESTED: "true"})
        labelled = Machine(name="node-2", labels={states.STATE: "upgrade-required"})
        found = World([asked, labelled], world().policy, content="550")
        ended(found)
        assert sorted(found.restarts) == ["node-1", "node-2"]

    @pytest.mark.parametrize("label", ["node-maintenance-required", "some-future-state"])
    def test_a_node_of_another_program_is_not_changed(self, label: str) -> None:
        """It takes a slot, since it is under way."""
        node = Machine(name="node-1", labels={states.STATE: label})
        found = world(node, Machine(name="node-2"))
        found.run()
        assert states_of(found) == []
        assert label in found.decisions[-1].wait_reasons["node-1"]
