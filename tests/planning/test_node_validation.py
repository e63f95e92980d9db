"""When a node says that it is validated, and when it no longer does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpu_provision.components import labels
from gpu_provision.model.cluster import Manifest
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import Plan
from gpu_provision.model.progress import NodeState, State
from gpu_provision.model.specs import StartupTaintSpec
from gpu_provision.planning.states import evaluate_states
from gpu_provision.planning.validation import LABEL_PENDING, NEVER_RUN, STARTUP_TAINT
from tests.components.builders import inventory, specs
from tests.planning.builders import Stack, labelled, outdated, validation_pod, with_node
from tests.planning.builders import restarted as restarted_at

NODE, PLUGIN_PROOF = "t4-1", "device_plugin_validation"
TAINT = {"key": labels.NOT_VALIDATED, "effect": "NoSchedule"}
OTHER = {"key": "example.com/team", "value": "a", "effect": "NoSchedule"}
CORDON = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


def asking(*, enabled: bool = True, **fields: Any) -> Inventory:
    """Return an inventory with the startup taint on, or off."""
    return inventory(specs=specs(startup_taint=StartupTaintSpec(enabled=enabled)), **fields)


def stack(*, told: bool = True, tainted: bool = False, enabled: bool = True, **node: Any) -> Stack:
    """Return a stack in which all has passed, and one node of it.

    Args:
        told: Whether the nodes say so.
        tainted: Whether the node still has the startup taint.
    """
    chosen = asking(enabled=enabled)
    facts = labelled(chosen=chosen)
    content = {item["metadata"]["name"]: item["metadata"]["labels"] for item in Stack(asking()).desired[STARTUP_TAINT]}
    nodes = tuple(
        replace(each, labels={**each.labels, **(content.get(each.name, {}) if told else {})}) for each in facts.nodes
    )
    taints = (CORDON, TAINT, OTHER) if tainted else (OTHER,)
    return Stack(chosen, with_node(replace(facts, nodes=nodes), NODE, taints=taints, **node))


def with_labels(other: dict[str, str]) -> Stack:
    """Return a stack in which all has passed, and one node has other labels."""
    facts = stack().context.facts
    node = next(each for each in facts.nodes if each.name == NODE)
    return Stack(asking(), with_node(facts, NODE, labels={**node.labels, **other}))


def forget(made: Stack) -> Manifest:
    """Forget that the device plugin's validation has passed; return the pod that is to run again."""
    del made.passed[PLUGIN_PROOF, NODE]
    return next(item for item in made.validations() if NODE in item["metadata"]["name"])


def forget_driver(made: Stack) -> None:
    """Have the validator's pod run its vectorAdd again."""
    pod = made.pod("validator", NODE)
    made.put({**pod, "status": {"phase": "Pending"}})


def state(made: Stack) -> NodeState:
    return evaluate_states(made.situation)[STARTUP_TAINT, NODE]


def label_for_now(made: Stack, node: str = NODE) -> Any:
    """Return what the labels of a node say of its validation, as desired for now: ``...`` for nothing."""
    found = made.situation.desired["node_labels"]
    wanted = next(item["metadata"]["labels"] for item in found if item["metadata"]["name"] == node)
    return wanted.get(labels.VALIDATED, ...)


def changes(made: Stack) -> dict[str, Any]:
    """Return the changed fields of the node, as a plan has them: path -> new value."""
    found: Plan = made.plan
    return {
        field.path: field.new
        for change in found.changes
        if change.ref.kind == "Node" and change.ref.name == NODE
        for field in change.fields
    }


LABEL, NO_TAINT = f'metadata.labels."{labels.VALIDATED}"', f"spec.taints[{labels.NOT_VALIDATED}]"


@pytest.mark.parametrize(
    ("told", "tainted", "reason", "written"),
    [
        (True, False, "", set()),
        (False, True, LABEL_PENDING, {LABEL, NO_TAINT}),
        (True, True, LABEL_PENDING, {NO_TAINT}),
    ],
    ids=["it says so", "it is to say so", "its taint has come back"],
)
def test_a_node_on_which_all_has_passed_says_so(told: bool, tainted: bool, reason: str, written: set[str]) -> None:  # noqa: FBT001  columns of a table
    made = stack(told=told, tainted=tainted)
    assert (state(made).state, state(made).reason) == (State.PROGRESSING if reason else State.READY, reason)
    assert changes(made).keys() == written
    assert not told or label_for_now(made) is ...


