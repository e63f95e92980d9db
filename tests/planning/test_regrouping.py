"""Nodes whose driver is to come from another DaemonSet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_provision.components.labels import DRIVER_GROUP
from gpu_provision.model.cluster import Manifest, ref_of
from gpu_provision.model.plan import Action, Plan
from gpu_provision.model.progress import State
from gpu_provision.planning.plan import plan
from gpu_provision.planning.states import states
from gpu_provision.planning.upgrades import OUTDATED
from tests.components.builders import inventory
from tests.planning.builders import Stack, labelled, terminating

NODES = ("t4-1", "t4-2")


def regrouped(**driver: str) -> tuple[Stack, Manifest]:
    """Return a stack whose T4 pool has just been given a driver of its own, and the DaemonSet that serves it still."""
    before = Stack()
    chosen = inventory()
    pool = chosen.pools["t4"]
    own = replace(pool, overrides_driver=True, driver=replace(pool.driver, **driver))
    after = replace(chosen, pools={**chosen.pools, "t4": own})
    stack = Stack(after, labelled(chosen=chosen))
    old = before.daemonset("driver", "t4-1")
    wanted = stack.daemonset("driver", "h100-1")
    assert old["metadata"]["name"] != wanted["metadata"]["name"]
    stack.members[ref_of(old)] = before.members[ref_of(old)]
    for node in NODES:
        stack.put(before.pod("driver", node))
    return stack, old


def planned(stack: Stack) -> Plan:
    return plan(stack.context, stack.desired, stack.observed)


def test_a_node_stays_with_its_daemonset_until_the_rollout_comes() -> None:
    """Else its driver would be replaced under whatever runs there, on all nodes of the pool at once."""
    stack, old = regrouped(kernel_module_type="open")
    seen = stack.situation
    groups = {
        item["metadata"]["name"]: item["metadata"]["labels"][DRIVER_GROUP] for item in seen.desired["node_labels"]
    }
    assert groups["t4-1"] == groups["t4-2"] == old["spec"]["template"]["spec"]["nodeSelector"][DRIVER_GROUP]
    found = states(seen)
    assert found["driver", "t4-1"].reason == OUTDATED
    assert found["node_labels", "t4-1"].state is State.READY
    assert found["driver", "h100-1"].state is State.READY
    assert not [change for change in planned(stack).changes if change.ref.kind == "Node"]


def test_the_daemonset_stays_as_long_as_it_has_pods_there() -> None:
    stack, old = regrouped(kernel_module_type="open")
    deleted = {change.ref for change in planned(stack).changes if change.action is Action.DELETE}
    assert ref_of(old) not in deleted
    for node in NODES:
        stack.put(terminating(stack.pod("driver", node)))
    deleted = {change.ref for change in planned(stack).changes if change.action is Action.DELETE}
    assert ref_of(old) in deleted


@pytest.mark.parametrize("node", NODES)
def test_a_node_whose_installation_stays_the_same_goes_over_at_once(node: str) -> None:
    """Its pod restarts, and installs nothing."""
    stack, _ = regrouped()
    seen = stack.situation
    labelled_now = next(item for item in seen.desired["node_labels"] if item["metadata"]["name"] == node)
    assert labelled_now["metadata"]["labels"][DRIVER_GROUP] == seen.node_labels[node][DRIVER_GROUP]
    found = states(seen)["driver", node]
    assert (found.state, found.reason) == (State.PROGRESSING, "goes over to another DaemonSet")


def test_the_plan_names_all_that_comes_of_going_over_at_once() -> None:
    """The pods that restart, both validations, and the DaemonSet that is left without a node: only after that."""
    stack, old = regrouped()
    changes = planned(stack).changes
    assert [(change.ref.name, change.nodes) for change in changes if change.ref.kind == "Node"] == [
        (node, (node,)) for node in NODES
    ]
    runs = [change.component for change in changes if change.action is Action.RUN]
    assert sorted(runs) == ["device_plugin_validation"] * 2 + ["driver_validation"] * 2
    assert (changes[-1].action, changes[-1].ref, changes[-1].certain) == (Action.DELETE, ref_of(old), False)
