"""Previews of a rollout: the waves of nodes, the evictions, and the obstacles."""

from __future__ import annotations

import math

from gpu_provision.components.labels import DRIVER_GROUP
from gpu_provision.model.plan import Schedule
from gpu_provision.model.rollout_policy import (
    Canary,
    MaintenanceWindow,
    RolloutPolicy,
    UpgradeDrain,
    UpgradePolicy,
    WaitForCompletion,
)
from gpu_provision.output.rollout import lines
from gpu_provision.rollout import states
from gpu_provision.rollout.preview import plan_waves
from gpu_provision.rollout.snapshot import BudgetDomain, GpuUse, Policy
from gpu_provision.rollout.state_machine import retry_failed
from tests.rollout.world import BEGINNING, NEW, Driver, Machine, Trouble, Work, World


def schedule(*machines: Machine, policy: UpgradePolicy | None = None, fleet: RolloutPolicy | None = None) -> Schedule:
    chosen = policy or UpgradePolicy(max_parallel_upgrades=2, max_unavailable="100%")
    found = World(machines, Policy(fleet=fleet or RolloutPolicy(), domains={"shared": BudgetDomain(policy=chosen)}))
    seen = found.snapshot()
    return plan_waves(seen, found.policy)


def preview(*machines: Machine, policy: UpgradePolicy | None = None, fleet: RolloutPolicy | None = None) -> list[str]:
    return list(lines(schedule(*machines, policy=policy, fleet=fleet)))


def test_nodes_come_in_waves_with_what_happens_to_their_pods() -> None:
    """Pods with owner and namespace, the budgets that block, and those that stay although they use the driver."""
    busy = [
        Work(name="web", blocked_until=math.inf),
        Work(name="train", owner="Job train", labels={"job": "yes"}),
        Work(name="shell", owner="ReplicaSet shell", use=GpuUse.RUNTIME_CLASS),
        Work(name="netdata", owner="DaemonSet netdata", use=GpuUse.RUNTIME_CLASS, is_daemon=True),
        Work(name="cpu", use=GpuUse.NONE),
    ]
    machines = [Machine(name="node-1", work=busy), Machine(name="node-2"), Machine(name="node-3")]
    policy = UpgradePolicy(
        max_parallel_upgrades=2, max_unavailable="100%", wait_for_completion=WaitForCompletion(pod_selector="job=yes")
    )
    assert preview(*machines, policy=policy) == [
        "desired driver 560: node-1..3",
        "wave 1: node-1, node-2",
        "wave 2: node-3",
        "stops after 1 failed node",
        "waits for default/train (Job train) on node-1 to end",
        (
            "will evict default/web (ReplicaSet web) on node-1, which requests GPUs; "
            "blocked: PodDisruptionBudget budget allows no disruption right now"
        ),
        "may evict default/train (Job train) on node-1, which requests GPUs",
        "will evict default/shell (ReplicaSet shell) on node-1, which runs with the NVIDIA runtime class",
        (
            "leaves default/netdata (DaemonSet netdata) on node-1, which runs with the NVIDIA runtime class "
            "and may keep the driver"
        ),
    ]


def test_canaries_soak_times_and_windows_are_in_it() -> None:
    """BEGINNING is 8:00 UTC."""
    fleet = RolloutPolicy(
        canary=Canary(soak_seconds=600), maintenance_window=MaintenanceWindow(start="09:00", minutes=30)
    )
    waves = preview(Machine(name="node-1"), Machine(name="node-2"), fleet=fleet)[1:3]
    assert waves == [
        "wave 1 (canary), not before 2027-01-15 09:00:00 UTC: node-1",
        "wave 2, not before 2027-01-15 09:10:00 UTC: node-2",
    ]


def test_a_repeated_canary_is_named_as_one() -> None:
    """Its mark is of the first try of the same content."""
    again = Machine(name="node-2", annotations={states.CANARY: "fleet-560"})
    of_canary = preview(Machine(name="node-1"), again, fleet=RolloutPolicy(canary=Canary()))
    assert of_canary[1:3] == ["wave 1 (canary): node-2", "wave 2: node-1"]


def test_skipped_nodes_are_named_with_the_reason() -> None:
    machines = [
        Machine(name="node-1", labels={states.SKIP: "true"}),
        Machine(name="node-2", is_ready=False),
        Machine(name="node-3", has_taint=True, labels={DRIVER_GROUP: "ubuntu22.04"}),
        Machine(name="node-4", work=[Work(name="bare", owner="")]),
        Machine(name="node-5", cordoned_by="kubectl-cordon"),
    ]
    assert preview(*machines) == [
        "desired driver 560: node-5",
        "wave 1: node-5",
        "stays cordoned, as kubectl-cordon left it: node-5",
        f"skipped: node-1: is excluded by the label {states.SKIP}",
        "skipped: node-2: the node is NotReady",
        "skipped: node-3: has no driver pod",
        "skipped: node-4: default/bare has no controller that would start it elsewhere, and pod_deletion.force is off",
    ]


