"""What holds for every rollout, whatever the fleet, the policy, the failures and the mishaps. Cases are generated.

``GPU_PROVISION_TEST_CASES`` says how many for each property; a failure found that way is worth a test of its own.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from dataclasses import replace

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as some

from gpu_provision.rollout import budgets
from gpu_provision.rollout.preview import plan_waves
from gpu_provision.rollout.snapshot import Admission, FleetNode, HoldReason, Policy, Snapshot
from gpu_provision.rollout.states import UpgradeState
from tests.rollout.fleets import Mishap, befall, canaries, machines, mishaps, policies
from tests.rollout.rules import Rules, judge_the_end
from tests.rollout.world import Machine, Trouble, World

_COUNT = int(os.environ.get("GPU_PROVISION_TEST_CASES", "25"))
CASES = settings(
    max_examples=_COUNT,
    deadline=None,  # no timed assertion
    derandomize=True,  # the same cases everywhere: a red build is red for everybody
    database=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink] if _COUNT <= 1000 else [Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
Kills = list[set[int]]
kills = some.lists(some.sets(some.integers(0, 5), max_size=5), max_size=60)
BREAKING = (
    Trouble.CRASHES,
    Trouble.HANGS,
    Trouble.DISPROVEN,
    Trouble.UNPROVEN,
    Trouble.UNOFFERED,
    Trouble.WRONG_VERSION,
)


@CASES
@given(fleet=machines(), policy=policies, tells_managers=some.booleans(), makes_strides=some.booleans())
def test_every_node_ends_as_wanted_failed_or_held(
    fleet: list[Machine], policy: Policy, *, tells_managers: bool, makes_strides: bool
) -> None:
    """Limits, evictions, restarts, canaries and cordons are held against their rules on the way."""
    world = World(fleet, policy)
    world.tells_managers, world.makes_strides = tells_managers, makes_strides
    Rules(world)
    judge_the_end(world, world.run())


@CASES
@given(machines(), policies, mishaps)
def test_mishaps_break_no_rule(fleet: list[Machine], policy: Policy, befalls: list[Mishap]) -> None:
    """Foreign cordons, nodes that go down, labels by hand, deleted drivers, kills, a change of mind."""
    world = World(fleet, policy)
    world.makes_strides = True
    Rules(world)
    for step in range(26):
        now = [mishap for mishap in befalls if mishap.step == step]
        for mishap in now:
            befall(world, mishap)
        world.step(kept={0} if any(mishap.what == "killed" for mishap in now) else None)
    judge_the_end(world, world.run())


@CASES
@given(machines(), policies)
def test_coalesced_writes_end_in_the_same_place(fleet: list[Machine], policy: Policy) -> None:
    """What comes of each node is the same, and so is when it is done; within one moment there is no order."""
    by_steps, by_strides = World(copy.deepcopy(fleet), policy), World(fleet, policy)
    by_strides.makes_strides = True
    by_steps.run()
    by_strides.run()
    assert ends(by_strides) == ends(by_steps)
    assert sorted(by_strides.restarted) == sorted(by_steps.restarted)
    assert by_strides.now == by_steps.now
    assert by_strides.writes <= by_steps.writes


@CASES
@given(machines(), policies, kills)
def test_a_rollout_killed_often_ends_like_an_undisturbed_one(
    fleet: list[Machine], policy: Policy, killed: Kills
) -> None:
    """Each kill loses all but some of the actions of one look, and whatever the process had in mind."""
    undisturbed, disturbed = World(copy.deepcopy(fleet), policy), World(fleet, policy)
    undisturbed.run()
    disturbed.makes_strides = True
    Rules(disturbed)
    for kept in killed:
        disturbed.step(kept)
        disturbed.step()
    disturbed.run()
    assert ends(disturbed) == ends(undisturbed)


@CASES
@given(machines(), policies, kills)
def test_writes_that_take_their_time_change_nothing_but_the_time(
    fleet: list[Machine], policy: Policy, slow: Kills
) -> None:
    """While some moves are on their way the other nodes go on, within every limit, and all end as they would have."""
    prompt, late = World(copy.deepcopy(fleet), policy), World(fleet, policy)
    prompt.run()
    late.makes_strides = True
    Rules(late)
    for indices in slow:
        late.step(slow=indices)
    late.run()
    assert ends(late) == ends(prompt)


def ends(world: World) -> dict[str, tuple[object, ...]]:
    return {
        name: (
            machine.is_forgotten,
            machine.state,
            machine.cordoned_by,
            machine.driver.digest if machine.driver else None,
        )
        for name, machine in world.machines.items()
    }


@CASES
@given(machines(troubles=()), policies, canaries, some.sampled_from(BREAKING), some.data())
def test_a_failed_canary_touches_no_other_node(
    fleet: list[Machine], policy: Policy, canary: object, trouble: Trouble, data: some.DataObject
) -> None:
    """The first canary fails: no node outside the canaries is cordoned, emptied or restarted."""
    assert isinstance(canary, type(policy.fleet.canary)) or policy.fleet.canary is None
    patient = replace(policy.fleet, canary=canary, stop_after_failures=data.draw(some.sampled_from([1, 99])))  # type: ignore[arg-type]
    world = World(fleet, replace(policy, fleet=patient), previous="")
    rules = Rules(world)
    for machine in fleet:
        machine.trouble, machine.leaves = trouble, False
    world.run()
    count = patient.canary.nodes if patient.canary and patient.canary.nodes else len(fleet)
    assert len(set(rules.started)) <= count
    tried = {machine.name for machine in fleet if machine.state is UpgradeState.FAILED}
    assert tried <= set(rules.started)
    assert set(world.restarts) <= set(rules.started)


@CASES
@given(machines(troubles=()), policies)
def test_a_node_without_a_driver_pod_stops_no_other(fleet: list[Machine], policy: Policy) -> None:
    """In the reference one missing pod of a DaemonSet stops every node. Here the fleet ends as if it were not there."""
    for machine in fleet:
        machine.is_ready, machine.has_taint = True, False
    eager = {
        name: replace(domain, policy=replace(domain.policy, auto_upgrade=True, max_unavailable=1))
        for name, domain in policy.domains.items()
    }
    free = Policy(fleet=replace(policy.fleet, max_unavailable=1), domains=eager)
    missing = Machine(name="node-99", has_taint=True, labels={"canary": "yes"})
    alone, beside = World(copy.deepcopy(fleet), free), World([*fleet, missing], free)
    alone.run()
    beside.run()
    assert {name: end for name, end in ends(beside).items() if name != "node-99"} == ends(alone)
    assert "no driver pod" in beside.decisions[-1].wait_reasons["node-99"]


@CASES
@given(machines(troubles=()), policies)
def test_a_plan_has_the_order_of_the_rollout_that_follows(fleet: list[Machine], policy: Policy) -> None:
    """Nodes start in the planned order, those that are planned and no other, if nothing happens in between."""
    for machine in fleet:
        machine.work = []
    world = World(fleet, policy)
    rules = Rules(world)
    planned = [outlook.node for wave in plan_waves(world.snapshot(), policy).waves for outlook in wave.nodes]
    world.run()
    assert rules.started == planned


@CASES
@given(machines(troubles=(), most=14), policies)
def test_rounds_are_slots_handed_out_again_and_again(fleet: list[Machine], policy: Policy) -> None:
    """The plan counts on from round to round what the machine would count at every look."""
    seen = World(fleet, policy).snapshot()
    assert list(budgets.plan_rounds(seen, policy, seen.nodes, upgraded)) == list(asked_again(seen, policy))


def asked_again(seen: Snapshot, policy: Policy) -> Iterator[tuple[FleetNode, ...]]:
    """Yield the rounds as the machine grants them one by one."""
    left = seen.nodes
    while started := budgets.allocate_slots(seen, policy, left, Admission(HoldReason.NOTHING, admitted=left))[0]:
        yield started
        left = tuple(node for node in left if node not in started)
        seen = replace(seen, nodes=tuple(upgraded(node) if node in started else node for node in seen.nodes))


def upgraded(node: FleetNode) -> FleetNode:
    """Return a node after its upgrade, with its own cordon and no other."""
    return replace(node, is_cordoned=node.cordoned_by == "kubectl-cordon")
