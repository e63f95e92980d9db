"""A rollout node by node, in named situations; test_properties.py looks for the ones that were not thought of."""

from __future__ import annotations

import math
from dataclasses import replace

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
from gpu_provision.rollout.actions import Evict, StateTransition
from gpu_provision.rollout.snapshot import BudgetDomain, GpuUse, Policy
from gpu_provision.rollout.state_machine import RolloutPhase, retry_failed
from gpu_provision.rollout.states import UpgradeState
from tests.rollout.rules import Rules, judge_the_end
from tests.rollout.world import BEGINNING, Machine, Trouble, Work, World

ONE = UpgradePolicy()
NO_LIMIT = UpgradePolicy(max_parallel_upgrades=0, max_unavailable="100%")


def world(*machines: Machine, policy: UpgradePolicy = ONE, fleet: RolloutPolicy | None = None) -> World:
    domain = BudgetDomain(policy=policy, restart_seconds=60, validation_seconds=60)
    found = World(machines, Policy(fleet=fleet or RolloutPolicy(), domains={"shared": domain}))
    Rules(found)
    return found


def way(found: World, node: str = "node-1") -> list[str]:
    """Return the states that a node went through."""
    moves = (
        action for decision in found.decisions for action in decision.actions if isinstance(action, StateTransition)
    )
    return [action.to.value for action in moves if action.node == node]


def ended(found: World) -> World:
    """Run a rollout to its end, which has to be a good one."""
    judge_the_end(found, found.run())
    return found


def reason(machine: Machine) -> str:
    return machine.annotations.get(states.REASON, "")


def test_a_node_goes_the_way_of_the_reference() -> None:
    """Dashboards and scripts made for the reference see the states that they know, and upgrade-done at the end."""
    node = Machine(name="node-1", work=[Work(name="train")])
    found = ended(world(node))
    assert way(found) == [
        "upgrade-required",
        "cordon-required",
        "wait-for-jobs-required",
        "pod-deletion-required",
        "pod-restart-required",
        "validation-required",
        "uncordon-required",
        "upgrade-done",
    ]
    assert found.decisions[-1].phase is RolloutPhase.DONE
    assert node.driver is not None
    assert node.driver.digest == found.content
    assert node.annotations.keys() == {states.ENABLED, states.SINCE}
    assert not node.cordoned_by


def test_a_node_that_is_left_out_is_not_touched() -> None:
    """Whatever state it is in; the others go on without it."""
    fresh, failed = Machine(name="node-1", left_out="is left out"), Machine(name="node-2", left_out="is left out")
    failed.labels[states.STATE] = "upgrade-failed"
    found = world(fresh, failed, Machine(name="node-3"), policy=NO_LIMIT)
    found.run()
    assert found.restarts == ["node-3"]
    assert states.STATE not in fresh.labels
    assert failed.labels == {states.STATE: "upgrade-failed"}
    assert found.decisions[-1].waits == {"node-1": "is left out", "node-2": "is left out"}
    assert not retry_failed(found.snapshot())


def test_a_node_that_is_left_out_counts_all_the_same() -> None:
    """An earlier run left it in the middle: it has the only slot, and this run does not wait for it."""
    busy = Machine(name="node-1", left_out="is left out", labels={states.STATE: "pod-restart-required"})
    found = ended(world(busy, Machine(name="node-2"), policy=ONE))
    assert not found.restarts
    assert found.decisions[-1].phase is RolloutPhase.HELD
    assert "max_parallel_upgrades" in found.decisions[-1].waits["node-2"]


def test_a_driver_that_is_as_wanted_is_left_alone() -> None:
    """Nothing is evicted for a change that the installation does not depend on."""
    found = World([Machine(name="node-1", work=[Work(name="train")])], world().policy, content="550")
    found.run()
    assert way(found) == ["upgrade-done"]
    assert not found.restarts


