"""What a plan says of a rollout besides new drivers; tests/scenarios/test_promises.py shows that runs do it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_provision.components.labels import DRIVER_GROUP, VALIDATED
from gpu_provision.diagnostics.pods import node_of
from gpu_provision.model.cluster import Manifest, ObjectRef, ref_of
from gpu_provision.model.plan import Action, Change, FieldChange, NodePreview, Plan, Schedule, Wave
from gpu_provision.planning.plan import label_path, plan
from gpu_provision.planning.rollout_changes import with_rollout_changes
from tests.components.builders import inventory
from tests.planning.builders import Stack, labelled, outdated, with_node

WHY = "driver 580 is wanted"
VALIDATIONS = ("device_plugin_validation", "driver_validation")


def rollout(*waves: tuple[str, ...], skipped: tuple[str, ...] = ()) -> Schedule:
    """Return a rollout of these nodes."""
    told = tuple(Wave(nodes=tuple(NodePreview(node=node, why=WHY) for node in nodes)) for nodes in waves)
    return Schedule(waves=told, skipped=tuple((node, "the node is NotReady") for node in skipped))


def upgraded() -> Stack:
    """Return a stack whose drivers on T4 nodes are of another installation; everything has passed."""
    stack = Stack()
    for node in ("t4-1", "t4-2"):
        stack.put(outdated(stack.pod("driver", node)))
    return stack


def made(stack: Stack, found: Schedule, **options: tuple[str, ...]) -> Plan:
    """Return the plan with its rollout."""
    before = plan(stack.context, stack.desired, stack.observed)
    return with_rollout_changes(before, found, stack.situation, **options)


def runs(found: Plan) -> dict[str, bool]:
    """Return the validations that run, as component/node, and whether that is certain."""
    return {
        f"{change.component}/{node_of(change.manifest or {})}": change.certain
        for change in found.changes
        if change.action is Action.RUN
    }


def test_each_node_whose_driver_restarts_is_validated_again() -> None:
    """Also where the same content has passed; a later wave follows only if the first one goes well."""
    found = runs(made(upgraded(), rollout(("t4-1",), ("t4-2",))))
    assert found == {f"{name}/{node}": node == "t4-1" for name in VALIDATIONS for node in ("t4-1", "t4-2")}


@pytest.mark.parametrize(("kept", "written"), [("t4-2", []), ("h100-1", ["t4-2"])])
def test_a_node_that_keeps_its_driver_says_what_it_said(kept: str, written: list[str]) -> None:
    """Its label names another content only once its next driver is validated."""
    stack = upgraded()
    ref = ObjectRef("v1", "Node", "", "t4-2")
    label = FieldChange(label_path(VALIDATED), "before", "after")
    change = Change(component="startup_taint", action=Action.UPDATE, ref=ref, fields=(label,))
    empty = Plan(inventory="", release="", cluster="", components=("startup_taint",), changes=(change,))
    found = with_rollout_changes(empty, rollout(skipped=(kept,)), stack.situation, outdated=("t4-1", "t4-2"))
    assert [each.ref.name for each in found.changes if each.ref.kind == "Node"] == written


def test_a_node_that_is_left_out_is_not_validated_again() -> None:
    """It keeps its driver, and what has passed holds."""
    assert runs(made(upgraded(), rollout(("t4-1",), skipped=("t4-2",)))).keys() == {f"{n}/t4-1" for n in VALIDATIONS}


def test_what_a_left_out_node_has_not_got_is_not_validated() -> None:
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


def test_a_driver_that_is_left_as_it_is_restarts_no_pod() -> None:
    """Whatever its DaemonSet says: with auto_upgrade off, or where nothing may be evicted."""
    stack = Stack()
    ref = ref_of(stack.daemonset("driver"))
    change = Change(component="driver", action=Action.UPDATE, ref=ref, nodes=("t4-1", "t4-2"))
    empty = plan(stack.context, stack.desired, stack.observed)
    for kept, told in ((("t4-2",), (("t4-1",), ())), (("t4-1", "t4-2"), ((), ("no driver restart",)))):
        found = with_rollout_changes(replace(empty, changes=(change,)), rollout(skipped=kept), stack.situation)
        assert [(each.nodes, each.effects) for each in found.changes] == [told]


def test_a_node_that_gets_its_first_driver_is_not_called_skipped() -> None:
    """It has no driver to be replaced, and waits for no turn."""
    known = {node.name: dict(node.labels) for node in labelled().nodes}
    del known["t4-1"][DRIVER_GROUP]
    found = made(Stack(facts=with_node(labelled(), "t4-1", labels=known["t4-1"])), rollout(skipped=("t4-1", "h100-1")))
    assert [node for node, _ in (found.rollout or Schedule()).skipped] == ["h100-1"]


def regrouped() -> tuple[Stack, Manifest]:
    """Return a stack whose T4 pool has just been given another driver of its own, and what serves it until then."""
    before, chosen = Stack(), inventory()
    pool = chosen.pools["t4"]
    own = replace(pool, overrides_driver=True, driver=replace(pool.driver, kernel_module_type="open"))
    stack = Stack(replace(chosen, pools={**chosen.pools, "t4": own}), labelled(chosen=chosen))
    old = before.daemonset("driver", "t4-1")
    stack.members[ref_of(old)] = before.members[ref_of(old)]
    for node in ("t4-1", "t4-2"):
        stack.put(before.pod("driver", node))
    return stack, old


@pytest.mark.parametrize("stays", [(), ("t4-2",)])
def test_nodes_change_their_daemonset_and_the_empty_one_goes(stays: tuple[str, ...]) -> None:
    """Only when its last node has gone over, which is not certain before."""
    stack, old = regrouped()
    going = tuple(node for node in ("t4-1", "t4-2") if node not in stays)
    found = made(stack, rollout(*((node,) for node in going), skipped=stays))
    moved = {change.ref.name: change for change in found.changes if change.ref.kind == "Node"}
    assert tuple(sorted(moved)) == going
    (field,) = moved["t4-1"].fields
    assert (field.path, field.old, field.new) == (label_path(DRIVER_GROUP), "ubuntu22.04", "t4-ubuntu22.04")
    assert moved["t4-1"].nodes == ("t4-1",)
    deleted = [(change.ref, change.certain) for change in found.changes if change.action is Action.DELETE]
    assert deleted == ([] if stays else [(ref_of(old), False)])