def test_nodes_of_an_earlier_run_come_first() -> None:
    """As a run does it."""
    nodes = [Machine(name="node-1", trouble=Trouble.DISPROVEN), Machine(name="node-2")]
    chosen = Policy(
        fleet=RolloutPolicy(stop_after_failures=9),
        domains={"shared": BudgetDomain(policy=UpgradePolicy(max_unavailable="100%"))},
    )
    found = World(nodes, chosen)
    while nodes[1].labels.get(states.STATE) != "pod-restart-required":
        found.step()
    nodes[0].driver = found._new_driver("550", found.now - 100)
    seen = found.snapshot()
    assert list(lines(plan_waves(seen, chosen))) == [
        "first, what an earlier run began is finished: node-2",
        "desired driver 560: node-1",
        "wave 1: node-1",
    ]


def test_a_crashed_driver_is_replaced_as_planned() -> None:
    """It gets another pod, whose restarts count from zero."""
    chosen = Policy(
        fleet=RolloutPolicy(), domains={"shared": BudgetDomain(policy=UpgradePolicy(max_unavailable="100%"))}
    )
    node = Machine(name="node-1", trouble=Trouble.CRASHES)
    found = World([node], chosen)
    found.run()
    seen = found.snapshot()
    assert list(lines(plan_waves(seen, chosen))) == ["the driver pod has crashed: node-1", "wave 1: node-1"]
    for move in retry_failed(seen):
        found.apply(move)
    while len(found.restarts) < 2:
        found.step()
    node.trouble = Trouble.NONE
    found.run()
    assert node.labels[states.STATE] == "upgrade-done"


def test_a_drain_that_may_follow_is_not_certain() -> None:
    """Pods without GPUs go only if evicting those with GPUs is not enough; exempt pods stay."""
    work = [Work(name="web"), Work(name="cpu", use=GpuUse.NONE)]
    policy = UpgradePolicy(max_unavailable="100%", drain=UpgradeDrain(enable=True))
    assert preview(Machine(name="node-1", work=work), policy=policy)[2:] == [
        "will evict default/web (ReplicaSet web) on node-1, which requests GPUs",
        "may evict default/cpu (ReplicaSet web) on node-1, if evicting GPU pods is not enough",
    ]
    exempt = Machine(name="node-1", work=[Work(name="shy", use=GpuUse.NONE, labels={states.DRAIN_SKIP: "true"})])
    assert "shy" not in "".join(preview(exempt, policy=policy))


def test_nodes_that_are_only_written_to_are_named() -> None:
    """A first rollout writes the state of every node; with auto_upgrade off all that goes again."""
    current = Driver(uid="new", digest=NEW, started=BEGINNING - 60)
    assert schedule(Machine(name="node-1", driver=current), Machine(name="node-2")).marked == ("node-1",)
    marked = Machine(name="node-1", driver=current, labels={states.STATE: "upgrade-done"})
    off = UpgradePolicy(auto_upgrade=False)
    assert (schedule(marked, policy=off).marked, preview(marked, policy=off)) == (("node-1",), [])


def test_a_budget_that_slows_a_wave_is_named() -> None:
    """The pods of a wave go one after the other then; one node at a time is no trouble."""
    work = {"name": "web", "blocked_until": 0.0}  # one disruption is allowed
    machines = [Machine(name=f"node-{number}", work=[Work(**work)]) for number in (1, 2)]
    at_once = "will evict 2 pods of ReplicaSet default/web on node-1, node-2, each of which requests GPUs"
    assert f"{at_once}; slowed: PodDisruptionBudget budget lets fewer go at a time" in preview(*machines)
    one_by_one = UpgradePolicy(max_parallel_upgrades=1, max_unavailable="100%")
    assert at_once in preview(*machines, policy=one_by_one)


def test_a_pod_that_tolerates_cordons_is_reported() -> None:
    """The scheduler puts its successor on the same node, where the driver cannot be unloaded then."""
    sticky = Work(name="sticky", tolerates_cordons=True)
    assert preview(Machine(name="node-1", work=[sticky]))[2:] == [
        (
            "will evict default/sticky (ReplicaSet web) on node-1, which requests GPUs; "
            "it tolerates cordons, so it may come back and keep the new driver from starting"
        )
    ]
    assert "come back" not in "".join(preview(Machine(name="node-1", work=[Work(name="web")])))