def test_time_passes_only_while_a_node_does_its_own_work() -> None:
    """Each step follows what it waits for; the reference looks every two minutes."""
    found = ended(world(*(Machine(name=f"node-{number}") for number in range(1, 5)), policy=NO_LIMIT))
    assert found.now - BEGINNING == 3 + 4 + 3  # the driver pod ends, another starts, GPUs are offered


class TestPods:
    """Whom an upgrade evicts, waits for, and leaves alone."""

    def test_jobs_may_end_by_themselves(self) -> None:
        """They are not evicted before their time is over."""
        job = Work(name="train", labels={"job": "yes"}, ends=BEGINNING + 500)
        wait = WaitForCompletion(pod_selector="job=yes")
        found = ended(world(Machine(name="node-1", work=[job]), policy=replace(ONE, wait_for_completion=wait)))
        assert job.gone == math.inf
        assert found.now >= BEGINNING + 500

    def test_jobs_that_take_too_long_are_evicted(self) -> None:
        """Timeout leads to eviction, not to failure."""
        job = Work(name="train", labels={"job": "yes"})
        wait = WaitForCompletion(pod_selector="job=yes", timeout_seconds=100)
        ended(world(Machine(name="node-1", work=[job]), policy=replace(ONE, wait_for_completion=wait)))
        assert job.gone == BEGINNING + 100 + 3

    def test_an_eviction_that_is_refused_is_asked_for_again(self) -> None:
        """A PodDisruptionBudget is obeyed, and outlived."""
        work = Work(name="web", blocked_until=BEGINNING + 100)
        found = ended(world(Machine(name="node-1", work=[work])))
        assert work.gone == BEGINNING + 100 + 3
        assert found.decisions[-1].phase is RolloutPhase.DONE

    def test_an_eviction_refused_for_too_long_fails(self) -> None:
        """The reference says so in the operator's log alone."""
        node = Machine(name="node-1", work=[Work(name="web", blocked_until=math.inf)])
        found = ended(world(node))
        assert "default/web (ReplicaSet web): Cannot evict pod as it would violate" in reason(node)
        assert "not gone after 300 s (pod_deletion.timeout_seconds)" in reason(node)
        assert found.decisions[-1].failures == {"node-1": reason(node)}
        assert not found.restarts

    @pytest.mark.parametrize(
        ("work", "words"),
        [
            (Work(name="bare", owner=""), "default/bare has no controller that would start it elsewhere"),
            (Work(name="data", has_empty_dir=True), "keeps data in an emptyDir, and pod_deletion.delete_empty_dir"),
            (Work(name="daemon", is_daemon=True), "would be started again on this node at once"),
        ],
    )
    def test_a_node_that_cannot_be_emptied_is_not_even_cordoned(self, work: Work, words: str) -> None:
        """The reference cordons it, evicts what it can, and fails half way."""
        node, other = Machine(name="node-1", work=[work, Work(name="web")]), Machine(name="node-2")
        found = ended(world(node, other))
        assert words in found.decisions[-1].waits["node-1"]
        assert found.decisions[-1].phase is RolloutPhase.HELD
        assert not node.cordoned_by
        assert node.work[1].gone == math.inf
        assert other.state is UpgradeState.DONE, "it stops no other node"

    def test_force_takes_what_has_no_controller(self) -> None:
        """As declared."""
        allowed = replace(ONE, pod_deletion=PodDeletion(force=True, delete_empty_dir=True))
        works = [Work(name="bare", owner=""), Work(name="data", has_empty_dir=True)]
        ended(world(Machine(name="node-1", work=works), policy=allowed))
        assert all(work.gone < math.inf for work in works)

    def test_pods_that_use_gpus_without_a_request_are_evicted_too(self) -> None:
        """They hold the driver as well; the reference does not see them, and the unloading fails."""
        uses = (GpuUse.RUNTIME_CLASS, GpuUse.HOST_PATH, GpuUse.ENVIRONMENT, GpuUse.CLAIM)
        works = [Work(name=f"work-{number}", use=use) for number, use in enumerate(uses)]
        idle = Work(name="web", use=GpuUse.NONE)
        ended(world(Machine(name="node-1", work=[*works, idle])))
        assert all(work.gone < math.inf for work in works)
        assert idle.gone == math.inf

    def test_a_monitor_is_named_when_the_driver_does_not_come(self) -> None:
        """It cannot be evicted for good, and may be harmless."""
        monitor = Work(name="netdata", use=GpuUse.RUNTIME_CLASS, is_daemon=True, owner="DaemonSet netdata")
        node = Machine(name="node-1", work=[monitor], trouble=Trouble.CRASHES)
        ended(world(node))
        assert "restarted 11 times" in reason(node)
        assert "default/netdata (DaemonSet netdata) runs with the NVIDIA runtime class" in reason(node)

    def test_a_pod_that_came_back_is_named_on_failure(self) -> None:
        """Its toleration of cordons brought it; the failure has to name it."""
        node = Machine(name="node-1", trouble=Trouble.CRASHES)
        upgrade = world(node)
        while not predicates.is_current(upgrade.snapshot().nodes[0]):
            upgrade.step()
        node.work.append(Work(name="sticky", owner="ReplicaSet sticky"))
        ended(upgrade)
        assert "default/sticky (ReplicaSet sticky) requests GPUs" in reason(node)

    def test_a_drain_comes_where_evicting_gpu_pods_was_not_enough(self) -> None:
        """As in the reference, with what it exempts."""
        drain = UpgradeDrain(enable=True, force=True)
        works = [
            Work(name="bare", owner=""),
            Work(name="web", use=GpuUse.NONE),
            Work(name="kept", use=GpuUse.NONE, labels={states.DRAIN_SKIP: "true"}),
        ]
        found = ended(world(Machine(name="node-1", work=works), policy=replace(ONE, drain=drain)))
        assert "drain-required" in way(found)
        assert [work.gone < math.inf for work in works] == [True, True, False]

    def test_gpu_work_that_comes_before_the_restart_is_evicted(self) -> None:
        """A pod with nodeName takes no notice of a cordon."""
        node = Machine(name="node-1")
        found = world(node)
        while node.state is not UpgradeState.POD_RESTART_REQUIRED:
            found.step()
        node.work.append(Work(name="late"))
        ended(found)
        assert way(found).count("pod-deletion-required") == 2
        assert node.work[0].gone < math.inf


