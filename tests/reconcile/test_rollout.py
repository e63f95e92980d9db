"""The actions of a rollout as patches and steps, and the states of its drivers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from gpu_provision.kube.client import KubeClient
from gpu_provision.model.cluster import ObjectRef, ref_of
from gpu_provision.model.progress import NodeState, State
from gpu_provision.model.rollout_policy import UpgradePolicy
from gpu_provision.planning.states import evaluate_states
from gpu_provision.planning.upgrades import DRIVER_KEPT, OUTDATED, UPGRADE_UNFINISHED
from gpu_provision.reconcile.desired_drivers import AWAITS_CONFIG, desired_drivers
from gpu_provision.reconcile.rollout import RolloutController
from gpu_provision.reconcile.rollout_states import (
    drivers_without_deadline,
    leaving_state,
    pending_validation_states,
    rollout_state,
    validation_results,
)
from gpu_provision.reconcile.steps import TransitionNode
from gpu_provision.rollout import states
from gpu_provision.rollout.snapshot import (
    NO_DRIVER,
    Cordon,
    DesiredContent,
    DriverPod,
    FleetNode,
    GpuUse,
    Pod,
    Snapshot,
    StackPresence,
    StateTransition,
    ValidationResult,
)
from gpu_provision.rollout.state_machine import Decision
from gpu_provision.rollout.state_machine import RolloutPhase as Phase
from gpu_provision.rollout.states import STATE, UpgradeState
from tests.planning.builders import Stack, labelled, outdated
from tests.reconcile.builders import FakeCache, node_object

CASES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
KEY = ("driver", "n1")


@pytest.mark.parametrize(
    ("state", "cordon", "label", "spec"),
    [
        (UpgradeState.FAILED, Cordon.KEEP, "upgrade-failed", {}),
        (UpgradeState.FAILED, Cordon.SET, "upgrade-failed", {"spec": {"unschedulable": True}}),
        (UpgradeState.UNKNOWN, Cordon.LIFT, None, {"spec": {"unschedulable": None}}),
    ],
)
def test_a_transition_is_one_patch_of_the_observed_node(
    state: UpgradeState, cordon: Cordon, label: str | None, spec: dict[str, Any]
) -> None:
    """State, memory and cordon never part; a write in between makes the server refuse. No label has an empty value."""
    memory = ((states.REASON, "no"), (states.SINCE, None))
    move = StateTransition(node="n1", revision="7", state=state, cordon=cordon, annotations=memory)
    patch = TransitionNode(KEY, ObjectRef("v1", "Node", "", "n1"), move).patch()
    metadata = {"resourceVersion": "7", "labels": {states.STATE: label}, "annotations": dict(memory)}
    assert patch == {"metadata": metadata, **spec}


@pytest.mark.parametrize(("observed", "is_observed"), [(0, False), (2, False), (3, True), (None, True)])
def test_a_template_is_observed_at_its_generation(observed: int | None, *, is_observed: bool) -> None:
    """A DaemonSet that does not exist yet has no earlier template."""
    stack = Stack()
    for manifest in stack.desired["driver"]:
        live = stack.members.pop(ref_of(manifest))
        if observed is not None:
            metadata, status = live["metadata"] | {"generation": 3}, {"observedGeneration": observed}
            stack.members[ref_of(manifest)] = {**live, "metadata": metadata, "status": status}
    assert {wish.is_template_observed for wish in desired_drivers(stack.situation).values()} == {is_observed}


OLD = DriverPod(uid="1", digest="old", is_ready=True)
NEW = DriverPod(uid="2", digest="new", is_ready=True)
STARTING = DriverPod(uid="2", digest="new", is_ready=False)


def fleet(label: str, driver: DriverPod | None = OLD) -> Snapshot:
    node = FleetNode(name="n1", domain="d", desired=DesiredContent("new"), labels={STATE: label}, driver=driver)
    return Snapshot(now=0, target="t", nodes=(node,))


def state(seen: Snapshot, phase: Phase, raw: tuple[State, str] = (State.PROGRESSING, OUTDATED), **fields: Any) -> Any:
    given = NodeState(component="driver", node="n1", state=raw[0], reason=raw[1])
    found = rollout_state(seen.nodes[0], Decision(phase=phase, **fields), given)
    assert found.step == seen.nodes[0].labels[STATE]
    return found.state, found.reason


@pytest.mark.parametrize("case", CASES["drivers"], ids=str)
def test_a_driver_stands_where_its_node_and_the_fleet_stand(case: list[str]) -> None:
    """What only a user's wish holds back is no failure; what needs a person is one."""
    label, driver, phase, expected, reason = case
    seen = fleet(label, {"OLD": OLD, "NEW": NEW, "STARTING": STARTING}.get(driver))
    assert state(seen, Phase[phase], wait_reasons={"n1": "why not"}) == (State[expected], reason)


