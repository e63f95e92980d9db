"""Random fleets, policies and mishaps."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hypothesis import strategies as some

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
from gpu_provision.rollout import states
from gpu_provision.rollout.snapshot import BudgetDomain, GpuUse, Policy
from tests.rollout.world import BEGINNING, Machine, Trouble, Work, World

SECONDS = some.sampled_from([0, 10, 300])
SHARES = some.sampled_from([1, 2, 3, "25%", "34%", "50%", "100%"])
works = some.builds(
    Work,
    name=some.just("work"),
    use=some.sampled_from(GpuUse),
    owner=some.sampled_from(["ReplicaSet web", "Job train", ""]),
    labels=some.sampled_from([{}, {"job": "yes"}, {states.DRAIN_SKIP: "true"}]),
    is_daemon=some.sampled_from([False, False, False, True]),
    has_empty_dir=some.sampled_from([False, False, True]),
    ends=some.sampled_from([math.inf, math.inf, BEGINNING + 30, BEGINNING + 400]),
    blocked_until=some.sampled_from([-math.inf, -math.inf, BEGINNING + 60, math.inf]),
)


@some.composite
def machines(draw: some.DrawFn, *, troubles: tuple[Trouble, ...] = tuple(Trouble), most: int = 7) -> list[Machine]:
    """A few machines in one or two domains, with work and troubles."""
    count = draw(some.integers(1, most))
    found = []
    for number in range(count):
        work = draw(some.lists(works, max_size=2))
        for index, item in enumerate(work):
            item.name = f"work-{index}"
        is_foreign = draw(some.sampled_from([False, False, False, True]))
        found.append(
            Machine(
                name=f"node-{number + 1}",
                domain=draw(some.sampled_from(["shared", "shared", "own"])),
                trouble=draw(some.sampled_from([Trouble.NONE, Trouble.NONE, Trouble.NONE, *troubles])),
                labels=dict(draw(some.sampled_from([{}, {}, {"canary": "yes"}, {states.SKIP: "true"}]))),
                work=work,
                is_ready=draw(some.sampled_from([True, True, True, True, False])),
                has_taint=draw(some.sampled_from([False, False, False, False, True])),
                leaves=draw(some.sampled_from([False, False, False, False, True])),
                is_foreign=is_foreign,
                cordoned_by="kubectl-cordon" if is_foreign else "",
            )
        )
    return found


upgrade_policies = some.builds(
    UpgradePolicy,
    auto_upgrade=some.sampled_from([True, True, True, True, True, False]),
    max_parallel_upgrades=some.integers(0, 3),
    max_unavailable=SHARES,
    wait_for_completion=some.builds(
        WaitForCompletion, pod_selector=some.sampled_from(["", "", "job=yes"]), timeout_seconds=SECONDS
    ),
    pod_deletion=some.builds(
        PodDeletion, force=some.booleans(), timeout_seconds=SECONDS, delete_empty_dir=some.booleans()
    ),
    drain=some.builds(
        UpgradeDrain,
        enable=some.booleans(),
        force=some.booleans(),
        timeout_seconds=SECONDS,
        delete_empty_dir=some.booleans(),
        pod_selector=some.sampled_from(["", "", "!job"]),
    ),
)
canaries = some.builds(
    Canary,
    nodes=some.integers(0, 2),
    node_selector=some.sampled_from([{}, {"canary": "yes"}]),
    soak_seconds=some.sampled_from([0, 30, 120]),
).filter(lambda canary: bool(canary.nodes or canary.node_selector))
windows = some.builds(
    MaintenanceWindow,
    start=some.sampled_from(["00:00", "08:00", "23:30"]),
    minutes=some.sampled_from([1, 60, 600]),
    timezone=some.sampled_from(["UTC", "Europe/Berlin"]),
)
rollout_policies = some.builds(
    RolloutPolicy,
    max_parallel_upgrades=some.integers(0, 3),
    max_unavailable=SHARES,
    canary=some.none() | canaries,
    stop_after_failures=some.sampled_from([1, 1, 2, 99]),
    on_failure=some.sampled_from(OnFailure),
    maintenance_window=some.none() | some.none() | windows,
    order=some.sampled_from(Order),
)
policies = some.builds(
    Policy,
    fleet=rollout_policies,
    domains=some.fixed_dictionaries(
        {
            "shared": some.builds(BudgetDomain, policy=upgrade_policies, restart_seconds=some.just(60)),
            "own": some.builds(BudgetDomain, policy=upgrade_policies, restart_seconds=some.just(60)),
        }
    ),
)


@dataclass(frozen=True)
class Mishap:
    """Something that befalls one machine before one step."""

    step: int
    what: str
    node: int


MISHAPS = (
    "cordoned",
    "uncordoned",
    "down",
    "up",
    "label gone",
    "label by hand",
    "asked for",
    "driver deleted",
    "new work",
    "killed",
    "back to the old content",
    "leaves the inventory",
    "comes back to the inventory",
)
mishaps = some.lists(
    some.builds(Mishap, step=some.integers(0, 25), what=some.sampled_from(MISHAPS), node=some.integers(0, 6)),
    max_size=10,
)


def befall(world: World, mishap: Mishap) -> None:  # noqa: C901, PLR0912 - one case a mishap
    names = list(world.machines)
    machine = world.machines[names[mishap.node % len(names)]]
    machine.revision += 1
    if machine.is_forgotten and mishap.what != "comes back to the inventory":
        return  # no node of the stack
    match mishap.what:
        case "cordoned":
            if not machine.cordoned_by:  # kubectl says that it is cordoned already, and writes nothing
                machine.cordoned_by, machine.is_foreign = "kubectl-cordon", True
        case "uncordoned":
            machine.cordoned_by, machine.is_foreign = "", False
        case "down":
            machine.is_ready = False
        case "up":
            machine.is_ready = True
        case "label gone":
            machine.labels.pop(states.STATE, None)
        case "label by hand":
            machine.labels[states.STATE] = "upgrade-required"
        case "asked for":
            machine.annotations[states.REQUESTED] = "true"
        case "driver deleted":
            if machine.driver is not None:
                machine.driver.gone = min(machine.driver.gone, world.now + 1)
        case "new work":
            machine.work.append(Work(name=f"work-{len(machine.work)}"))  # with nodeName: no cordon keeps it away
        case "leaves the inventory":
            machine.leaves = True
        case "comes back to the inventory":
            machine.leaves, machine.has_labels, machine.is_forgotten = False, True, False
        case "back to the old content":
            world.content, world.previous = "550", ""
        case _:
            pass