class TestCordons:
    """A cordon is lifted by its owner."""

    def test_a_node_that_was_cordoned_before_stays_cordoned(self) -> None:
        """The annotation is the reference's; the name is ours."""
        node = Machine(name="node-1", cordoned_by="kubectl-cordon", is_foreign=True)
        found = world(node)
        while node.state is not UpgradeState.POD_RESTART_REQUIRED:
            found.step()
        assert node.annotations[states.WAS_CORDONED] == "true"
        assert node.annotations[states.CORDONED_BY] == "kubectl-cordon"
        ended(found)
        assert node.state is UpgradeState.DONE
        assert node.cordoned_by == "kubectl-cordon"

    def test_a_cordon_that_is_lifted_on_the_way_is_set_again(self) -> None:
        """GPU work must not come back before the driver has."""
        node = Machine(name="node-1", cordoned_by="kubectl-cordon", is_foreign=True)
        found = world(node)
        while node.state is not UpgradeState.VALIDATION_REQUIRED:
            found.step()
        node.cordoned_by, node.is_foreign, node.revision = "", False, node.revision + 1
        found.step()
        assert node.cordoned_by == "gpu-provision"
        ended(found)
        assert not node.cordoned_by

    def test_a_cordon_that_changed_hands_is_not_lifted(self) -> None:
        """The field manager tells; the mark alone does not."""
        node = Machine(name="node-1")
        found = world(node)
        while node.state is not UpgradeState.VALIDATION_REQUIRED:
            found.step()
        node.cordoned_by, node.is_foreign, node.revision = "kubectl-cordon", True, node.revision + 1
        ended(found)
        assert node.state is UpgradeState.DONE
        assert node.cordoned_by == "kubectl-cordon"

    def test_a_cordon_is_reported_apart_also_without_managed_fields(self) -> None:
        """Managed fields may have been stripped; what was there before is remembered on the node itself."""
        node = Machine(name="node-1", cordoned_by="kubectl-cordon", is_foreign=True)
        found = world(node)
        found.tells_managers = False
        ended(found)
        assert node.state is UpgradeState.DONE
        assert node.cordoned_by == "kubectl-cordon"

    @pytest.mark.parametrize("label", [None, "pod-restart-required"])
    def test_a_cordon_for_a_reboot_is_the_host_phases_to_lift(self, label: str | None) -> None:
        """It is by the same field manager; another annotation marks it. Not even one of a killed run is taken over."""
        marks = {labels.CORDONED: "reboot since 2026-11-21T08:00:00Z"}
        node = Machine(name="node-1", cordoned_by="gpu-provision", is_foreign=True, annotations=marks)
        node.labels |= {states.STATE: label} if label else {}
        ended(world(node))
        assert node.state is UpgradeState.DONE
        assert node.cordoned_by == "gpu-provision"
        assert node.annotations[labels.CORDONED] == marks[labels.CORDONED]

    def test_an_upgrade_that_the_reference_began_is_finished(self) -> None:
        """It leaves no mark of its own on cordons; that the state is past the cordon is mark enough."""
        node = Machine(name="node-1", cordoned_by="gpu-operator", labels={states.STATE: "pod-restart-required"})
        ended(world(node))
        assert node.state is UpgradeState.DONE
        assert not node.cordoned_by

    def test_switching_upgrades_off_gives_nodes_back(self) -> None:
        """The reference leaves them cordoned, with its annotations."""
        node = Machine(name="node-1", work=[Work(name="web", blocked_until=math.inf)])
        other = Machine(name="node-2", cordoned_by="kubectl-cordon", is_foreign=True)
        found = world(node, other, policy=NO_LIMIT)
        while node.state is not UpgradeState.POD_DELETION_REQUIRED:
            found.step()
        off = BudgetDomain(policy=replace(NO_LIMIT, auto_upgrade=False), restart_seconds=60)
        found.policy = Policy(fleet=found.policy.fleet, domains={"shared": off})
        ended(found)
        assert (node.labels, node.annotations, node.cordoned_by) == ({}, {}, "")
        assert other.cordoned_by == "kubectl-cordon"