def test_a_failure_is_final_and_an_end_needs_no_watch() -> None:
    """A new run tries once more, and does not fail before it has."""
    assert state(fleet("upgrade-failed"), Phase.PAUSED, failures={"n1": "no"}) == (State.FAILED, "no")
    assert state(fleet("upgrade-failed"), Phase.ROLLING)[0] is State.PROGRESSING
    stale = (State.PROGRESSING, f"{UPGRADE_UNFINISHED}: uncordon-required")
    assert state(fleet("upgrade-done", NEW), Phase.DONE, stale) == (State.READY, "")


@pytest.mark.parametrize(
    ("component", "found", "proof"),
    [
        ("driver_validation", (State.READY, ""), ValidationResult(passed=True)),
        ("driver_validation", (State.FAILED, "exit 1"), ValidationResult(passed=False, reason="exit 1")),
        ("driver_validation", (State.READY, f"not validated: the driver {DRIVER_KEPT}"), None),
        ("driver_validation", (State.PENDING, "has not run since the node booted"), None),
        ("device_plugin_validation", (State.READY, ""), None),
    ],
)
def test_the_validation_of_a_driver_is_its_proof(
    component: str, found: tuple[State, str], proof: ValidationResult | None
) -> None:
    raw = {(component, "n1"): NodeState(component=component, node="n1", state=found[0], reason=found[1])}
    assert validation_results(raw).get("n1") == proof


def test_a_driver_is_not_done_before_its_node_is_given_back() -> None:
    """Its own proof may begin, though, which is why it is ready for others."""
    seen, decision = fleet("validation-required", NEW), Decision(phase=Phase.ROLLING)
    ready = {KEY: NodeState(component="driver", node="n1", state=State.READY)}
    assert pending_validation_states(seen.nodes, decision, ready)[KEY].state is State.PROGRESSING
    assert pending_validation_states(fleet("upgrade-done", NEW).nodes, decision, ready) == {}


@pytest.mark.parametrize(
    ("label", "driver", "expected"),
    [
        ("upgrade-required", OLD, True),
        ("pod-restart-required", STARTING, True),
        ("", OLD, True),
        ("", STARTING, False),
        ("upgrade-done", STARTING, False),
    ],
)
def test_drivers_in_a_rollout_have_its_deadlines(label: str, driver: DriverPod, *, expected: bool) -> None:
    """A driver that starts by itself has the deadline of every component."""
    assert (KEY in drivers_without_deadline(fleet(label, driver).nodes)) is expected


@pytest.mark.parametrize("case", CASES["leaving"], ids=str)
def test_a_node_that_leaves_stands_where_its_rollout_stands(case: list[Any]) -> None:
    """Its labels are not written yet only while no pod would lose a GPU, and after the marks of its rollout."""
    labels, is_used, phase, fields, auto_upgrade, expected, reason = case
    pods = (Pod(namespace="default", name="train", uid="3", use=GpuUse.REQUEST),) if is_used else ()
    node = FleetNode(name="n1", domain="d", desired=NO_DRIVER, labels=labels, pods=pods, stack=StackPresence.LABELLED)
    raw = NodeState(component="node_labels", node="n1", state=State.LEAVING)
    found = leaving_state(node, Decision(phase=Phase[phase], **fields), raw, UpgradePolicy(auto_upgrade=auto_upgrade))
    assert (found.state, found.reason) == (State[expected], reason)


def test_a_rollout_leaves_nodes_alone_until_their_reboot() -> None:
    """The Machine Config Operator drains the node by itself, and its driver starts in the new boot."""
    stack = Stack(facts=labelled())
    for node in ("t4-1", "t4-2"):
        stack.put(outdated(stack.pod("driver", node)))
    raw = evaluate_states(stack.situation)
    raw["machine_config", "t4-1"] = NodeState(component="machine_config", node="t4-1", state=State.PROGRESSING)
    nodes = [node_object(each.name, dict(each.labels)) for each in stack.context.facts.nodes]
    api = cast("KubeClient", SimpleNamespace(eviction_version=lambda: "policy/v1"))
    controller = RolloutController(api, stack.inventory)
    controller.update(stack.situation, FakeCache({ref_of(each): each for each in nodes}), raw, {})
    assert controller.nodes["t4-1"].exclusion_reason == AWAITS_CONFIG
    assert "t4-1" not in {action.node for action in controller.decision.actions}
    assert "t4-2" in {action.node for action in controller.decision.actions}
