"""Changes of a plan that follow from a rollout, and from nodes that left."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_provision.components import labels
from gpu_provision.components.labels import DRIVER_GROUP, VALIDATED
from gpu_provision.diagnostics.pods import node_of
from gpu_provision.model.cluster import DriverBasis, DriverChoice, ObjectRef, ref_of
from gpu_provision.model.plan import Action, Change, Departure, FieldChange, NodePreview, Plan, Schedule, Wave
from gpu_provision.planning.plan import label_path
from gpu_provision.planning.rollout_changes import with_departures, with_rollout_changes
from gpu_provision.planning.states import evaluate_states
from gpu_provision.planning.upgrades import STACK_KEPT, needs_rollout
from gpu_provision.reconcile.desired_drivers import nodes_without_driver
from gpu_provision.rollout import states as upgrade
from tests.components.builders import inventory
from tests.planning.builders import Stack, labelled, outdated, regrouped, with_node

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
    drawn = stack.plan
    read = {name.replace("_", "-"): pods for name, pods in users.items()}
    return with_departures(drawn, seen, found or Schedule(), read)


def of_node(drawn: Plan, name: str = "t4-1") -> Change:
    return next(change for change in drawn.changes if change.ref.kind == "Node" and change.ref.name == name)


def test_a_departure_names_pods_and_gpu_users() -> None:
    change = of_node(planned(without("t4-1"), t4_1=("default/train",)))
    assert change.departure == Departure(pods=6, users=("default/train",))
    assert change.action is Action.UPDATE
    assert {field.new for field in change.fields} == {None}
    assert f'metadata.labels."{labels.INVENTORY}"' in {field.path for field in change.fields}
    assert not change.effects


def test_a_departure_removes_marks_of_a_rollout() -> None:
    stack = without("t4-1")
    node = next(node for node in stack.context.facts.nodes if node.name == "t4-1")
    marked = {"labels": {**node.labels, upgrade.STATE: "upgrade-done"}, "annotations": {upgrade.SINCE: "1"}}
    facts = with_node(stack.context.facts, "t4-1", **marked)
    stack.context = replace(stack.context, facts=facts)
    paths = {field.path for field in of_node(planned(stack)).fields}
    assert {f'metadata.labels."{upgrade.STATE}"', f'metadata.annotations."{upgrade.SINCE}"'} <= paths


def test_a_node_that_keeps_the_stack_has_a_line_with_the_reason() -> None:
    """No write is planned for it, and a plan that has nothing else is not empty: the apply fails with the reason."""
    drawn = planned(without("t4-1"), Schedule(skipped=(("t4-1", "default/bare has no controller"),)))
    change = of_node(drawn)
    assert (change.action, change.fields) == (Action.WAIT, ())
    assert change.effects == (f"{STACK_KEPT}: default/bare has no controller",)
    assert drawn.rollout is None


def test_only_a_node_of_a_later_wave_is_uncertain() -> None:
    waves = tuple(Wave(nodes=(NodePreview(node=name, why="left", leaves=True),)) for name in NODES)
    drawn = planned(without(*NODES), Schedule(waves=waves))
    assert [of_node(drawn, name).certain for name in NODES] == [True, False]


@pytest.mark.parametrize(("skipped", "goes"), [((), True), ((("t4-1", "is in use"),), False)])
def test_the_daemonset_of_the_last_node_is_deleted_after_it(
    skipped: tuple[tuple[str, str], ...], *, goes: bool
) -> None:
    """Not before: its pod would go with it, under whatever runs on the node."""
    stack = without(*NODES)
    driver = ref_of(Stack().daemonset("driver", "t4-1"))
    at_once = [change.ref for change in stack.plan.changes]
    assert driver not in at_once
    deleted = [change for change in planned(stack, Schedule(skipped=skipped)).changes if change.ref == driver]
    assert [(change.action, change.certain) for change in deleted] == ([(Action.DELETE, False)] if goes else [])


@pytest.mark.parametrize(("step", "expected"), [("pod-deletion-required", True), ("upgrade-done", False)])
def test_a_rollout_that_a_host_driver_ended_is_taken_back(step: str, *, expected: bool) -> None:
    """The node has left and come back meanwhile, or its driver was installed on the host."""
    stack = Stack()
    (target,) = (target for target in stack.context.targets if target.name == "t4-1")
    assert target.facts
    facts = replace(target.facts, labels={**target.facts.labels, upgrade.STATE: step})
    own = replace(target, facts=facts, driver=DriverChoice(on_host=True, basis=DriverBasis.READ), driver_group="")
    others = (each for each in stack.context.targets if each is not target)
    stack.context = replace(stack.context, targets=(*others, own))
    seen = stack.situation
    assert needs_rollout(evaluate_states(seen)) is expected
    assert ("t4-1" in nodes_without_driver(seen)) is expected


WHY = "desired driver 580"

VALIDATIONS = ("device_plugin_validation", "driver_validation")


def rollout(*waves: tuple[str, ...], skipped: tuple[str, ...] = ()) -> Schedule:
    planned = tuple(Wave(nodes=tuple(NodePreview(node=node, why=WHY) for node in nodes)) for nodes in waves)
    return Schedule(waves=planned, skipped=tuple((node, "the node is NotReady") for node in skipped))


def upgraded() -> Stack:
    """Return a stack whose drivers on T4 nodes are of another installation; everything has passed."""
    stack = Stack()
    for node in ("t4-1", "t4-2"):
        stack.put(outdated(stack.pod("driver", node)))
    return stack


def made(stack: Stack, found: Schedule, **options: tuple[str, ...]) -> Plan:
    before = stack.plan
    return with_rollout_changes(before, found, stack.situation, **options)


def runs(found: Plan) -> dict[str, bool]:
    """Return the validations that run, as component/node, and whether that is certain."""
    return {
        f"{change.component}/{node_of(change.manifest or {})}": change.certain
        for change in found.changes
        if change.action is Action.RUN
    }


@pytest.mark.parametrize(("kept", "written"), [("t4-2", []), ("h100-1", ["t4-2"])])
def test_a_node_that_keeps_its_driver_keeps_its_validation(kept: str, written: list[str]) -> None:
    """Its label names another content only once its next driver is validated."""
    stack = upgraded()
    ref = ObjectRef("v1", "Node", "", "t4-2")
    label = FieldChange(label_path(VALIDATED), "before", "after")
    change = Change(component="startup_taint", action=Action.UPDATE, ref=ref, fields=(label,))
    empty = Plan(inventory="", release="", cluster="", components=("startup_taint",), changes=(change,))
    found = with_rollout_changes(empty, rollout(skipped=(kept,)), stack.situation, outdated=("t4-1", "t4-2"))
    assert [each.ref.name for each in found.changes if each.ref.kind == "Node"] == written


def test_a_left_out_node_is_not_validated() -> None:
    """New content is wanted, and the node keeps its driver."""
    stack = upgraded()
    del stack.passed["device_plugin_validation", "t4-2"]
    found = rollout(("t4-1",), skipped=("t4-2",))
    assert runs(made(stack, found, outdated=("t4-1", "t4-2"))).keys() == {f"{name}/t4-1" for name in VALIDATIONS}


def test_a_driver_that_has_proven_itself_is_not_validated_again() -> None:
    """An earlier run ended between the proof and the end of the node's rollout."""
    under_way = Schedule(under_way=("t4-1",))
    assert runs(made(upgraded(), under_way, proven=("t4-1",))) == {}
    assert runs(made(upgraded(), under_way)).keys() == {f"{name}/t4-1" for name in VALIDATIONS}