class TestTemplates:
    """Until the DaemonSet controller has observed the new template it replaces a driver pod by the same one."""

    def test_the_driver_runs_until_the_template_is_observed(self) -> None:
        """Then it is restarted once."""
        node = Machine(name="node-1", is_template_observed=False)
        found = world(node)
        while node.state is not UpgradeState.POD_RESTART_REQUIRED:
            found.step()
        found.step(kept=())
        assert found.decisions[-1].actions == ()
        node.is_template_observed = True
        ended(found)
        assert found.restarts == ["node-1"]

    def test_a_template_that_is_never_observed_is_the_reason(self) -> None:
        """After the time that a driver may take to restart."""
        node = Machine(name="node-1", is_template_observed=False)
        found = ended(world(node))
        assert found.restarts == []
        unobserved = "the DaemonSet controller has not observed the new template"
        assert reason(node) == f"{unobserved}, 60 s after pod-restart-required"


class TestFailures:
    """A failed node has a reason, keeps its cordon, and stops the others as declared."""

    @pytest.mark.parametrize(
        ("trouble", "words"),
        [
            (Trouble.CRASHES, "the driver is not ready: restarted 11 times"),
            (Trouble.HANGS, "the driver is not ready, 60 s after pod-restart-required"),
            (Trouble.DISPROVEN, "the validation failed: vectorAdd found no device"),
            (Trouble.UNPROVEN, "the validation has not ended, 60 s after validation-required"),
            (Trouble.WRONG_VERSION, "driver 390 is loaded, 560 is wanted"),
        ],
    )
    def test_the_reason_stands_on_the_node(self, trouble: Trouble, words: str) -> None:
        """And no further node starts after the first failure, unless the policy says so."""
        node, other = Machine(name="node-1", trouble=trouble), Machine(name="node-2")
        found = ended(world(node, other, policy=replace(ONE, max_unavailable=2)))
        assert reason(node) == words
        assert node.cordoned_by == "gpu-provision"
        assert found.decisions[-1].phase is RolloutPhase.PAUSED
        assert found.decisions[-1].waits == {"node-2": "the rollout stopped: node-1 failed"}
        assert found.restarts == ["node-1"]

    def test_those_under_way_are_finished(self) -> None:
        """A pause leaves no node half way."""
        nodes = [Machine(name=f"node-{number}") for number in range(1, 6)]
        nodes[1].trouble = Trouble.DISPROVEN
        policy = replace(NO_LIMIT, max_parallel_upgrades=2)
        found = ended(world(*nodes, policy=policy))
        assert [node.state for node in nodes[:2]] == [UpgradeState.DONE, UpgradeState.FAILED]
        assert {node.state for node in nodes[2:]} == {UpgradeState.UPGRADE_REQUIRED}
        assert found.decisions[-1].phase is RolloutPhase.PAUSED

    def test_a_driver_that_is_ready_late_has_to_prove_itself(self) -> None:
        """The reference gives the node back without a look."""
        node = Machine(name="node-1", trouble=Trouble.HANGS)
        found = ended(world(node))
        node.trouble = Trouble.DISPROVEN
        ended(found)
        assert way(found)[-2:] == ["validation-required", "upgrade-failed"]
        assert node.cordoned_by

    def test_a_node_without_its_gpus_keeps_its_slot(self) -> None:
        """Its driver is proven, yet pods cannot have the GPUs; in the end the rollout stops there and says why."""
        node, other = Machine(name="node-1", trouble=Trouble.UNOFFERED), Machine(name="node-2")
        found = ended(world(node, other))
        assert reason(node) == "the device plugin does not offer the GPUs, 60 s after validation-required"
        assert node.cordoned_by
        assert not other.state.value.startswith("upgrade-done")
        node.trouble = Trouble.NONE
        ended(found)
        assert {node.state, other.state} == {UpgradeState.DONE}

    def test_a_validation_that_passes_late_counts(self) -> None:
        """The driver pod is the one that failed; its proof is new."""
        node = Machine(name="node-1", trouble=Trouble.UNPROVEN)
        found = ended(world(node))
        assert node.driver
        node.trouble, node.proofs[node.driver.uid] = Trouble.NONE, found.now
        assert ended(found).decisions[-1].phase is RolloutPhase.DONE
        assert found.restarts == ["node-1"]

    def test_a_new_run_tries_again(self) -> None:
        """Once the cause is gone the command runs once more."""
        node = Machine(name="node-1", trouble=Trouble.DISPROVEN)
        found = ended(world(node))
        node.trouble, node.driver = Trouble.NONE, found._new_driver("550", found.now - 100)
        (move,) = retry_failed(found.snapshot())
        found.apply(move)
        ended(found)
        assert node.state is UpgradeState.DONE
        assert not node.cordoned_by

    def test_other_content_is_another_chance(self) -> None:
        """A failure says nothing about what is wanted now."""
        node = Machine(name="node-1", trouble=Trouble.DISPROVEN)
        found = ended(world(node))
        found.content = "570"
        ended(found)
        assert node.state is UpgradeState.DONE

    def test_a_rollback_brings_every_node_back(self) -> None:
        """Those that failed, those that are done, and none that was never touched."""
        nodes = [Machine(name=f"node-{number}") for number in range(1, 5)]
        nodes[1].trouble = Trouble.DISPROVEN
        found = ended(world(*nodes, fleet=RolloutPolicy(on_failure=OnFailure.ROLLBACK)))
        assert found.rolled_back == ["failed: node-2"]
        assert {node.driver.digest for node in nodes if node.driver} == {"550"}
        assert sorted(found.restarts) == ["node-1", "node-1", "node-2", "node-2"]
        assert {node.state for node in nodes} == {UpgradeState.DONE}
        assert not any(node.cordoned_by for node in nodes)

    def test_a_rollback_that_fails_is_not_rolled_back_in_its_turn(self) -> None:
        """It pauses, and says which nodes failed."""
        nodes = [Machine(name="node-1", trouble=Trouble.ALWAYS), Machine(name="node-2")]
        found = ended(world(*nodes, fleet=RolloutPolicy(on_failure=OnFailure.ROLLBACK)))
        assert found.rolled_back == ["failed: node-1"]
        assert found.decisions[-1].failures == {"node-1": "the validation failed: vectorAdd found no device"}

    def test_a_rollback_needs_something_on_record_to_go_back_to(self) -> None:
        """Without it the rollout pauses."""
        nodes = [Machine(name="node-1", trouble=Trouble.DISPROVEN), Machine(name="node-2")]
        found = world(*nodes, fleet=RolloutPolicy(on_failure=OnFailure.ROLLBACK))
        found.previous = ""
        assert ended(found).decisions[-1].phase is RolloutPhase.PAUSED

    def test_a_failed_node_with_a_request_stays_failed(self) -> None:
        """Its driver is as wanted and ready all the time: that is no reason to begin again, and again."""
        node = Machine(name="node-1", work=[Work(name="web", blocked_until=math.inf)])
        found = world(node, policy=replace(ONE, pod_deletion=PodDeletion(timeout_seconds=10)))
        found.content = "550"
        node.annotations[states.REQUESTED] = "true"
        ended(found)
        assert way(found).count("upgrade-failed") == 1

    def test_a_change_of_mind_releases_untouched_nodes(self) -> None:
        """Their drivers have nothing to prove."""
        node = Machine(name="node-1", work=[Work(name="web", blocked_until=math.inf)])
        found = world(node)
        while node.state is not UpgradeState.POD_DELETION_REQUIRED:
            found.step()
        found.content = "550"
        ended(found)
        assert way(found)[-2:] == ["uncordon-required", "upgrade-done"]
        assert not found.restarts
        assert not node.cordoned_by


