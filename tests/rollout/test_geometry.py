"""MIG devices of one node, step by step: each case is what the node is like, and what is done next."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_provision.rollout.node_steps import start
from gpu_provision.rollout.snapshot import (
    NO_DRIVER,
    BudgetDomain,
    DesiredContent,
    DriverPod,
    FleetNode,
    GpuUse,
    Pod,
    RestartMigManager,
    StateTransition,
    ValidationResult,
)
from gpu_provision.rollout.state_machine import decide_node
from gpu_provision.rollout.states import BEGAN_WITH, CORDONED, MIG_MANAGER, SINCE, STATE, TARGET

CONFIG, RESULT = "nvidia.com/mig.config", "nvidia.com/mig.config.state"
TRAINING = Pod(namespace="default", name="training", uid="7", owner="ReplicaSet training", use=GpuUse.REQUEST)
DRIVER = DriverPod(uid="1", digest="now", is_ready=True)
WITH_POD, ON_HOST = DesiredContent("now", mig="new"), DesiredContent(NO_DRIVER.digest, mig="new")


def node(state: str, config: str = "old", result: str = "success", *, on_host: bool = False) -> FleetNode:
    """Return a node with a current driver, in a state of the rollout to the configuration ``new``."""
    desired = ON_HOST if on_host else WITH_POD
    labels = {CONFIG: config, RESULT: result, STATE: state}
    notes = {SINCE: "100", TARGET: desired.target, CORDONED: "gpu-provision"} | ({} if on_host else {BEGAN_WITH: "1"})
    return FleetNode(
        name="n1",
        domain="all",
        desired=desired,
        labels={key: value for key, value in labels.items() if value},
        annotations=notes if state.endswith("required") else {},
        is_cordoned=state.endswith("required") and state != "upgrade-required",
        cordoned_by="gpu-provision",
        driver=None if on_host else DRIVER,
        validation_result=ValidationResult(passed=True),
        mig_manager="9",
    )


def outcome(found: FleetNode, now: float = 110) -> tuple[str, dict[str, str | None], str]:
    """Return the next state, the labels that are written, and why the node waits."""
    decision = decide_node(found, BudgetDomain(), now)
    move = next((each for each in decision.actions if isinstance(each, StateTransition)), None)
    return (move.state.value, dict(move.labels), "") if move else ("", {}, decision.wait_reason)


REQUEST = {CONFIG: "new", RESULT: None}


@pytest.mark.parametrize("on_host", [False, True], ids=["a driver pod", "a host driver"])
@pytest.mark.parametrize(
    ("state", "config", "result", "expected"),
    [
        ("upgrade-done", "old", "success", ("upgrade-required", {}, "")),
        ("upgrade-done", "new", "success", ("", {}, "")),
        ("upgrade-done", "new", "failed", ("upgrade-required", {}, "")),
        ("pod-restart-required", "old", "success", ("pod-restart-required", REQUEST, "")),
        ("pod-restart-required", "", "", ("pod-restart-required", REQUEST, "")),
        ("pod-restart-required", "new", "", ("", {}, "the MIG manager applies new (not begun)")),
        ("pod-restart-required", "new", "pending", ("", {}, "the MIG manager applies new (pending)")),
        ("pod-restart-required", "new", "rebooting", ("", {}, "the MIG manager applies new (rebooting)")),
        ("pod-restart-required", "new", "failed", ("upgrade-failed", {}, "")),
        ("pod-restart-required", "new", "success", ("validation-required", {}, "")),
        ("validation-required", "old", "success", ("pod-deletion-required", {}, "")),
        ("validation-required", "new", "success", ("uncordon-required", {}, "")),
        ("uncordon-required", "new", "success", ("upgrade-done", {}, "")),
    ],
)
def test_a_node_gets_its_mig_devices(
    state: str, config: str, result: str, expected: tuple[str, dict[str, str | None], str], *, on_host: bool
) -> None:
    assert outcome(node(state, config, result, on_host=on_host)) == expected


def test_mig_devices_wait_for_pods_and_for_the_manager() -> None:
    found = node("pod-restart-required")
    assert outcome(replace(found, pods=(TRAINING,)))[0] == "pod-deletion-required"
    assert outcome(replace(found, mig_manager=""))[2] == "the MIG manager is not ready"
    assert outcome(replace(found, mig_manager=""), now=9999)[0] == "upgrade-failed"


def test_a_driver_comes_before_the_mig_devices() -> None:
    found = node("pod-restart-required")
    behind = replace(found, driver=replace(DRIVER, digest="before"))
    assert outcome(behind) == ("", {}, "the driver pod to go")
    assert outcome(replace(found, driver=replace(DRIVER, is_ready=False)))[2].startswith("the driver is not ready")


def test_a_failed_request_is_withdrawn_and_made_to_another_manager() -> None:
    """The one that failed acts on another value of the label only, and may miss it."""
    move = start(node("upgrade-required", "new", "failed"), 100, None)
    assert dict(move.labels) == {CONFIG: None, RESULT: None}
    assert dict(move.annotations)[MIG_MANAGER] == "9"
    found = node("pod-restart-required", "", "")
    found = replace(found, annotations={**found.annotations, MIG_MANAGER: "9"})
    assert decide_node(found, BudgetDomain(), 110).actions == (RestartMigManager(node="n1", uid="9"),)
    assert outcome(replace(found, mig_manager="10")) == ("pod-restart-required", REQUEST, "")
    assert start(node("upgrade-required", "old", "success"), 100, None).labels == ()