def test_a_node_that_gets_its_first_driver_is_not_called_skipped() -> None:
    """It has no driver to be replaced, and waits for no turn."""
    known = {node.name: dict(node.labels) for node in labelled().nodes}
    del known["t4-1"][DRIVER_GROUP]
    found = made(Stack(facts=with_node(labelled(), "t4-1", labels=known["t4-1"])), rollout(skipped=("t4-1", "h100-1")))
    assert [node for node, _ in (found.rollout or Schedule()).skipped] == ["h100-1"]


@pytest.mark.parametrize("stays", [(), ("t4-2",)])
def test_nodes_change_their_daemonset_and_the_empty_one_goes(stays: tuple[str, ...]) -> None:
    """Only when its last node has gone over, which is not certain before."""
    stack, old = regrouped(kernel_module_type="open")
    going = tuple(node for node in ("t4-1", "t4-2") if node not in stays)
    found = made(stack, rollout(*((node,) for node in going), skipped=stays))
    moved = {change.ref.name: change for change in found.changes if change.ref.kind == "Node"}
    assert tuple(sorted(moved)) == going
    (field,) = moved["t4-1"].fields
    assert (field.path, field.old, field.new) == (label_path(DRIVER_GROUP), "ubuntu22.04", "t4-ubuntu22.04")
    assert moved["t4-1"].nodes == ("t4-1",)
    deleted = [(change.ref, change.certain) for change in found.changes if change.action is Action.DELETE]
    assert deleted == ([] if stays else [(ref_of(old), False)])
