"""Nodes that left the inventory, as a plan has them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_provision.components import labels
from gpu_provision.model.cluster import Basis, DriverChoice, ref_of
from gpu_provision.model.inventory import Part
from gpu_provision.model.plan import Action, Change, Departure, Outlook, Plan, Schedule, Wave
from gpu_provision.model.progress import State
from gpu_provision.planning.plan import plan
from gpu_provision.planning.prepare import limit_to
from gpu_provision.planning.rollout_changes import with_departures
from gpu_provision.planning.states import LEFT, states
from gpu_provision.planning.upgrades import STAYS, needs_rollout
from gpu_provision.reconcile.rollout import nodes_without_driver
from gpu_provision.rollout import states as upgrade
from tests.components.builders import inventory
from tests.planning.builders import Stack, labelled, with_node

NODES = ("t4-1", "t4-2")


def without(*names: str) -> Stack:
    """Return a stack that is up, and whose inventory has just lost nodes."""
    before, chosen = Stack(), inventory()
    after = replace(chosen, nodes=tuple(node for node in chosen.nodes if node.name not in names))
    stack = Stack(after, labelled(chosen=chosen))
    stack.members |= before.members
    stack.pods |= before.pods
    return stack


def planned(stack: Stack, found: Schedule | None = None, **users: tuple[str, ...]) -> Plan:
    seen = stack.situation
    drawn = plan(stack.context, stack.desired, stack.observed)
    read = {name.replace("_", "-"): pods for name, pods in users.items()}
    return with_departures(drawn, seen, found or Schedule(), read)


def of_node(drawn: Plan, name: str = "t4-1") -> Change:
    return next(change for change in drawn.changes if change.ref.kind == "Node" and change.ref.name == name)


def test_a_node_that_left_is_leaving_until_the_mark_is_off() -> None:
    """That calls for a rollout, which alone sees whether pods of others use its GPUs."""
    found = states(without("t4-1").situation)
    state = found["node_labels", "t4-1"]
    assert (state.state, state.reason) == (State.LEAVING, LEFT)
    assert needs_rollout(found)
    assert not needs_rollout(states(Stack().situation))


def test_a_plan_says_what_leaves_a_node_and_who_uses_its_gpu() -> None:
    change = of_node(planned(without("t4-1"), t4_1=("default/train",)))
    assert change.departure == Departure(pods=6, users=("default/train",))
    assert change.action is Action.UPDATE
    assert {field.new for field in change.fields} == {None}
    assert f'metadata.labels."{labels.INVENTORY}"' in {field.path for field in change.fields}
    assert not change.effects


def test_without_the_right_to_read_pods_users_are_unknown() -> None:
    assert of_node(planned(without("t4-1"))).departure == Departure(pods=6, users=None)


def test_what_a_rollout_wrote_on_the_node_goes_with_it() -> None:
    stack = without("t4-1")
    node = next(node for node in stack.context.facts.nodes if node.name == "t4-1")
    marked = {"labels": {**node.labels, upgrade.STATE: "upgrade-done"}, "annotations": {upgrade.SINCE: "1"}}
    facts = with_node(stack.context.facts, "t4-1", **marked)
    stack.context = replace(stack.context, facts=facts)
    paths = {field.path for field in of_node(planned(stack)).fields}
    assert {f'metadata.labels."{upgrade.STATE}"', f'metadata.annotations."{upgrade.SINCE}"'} <= paths


def test_a_node_that_keeps_the_stack_has_a_line_with_the_reason() -> None:
    """No write is planned for it, and a plan that has nothing else is not empty: the apply fails, and says why."""
    drawn = planned(without("t4-1"), Schedule(skipped=(("t4-1", "default/bare has no controller"),)))
    change = of_node(drawn)
    assert (change.action, change.fields) == (Action.WAIT, ())
    assert change.effects == (f"{STAYS}: default/bare has no controller",)
    assert drawn.rollout is None


def test_only_a_node_of_a_later_wave_is_uncertain() -> None:
    waves = tuple(Wave(nodes=(Outlook(node=name, why="left", leaves=True),)) for name in NODES)
    drawn = planned(without(*NODES), Schedule(waves=waves))
    assert [of_node(drawn, name).certain for name in NODES] == [True, False]


@pytest.mark.parametrize(("skipped", "goes"), [((), True), ((("t4-1", "is in use"),), False)])
def test_the_daemonset_of_the_last_node_goes_after_it(skipped: tuple[tuple[str, str], ...], *, goes: bool) -> None:
    """Not before: its pod would go with it, under whatever runs on the node."""
    stack = without(*NODES)
    driver = ref_of(Stack().daemonset("driver", "t4-1"))
    at_once = [change.ref for change in plan(stack.context, stack.desired, stack.observed).changes]
    assert driver not in at_once
    deleted = [change for change in planned(stack, Schedule(skipped=skipped)).changes if change.ref == driver]
    assert [(change.action, change.certain) for change in deleted] == ([(Action.DELETE, False)] if goes else [])


def test_a_run_on_other_nodes_does_nothing_to_a_node_that_left() -> None:
    stack = without("t4-1")
    stack.context, stack.desired = limit_to(stack.context, stack.desired, Part(nodes=frozenset({"h100-1"})))
    assert ("node_labels", "t4-1") not in states(stack.situation)
    assert not [change for change in planned(stack).changes if change.ref.kind == "Node"]


def test_a_node_that_the_cluster_lost_as_well_is_no_matter() -> None:
    stack = without("t4-1")
    nodes = tuple(node for node in stack.context.facts.nodes if node.name != "t4-1")
    stack.context = replace(stack.context, facts=replace(stack.context.facts, nodes=nodes))
    assert ("node_labels", "t4-1") not in states(stack.situation)


@pytest.mark.parametrize(("step", "expected"), [("pod-deletion-required", True), ("upgrade-done", False)])
def test_a_rollout_that_a_host_driver_ended_is_taken_back(step: str, *, expected: bool) -> None:
    """The node has left and come back meanwhile, or its driver was installed on the host."""
    stack = Stack()
    (target,) = (target for target in stack.context.targets if target.name == "t4-1")
    assert target.facts
    facts = replace(target.facts, labels={**target.facts.labels, upgrade.STATE: step})
    own = replace(target, facts=facts, driver=DriverChoice(on_host=True, basis=Basis.READ), driver_group="")
    others = (each for each in stack.context.targets if each is not target)
    stack.context = replace(stack.context, targets=(*others, own))
    seen = stack.situation
    assert needs_rollout(states(seen)) is expected
    assert ("t4-1" in nodes_without_driver(seen)) is expected