@pytest.mark.parametrize(("forgets", "why"), [(forget, NEVER_RUN), (forget_driver, "Pending")])
def test_nothing_is_said_while_any_validation_is_to_run(forgets: Any, why: str) -> None:
    made = stack(told=False, tainted=True)
    forgets(made)
    assert (state(made).state, state(made).reason) == (State.PENDING, why)


def reboot(made: Stack) -> None:
    """The machine comes back: what has passed was of another boot, the driver starts."""
    forget_driver(made)
    made.put({**made.pod("driver", NODE), "status": {"phase": "Running"}})


def edited(made: Stack) -> None:
    """What has passed is of the content before an edit of the inventory, which has replaced nothing yet."""
    key = PLUGIN_PROOF, NODE
    made.passed[key] = f"earlier-content.{made.passed[key].partition('.')[2]}"


def waiting(made: Stack) -> None:
    """The node's turn in the rollout is still to come."""
    edited(made)
    made.put(outdated(made.pod("driver", NODE)))


def waiting_revalidated(made: Stack) -> None:
    """The validator's pod was replaced, and the vectorAdd of the new one has not ended."""
    waiting(made)
    made.put({**made.pod("validator", NODE), "status": {"phase": "Pending"}})


def waiting_rebooted(made: Stack) -> None:
    """The machine has rebooted while it waits."""
    waiting(made)
    boot = next(each for each in made.context.facts.nodes if each.name == NODE)
    again = {target.name: target for target in made.context.targets}[NODE]
    changed = replace(again, facts=replace(boot, boot_id="another"))
    targets = tuple(changed if each.name == NODE else each for each in made.context.targets)
    made.context = replace(made.context, targets=targets)


def another(made: Stack, component: str) -> None:
    """A pod was replaced by another one of the same content."""
    made.put(restarted_at(made.pod(component, NODE), "2026-11-21T08:00:00Z"))


def failed(made: Stack) -> None:
    """What ran is replaced, and does not work."""
    made.put(validation_pod(forget(made), "Failed"))


def unrecorded(made: Stack) -> None:
    """A run was killed between a validation's success and its record."""
    made.put(validation_pod(forget(made), "Succeeded"))


@pytest.mark.parametrize("happens", [reboot, failed, waiting_rebooted])
def test_a_label_goes_when_its_content_does_not_run_any_more(happens: Any) -> None:
    made = stack()
    happens(made)
    assert label_for_now(made) is None
    assert evaluate_states(made.situation)["node_labels", NODE].state is State.PROGRESSING
    assert label_for_now(made, "t4-2") is ...


@pytest.mark.parametrize("happens", [waiting, waiting_revalidated, unrecorded])
def test_a_label_stays_while_what_was_validated_runs(happens: Any) -> None:
    """Else every node of a fleet would lose it at once, and get it back only with the end of a rollout."""
    made = stack()
    happens(made)
    assert label_for_now(made) is ...
    assert evaluate_states(made.situation)["node_labels", NODE].state is State.READY


def test_a_node_that_keeps_its_driver_keeps_its_label() -> None:
    """A plan that says otherwise would never be empty."""
    made = with_labels({"nvidia.com/gpu-driver-upgrade.skip": "true", labels.VALIDATED: "of-earlier-content"})
    waiting(made)
    assert state(made).state is State.READY
    assert changes(made) == {}


def test_a_node_on_which_nothing_is_validated_says_nothing() -> None:
    """By a user's label; the taint stays, which a finding of the plan tells."""
    made = with_labels({labels.DEPLOY_OPERANDS: "false"})
    assert (STARTUP_TAINT, NODE) not in evaluate_states(made.situation)
    assert label_for_now(made) is None


def test_where_it_is_off_label_and_taint_go() -> None:
    """No other program would ever take the taint off."""
    made = stack(enabled=False, tainted=True)
    forget(made)
    assert changes(made) == {LABEL: None, NO_TAINT: None}
    assert STARTUP_TAINT not in made.desired


def test_a_node_that_leaves_the_inventory_loses_both() -> None:
    before = stack(tainted=True)
    left = asking(nodes=tuple(node for node in inventory().nodes if node.name != NODE))
    assert changes(Stack(left, before.context.facts)).keys() >= {LABEL, NO_TAINT}


def test_the_plan_says_that_a_label_goes_for_a_while() -> None:
    """The device plugin's pod is replaced, and the label is the same before and after."""
    made = stack()
    made.put(outdated(made.pod("device_plugin", NODE)))
    (change,) = (each for each in made.plan.changes if each.ref.kind == "Node")
    assert (change.component, change.ref.name, change.fields) == ("startup_taint", "t4-1", ())
    assert change.effects == (f"{labels.VALIDATED} goes until the validations have passed on t4-1",)