class TestCanaries:
    """The first nodes go alone."""

    def test_the_others_follow_after_the_soak_time(self) -> None:
        """Which node is a canary stands on it."""
        nodes = [Machine(name=f"node-{number}") for number in range(1, 4)]
        fleet = RolloutPolicy(canary=Canary(nodes=1, soak_seconds=600))
        found = world(*nodes, policy=NO_LIMIT, fleet=fleet)
        while RolloutPhase.SOAKING not in {decision.phase for decision in found.decisions}:
            found.step()
        assert found.restarts == ["node-1"]
        assert nodes[0].annotations[states.CANARY] == "fleet-560"
        assert "canaries have to stay well for 600 s more: node-1" in found.decisions[-1].waits["node-2"]
        ended(found)
        assert found.restarts == ["node-1", "node-2", "node-3"]
        assert found.now >= BEGINNING + 600

    def test_a_canary_that_went_back_goes_first_again(self) -> None:
        """After a rollback the same content is tried again: the mark of the first try stands on the node."""
        nodes = [Machine(name=f"node-{number}") for number in range(1, 4)]
        nodes[1].annotations[states.CANARY] = "fleet-560"
        found = ended(world(*nodes, policy=NO_LIMIT, fleet=RolloutPolicy(canary=Canary(nodes=1))))
        assert found.restarts == ["node-2", "node-1", "node-3"]

    def test_a_canary_that_dies_while_it_soaks_has_failed(self) -> None:
        """That is what the time is for."""
        nodes = [Machine(name="node-1", trouble=Trouble.LATE), Machine(name="node-2")]
        found = ended(world(*nodes, policy=NO_LIMIT, fleet=RolloutPolicy(canary=Canary(soak_seconds=600))))
        assert reason(nodes[0]) == "did not stay well as a canary: the driver is not ready"
        assert found.restarts == ["node-1"]
        assert found.decisions[-1].waits == {"node-2": "canary node-1 failed"}

    def test_a_canary_that_goes_down_fails_once_and_comes_back(self) -> None:
        """Its driver pod stays ready, as it does where the kubelet alone is away: that is no reason to try again."""
        canary, other = Machine(name="node-1"), Machine(name="node-2")
        found = world(canary, other, fleet=RolloutPolicy(canary=Canary(soak_seconds=30)))
        while canary.state is not UpgradeState.DONE:
            found.step()
        canary.is_ready = False
        ended(found)
        assert way(found)[-2:] == ["upgrade-done", "upgrade-failed"]
        assert reason(canary) == "did not stay well as a canary: the node is NotReady"
        assert found.restarts == ["node-1"]
        canary.is_ready = True
        assert ended(found).decisions[-1].phase is RolloutPhase.DONE
        assert found.restarts == ["node-1", "node-2"]

    def test_after_a_failed_canary_not_even_another_canary_starts(self) -> None:
        """However many failures the policy bears otherwise."""
        nodes = [Machine(name=f"node-{number}", trouble=Trouble.DISPROVEN) for number in range(1, 5)]
        fleet = RolloutPolicy(canary=Canary(nodes=3), stop_after_failures=99)
        found = ended(world(*nodes, policy=replace(ONE, max_unavailable="100%"), fleet=fleet))
        assert found.restarts == ["node-1"]
        assert found.decisions[-1].phase is RolloutPhase.PAUSED

    def test_a_canary_that_falls_ill_holds_the_others_up(self) -> None:
        """They go on when it is well again."""
        nodes = [Machine(name=f"node-{number}") for number in range(1, 21)]
        nodes[0].trouble = Trouble.LATE
        found = ended(world(*nodes, fleet=RolloutPolicy(canary=Canary(soak_seconds=30))))
        assert found.decisions[-1].waits["node-20"] == "canaries are not well: node-1"
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
        nodes = [Machine(name=f"node-{number}") for number in range(1, 9)]
        window = MaintenanceWindow(start="12:00", minutes=1)
        found = world(*nodes, fleet=RolloutPolicy(maintenance_window=window))
        found.run()
        closed = next(decision for decision in found.decisions if decision.phase is RolloutPhase.CLOSED)
        assert closed.waits["node-1"] == "the maintenance window is closed"
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

    def test_a_node_that_is_left_out_never_starts(self) -> None:
        """By the label of the reference."""
        found = ended(world(Machine(name="node-1", labels={states.SKIP: "true"}), Machine(name="node-2")))
        assert found.decisions[-1].waits == {"node-1": "is left out by the label nvidia.com/gpu-driver-upgrade.skip"}
        assert found.restarts == ["node-2"]

    @pytest.mark.parametrize("label", ["node-maintenance-required", "some-future-state"])
    def test_a_node_in_other_hands_is_not_touched(self, label: str) -> None:
        """It takes a slot, since it is under way."""
        node = Machine(name="node-1", labels={states.STATE: label})
        found = world(node, Machine(name="node-2"))
        found.run()
        assert way(found) == []
        assert label in found.decisions[-1].waits["node-1"]


def test_no_pod_is_evicted_twice_while_it_ends() -> None:
    """One request is enough; the pod is known by its uid."""
    found = ended(world(Machine(name="node-1", work=[Work(name="web")])))
    evictions = [action for decision in found.decisions for action in decision.actions if isinstance(action, Evict)]
    assert len(evictions) == 1
