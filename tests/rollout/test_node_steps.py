"""Nodes that left the inventory, in named situations; test_properties.py has random ones."""

from __future__ import annotations

import math

import pytest

from gpu_provision.model.rollout_policy import Canary, PodDeletion, RolloutPolicy, UpgradePolicy
from gpu_provision.rollout import states
from gpu_provision.rollout.preview import plan_waves
from gpu_provision.rollout.snapshot import NO_DRIVER, BudgetDomain, Cordon, FleetNode, GpuUse, StateTransition
from gpu_provision.rollout.state_machine import decide_node, retry_failed
from gpu_provision.rollout.states import UpgradeState
from tests.rollout.rules import ONE, UP_TO_RESTART, ended, states_of, until, world
from tests.rollout.world import BEGINNING, NEW, Machine, Work, World


def leaving(*work: Work, name: str = "node-1", has_taint: bool = False) -> Machine:
    return Machine(name=name, leaves=True, has_taint=has_taint, work=[*work])


def end(found: World) -> Machine:
    return ended(found).machines["node-1"]


@pytest.mark.parametrize("has_taint", [False, True], ids=["driver of the stack", "driver of its own"])
def test_a_leaving_node_is_emptied_before_the_removal(*, has_taint: bool) -> None:
    """Cordon, eviction, labels, and the node is given back once the stack's pods have ended there."""
    found = world(leaving(Work(name="train"), has_taint=has_taint))
    node = end(found)
    assert states_of(found) == [*UP_TO_RESTART, "labels off", ""]
    assert node.is_forgotten
    assert node.driver is None
    assert not node.cordoned_by
    assert not found.restarts


@pytest.mark.parametrize(
    "work",
    [(), (Work(name="web", use=GpuUse.NONE),), (Work(name="over", ends=BEGINNING - 1),)],
    ids=["no pod", "a pod without a GPU", "a pod that is over"],
)
def test_a_leaving_node_with_an_idle_gpu_leaves_at_once(work: tuple[Work, ...]) -> None:
    """Without a cordon, a slot or a policy that allows evictions."""
    found = world(leaving(*work), policy=UpgradePolicy(auto_upgrade=False, max_unavailable=0))
    node = end(found)
    assert node.is_forgotten
    assert not found.writes


@pytest.mark.parametrize(
    ("work", "policy", "reason"),
    [
        (Work(name="notebook", owner=""), ONE, "default/notebook has no controller"),
        (Work(name="data", has_empty_dir=True), ONE, "pod_deletion.delete_empty_dir is off"),
        (Work(name="agent", is_daemon=True), ONE, "would be started again on this node at once"),
        (Work(name="train"), UpgradePolicy(auto_upgrade=False), "auto_upgrade is off, and pods use its GPUs: default"),
    ],
)
def test_a_pod_that_may_not_be_evicted_keeps_the_stack(work: Work, policy: UpgradePolicy, reason: str) -> None:
    """The node is not written to, whatever the reason is."""
    found = world(leaving(work), policy=policy)
    found.run()
    assert reason in found.decisions[-1].wait_reasons["node-1"]
    assert not found.writes
    assert found.machines["node-1"].has_labels
    assert found.machines["node-1"].driver is not None


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_budget_that_allows_nothing_fails_the_node(*, comes_back: bool) -> None:
    """It keeps the stack, its cordon and the reason. Once the pod has gone, the node goes as well.

    One that comes back is as it was: its driver was never touched, so no pod has to free a GPU for another proof.
    """
    work = Work(name="train", blocked_until=math.inf)
    found = world(leaving(work), policy=UpgradePolicy(pod_deletion=PodDeletion(timeout_seconds=10)))
    found.content = "550" if comes_back else NEW
    found.run()
    node = found.machines["node-1"]
    assert (node.state, node.has_labels, node.cordoned_by) == (UpgradeState.FAILED, True, "gpu-provision")
    assert "disruption budget" in node.annotations[states.REASON]
    if not comes_back:
        work.gone = found.now
        assert end(found).is_forgotten
        return
    node.leaves = False
    for move in retry_failed(found.snapshot()):
        found.apply(move)
    ended(found)
    assert (node.state, node.cordoned_by, node.proofs) == (UpgradeState.DONE, "", {})


