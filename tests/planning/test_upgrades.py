"""States of drivers between two contents, from pods and Node objects."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_provision.components.labels import DRIVER_GROUP, MIG_CONFIG, MIG_STATE, MIG_SUCCESS, NFD_OSTREE
from gpu_provision.model.cluster import ref_of
from gpu_provision.model.plan import Action
from gpu_provision.model.progress import NodeState, State
from gpu_provision.model.rollout_policy import UpgradePolicy
from gpu_provision.planning.states import evaluate_states
from gpu_provision.planning.upgrades import DRIVER_KEPT, KEPT_UNTIL_DELETED, LACKS_TOOLKIT, OUTDATED, UPGRADE_UNFINISHED
from gpu_provision.planning.verdicts import NOT_VALIDATED
from gpu_provision.reconcile.desired_drivers import desired_drivers
from tests.components.builders import inventory, inventory_with, observed_facts, with_spec
from tests.planning.builders import Stack, labelled, outdated, regrouped, terminating, with_node

CASES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
OFF = UpgradePolicy(auto_upgrade=False)
OWN_GEOMETRY = {
    "version": "v1",
    "mig-configs": {"own": [{"devices": "all", "mig-enabled": True, "mig-devices": {"3g.40gb": 2}}]},
}


def upgrade(
    *,
    is_off: bool = False,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    is_old: bool = False,
) -> dict[str, NodeState]:
    """Return the states of t4-1, by component, on a cluster that is otherwise as declared."""
    chosen = with_spec("driver", upgrade_policy=OFF) if is_off else inventory()
    pools = {
        name: replace(pool, driver=replace(pool.driver, upgrade_policy=chosen.specs.driver.upgrade_policy))
        for name, pool in chosen.pools.items()
    }
    facts = labelled(chosen=replace(chosen, pools=pools))
    node = next(each for each in facts.nodes if each.name == "t4-1")
    facts = with_node(facts, "t4-1", labels={**node.labels, **(labels or {})}, annotations=annotations or {})
    stack = Stack(replace(chosen, pools=pools), facts)
    if is_old:
        stack.put(outdated(stack.pod("driver", "t4-1")))
        del stack.passed["device_plugin_validation", "t4-1"]
    return {name: state for (name, where), state in evaluate_states(stack.situation).items() if where == "t4-1"}


@pytest.mark.parametrize("case", CASES["halfway"], ids=str)
def test_a_node_that_a_rollout_left_halfway_is_not_ready(case: dict[str, Any]) -> None:
    """Whatever its pod is like; else no run would go on with it."""
    node = {key: value for key, value in case.items() if key != "reason"}
    driver = upgrade(**node)["driver"]
    assert (driver.state, driver.reason) == (State.PROGRESSING, f"{UPGRADE_UNFINISHED}: {case['reason']}")
    assert upgrade(**node, is_old=True)["driver"].state is State.PROGRESSING


@pytest.mark.parametrize("node", CASES["at_rest"], ids=str)
def test_a_node_at_rest_is_as_its_pod(node: dict[str, Any]) -> None:
    """Also one that has been upgraded, or that is in other hands."""
    assert upgrade(**node)["driver"].state is State.READY


@pytest.mark.parametrize("case", CASES["kept"], ids=str)
def test_a_kept_old_driver_is_not_validated(case: dict[str, Any]) -> None:
    """A validation would put on record that content works which is not there."""
    node = {key: value for key, value in case.items() if key != "reason"}
    states_of_node = upgrade(**node, is_old=True)
    driver, proof = states_of_node["driver"], states_of_node["device_plugin_validation"]
    assert (driver.state, driver.reason.startswith(DRIVER_KEPT)) == (State.READY, True)
    assert case["reason"] in driver.reason
    assert (proof.state, proof.reason) == (State.READY, NOT_VALIDATED)


@pytest.mark.parametrize(("tags", "is_lacking"), [({}, True), ({"418.94.1-0": "dtk"}, False)])
def test_a_driver_stays_while_its_release_has_no_toolkit(tags: dict[str, str], *, is_lacking: bool) -> None:
    """Another one would fail to build on a node that works."""
    release = {"os": "rhcos4.18", "labels": {NFD_OSTREE: "418.94.1-0"}}
    coreos = dict.fromkeys(("t4-1", "t4-2", "h100-1"), release)
    cluster = {"openshift": {"version": "4.18.9", "driver_toolkits": tags}}
    declared = inventory_with({"openshift": {"machine_config": False}})
    stack = Stack(declared, labelled(observed_facts({"nodes": coreos, "cluster": cluster}), declared))
    stack.put(outdated(stack.pod("driver", "t4-1")))
    driver = evaluate_states(stack.situation)["driver", "t4-1"]
    expected = (State.READY, f"{DRIVER_KEPT}: {LACKS_TOOLKIT}") if is_lacking else (State.PROGRESSING, OUTDATED)
    assert (driver.state, driver.reason) == expected
    left_out = {each.left_out for each in desired_drivers(stack.situation).values()}
    assert left_out == {LACKS_TOOLKIT if is_lacking else ""}


def test_an_operand_waits_for_its_deletion_on_delete() -> None:
    """Its pod works, so a run does not wait for it; the validator's pod is replaced, as runs validate by it."""
    stack = Stack(inventory_with({"daemonsets": {"update_strategy": "OnDelete"}}))
    for name in ("gfd", "validator"):
        stack.put(outdated(stack.pod(name, "t4-1")))
    found = evaluate_states(stack.situation)
    assert (found["gfd", "t4-1"].state, found["gfd", "t4-1"].reason) == (State.READY, KEPT_UNTIL_DELETED)
    assert (found["validator", "t4-1"].state, found["validator", "t4-1"].reason) == (State.PROGRESSING, OUTDATED)