def test_pods_that_come_after_the_cordon_are_evicted_too() -> None:
    found = world(leaving(Work(name="train")))
    while found.machines["node-1"].state is not UpgradeState.POD_RESTART_REQUIRED:
        assert found.step(slow={0} if found.machines["node-1"].state is UpgradeState.POD_DELETION_REQUIRED else ())
    found.machines["node-1"].work.append(Work(name="late"))
    node = end(found)
    assert all(work.gone < math.inf for work in node.work)
    assert states_of(found).count("labels off") == 1


@pytest.mark.parametrize("steps", range(9))
def test_a_node_may_come_back_at_any_time(steps: int) -> None:
    """It ends with a driver that is wanted, without a mark or a cordon; an untouched one is not replaced."""
    found = world(leaving(Work(name="train"), name="node-1"))
    found.content = found.previous = "550"
    for _ in range(steps):
        found.step()
    node = found.machines["node-1"]
    node.leaves, node.has_labels, node.is_forgotten = False, True, False
    node.revision += 1
    ended(found)
    assert node.state is UpgradeState.DONE
    assert not node.cordoned_by
    assert not found.restarts


def test_a_node_leaves_in_the_middle_of_an_upgrade() -> None:
    """With the new driver or the old one: pods are looked at again, and nothing has to be proven."""
    found = world(Machine(name="node-1", work=[Work(name="train")]))
    until(found, UpgradeState.VALIDATION_REQUIRED, leaves=True)
    assert end(found).is_forgotten


def test_leaving_is_no_business_of_canaries() -> None:
    """A node that leaves is none, waits for none, and its failure stops no upgrade."""
    stuck = leaving(Work(name="train", blocked_until=math.inf), name="node-0")
    others = [Machine(name=f"node-{number}") for number in (1, 2)]
    policy = UpgradePolicy(max_parallel_upgrades=0, max_unavailable="100%", pod_deletion=PodDeletion(timeout_seconds=5))
    fleet = RolloutPolicy(canary=Canary(nodes=1, soak_seconds=30))
    found = world(stuck, *others, policy=policy, fleet=fleet)
    found.run()
    assert stuck.state is UpgradeState.FAILED
    assert states.CANARY not in stuck.annotations
    assert [machine.driver.digest for machine in others if machine.driver] == [NEW, NEW]


def test_the_plan_has_nodes_that_leave_in_their_waves() -> None:
    found = world(leaving(Work(name="train")), leaving(name="node-2"), Machine(name="node-3"))
    planned = plan_waves(found.snapshot(), found.policy)
    waves = [[(outlook.node, outlook.leaves) for outlook in wave.nodes] for wave in planned.waves]
    assert waves == [[("node-1", True)], [("node-3", False)]]
    assert [pod.name for pod in planned.nodes[0].evicts] == ["train"]
    assert not planned.skipped


def test_a_node_back_with_its_own_driver_is_given_back() -> None:
    """No driver of the stack comes to it that could prove itself: what the rollout wrote goes, and its cordon."""
    marks = {states.CORDONED: states.MANAGER, states.TARGET: NO_DRIVER.digest}
    labels = {states.STATE: "pod-deletion-required"}
    node = FleetNode(name="n", domain="d", desired=NO_DRIVER, labels=labels, annotations=marks, is_cordoned=True)
    (move,) = decide_node(node, BudgetDomain(), BEGINNING).actions
    assert isinstance(move, StateTransition)
    assert (move.state, move.cordon) == (UpgradeState.UNKNOWN, Cordon.LIFT)
    assert dict(move.annotations) == dict.fromkeys(marks)


def test_a_node_that_leaves_at_once_takes_no_slot() -> None:
    """It is cordoned, and about to be no part of the fleet: no upgrade waits for that."""
    idle = leaving()
    idle.cordoned_by, idle.is_foreign = "kubectl-cordon", True
    found = world(idle, Machine(name="node-2"), fleet=RolloutPolicy(max_unavailable=1))
    planned = plan_waves(found.snapshot(), found.policy)
    assert [outlook.node for outlook in planned.nodes] == ["node-2"]
    found.run()
    assert found.restarts == ["node-2"]
    assert idle.cordoned_by == "kubectl-cordon"