@pytest.mark.parametrize(("strategy", "nodes"), [("OnDelete", ()), ("RollingUpdate", ("h100-1", "t4-1", "t4-2"))])
def test_a_plan_names_no_restart_on_delete(strategy: str, nodes: tuple[str, ...]) -> None:
    stack = Stack(inventory_with({"daemonsets": {"update_strategy": strategy}}))
    ref = stack.edit("gfd", image="registry.example.com/earlier")
    (change,) = (each for each in stack.plan.changes if each.ref == ref)
    assert change.nodes == nodes
    assert change.effects == ((KEPT_UNTIL_DELETED,) if strategy == "OnDelete" else ())


def test_pods_kept_until_then_restart_by_rolling_updates_again() -> None:
    """Only those that differ: the controller replaces no other."""
    stack = Stack(inventory_with({}))
    stack.put(outdated(stack.pod("gfd", "t4-1")))
    ref = ref_of(stack.daemonset("gfd"))
    live = stack.members[ref]
    stack.members[ref] = {**live, "spec": {**live["spec"], "updateStrategy": {"type": "OnDelete"}}}
    (change,) = (each for each in stack.plan.changes if each.ref == ref)
    assert change.nodes == ("t4-1",)


NODES = ("t4-1", "t4-2")


def test_a_node_stays_with_its_daemonset_until_the_rollout_comes() -> None:
    """Else its driver would be replaced under whatever runs there, on all nodes of the pool at once."""
    stack, old = regrouped(kernel_module_type="open")
    seen = stack.situation
    groups = {
        item["metadata"]["name"]: item["metadata"]["labels"][DRIVER_GROUP] for item in seen.desired["node_labels"]
    }
    assert groups["t4-1"] == groups["t4-2"] == old["spec"]["template"]["spec"]["nodeSelector"][DRIVER_GROUP]
    found = evaluate_states(seen)
    assert found["driver", "t4-1"].reason == OUTDATED
    assert found["node_labels", "t4-1"].state is State.READY
    assert found["driver", "h100-1"].state is State.READY
    assert not [change for change in stack.plan.changes if change.ref.kind == "Node"]


def test_the_daemonset_stays_as_long_as_it_has_pods_there() -> None:
    stack, old = regrouped(kernel_module_type="open")
    deleted = {change.ref for change in stack.plan.changes if change.action is Action.DELETE}
    assert ref_of(old) not in deleted
    for node in NODES:
        stack.put(terminating(stack.pod("driver", node)))
    deleted = {change.ref for change in stack.plan.changes if change.action is Action.DELETE}
    assert ref_of(old) in deleted


@pytest.mark.parametrize("node", NODES)
def test_a_node_with_the_same_installation_moves_at_once(node: str) -> None:
    """Its pod restarts, and installs nothing."""
    stack, _ = regrouped()
    seen = stack.situation
    labelled_now = next(item for item in seen.desired["node_labels"] if item["metadata"]["name"] == node)
    assert labelled_now["metadata"]["labels"][DRIVER_GROUP] == seen.node_labels[node][DRIVER_GROUP]
    found = evaluate_states(seen)["driver", node]
    assert (found.state, found.reason) == (State.PROGRESSING, "goes over to another DaemonSet")


IMPORTED = inventory_with(
    {
        "mig_manager": {"config": {"data": OWN_GEOMETRY}},
        "mig": {"strategy": "mixed"},
        "pools": {"h100": {"mig": {"config": "own"}}},
    }
)


@pytest.mark.parametrize(
    ("labels", "is_old", "is_kept"),
    [
        ({}, False, False),
        ({}, True, True),  # a MIG manager that does not know the new name would fail
        ({MIG_STATE: "failed"}, False, True),
        ({"nvidia.com/mig-3g.40gb.count": "7"}, False, True),  # other devices: a rollout
    ],
)
def test_a_request_that_is_fulfilled_only_gets_its_name(labels: dict[str, str], is_old: bool, is_kept: bool) -> None:  # noqa: FBT001 -- a parameter
    """As after an import: without a rollout, and not before the MIG manager knows the name."""
    facts = labelled(chosen=IMPORTED)
    [node] = [each for each in facts.nodes if each.name == "h100-1"]
    requested = {MIG_CONFIG: "own", MIG_STATE: MIG_SUCCESS, "nvidia.com/mig-3g.40gb.count": "16"}
    stack = Stack(IMPORTED, with_node(facts, "h100-1", labels={**node.labels, **requested, **labels}))
    if is_old:
        stack.put(outdated(stack.pod("mig_manager", "h100-1")))
    wanted = {each["metadata"]["name"]: each for each in stack.situation.desired["node_labels"]}
    config = wanted["h100-1"]["metadata"]["labels"][MIG_CONFIG]
    assert (config == "own") is is_kept
    assert is_kept or config == stack.situation.node_labels["h100-1"][MIG_CONFIG]
