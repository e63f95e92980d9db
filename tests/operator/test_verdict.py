from __future__ import annotations

from typing import Any

import pytest

from gpu_provision.model.progress import NodeState, State
from gpu_provision.operator.conditions import Halt, Reason
from gpu_provision.operator.verdict import Phase, failures, verdict
from tests.operator.test_conditions import failed, status
from tests.planning.builders import Stack


def of(generation: int = 3, **standing: Any) -> dict[str, Any]:
    """A stack with the status that a controller writes."""
    return {"metadata": {"name": "prod", "generation": generation}, "status": status(Stack(), **standing)}


HALT = Halt(Reason.INVALID, "no such release")


@pytest.mark.parametrize(
    ("stack", "phase"),
    [
        (of(), Phase.READY),
        (of(generation=4), Phase.UNSEEN),
        (of(is_working=True), Phase.WORKING),
        (of(states=failed(), is_working=True), Phase.WORKING),
        (of(states=failed()), Phase.FAILED),
        (of(halt=HALT), Phase.FAILED),
        ({"metadata": {"generation": 1}}, Phase.UNSEEN),
    ],
    ids=["ready", "older", "working", "trying-again", "failed", "halted", "new"],
)
def test_a_status_comes_to_a_verdict(stack: dict[str, Any], phase: Phase) -> None:
    """A run that is under way may mend what has failed before."""
    assert verdict(stack).phase is phase


def test_a_failure_has_the_reason_and_the_message_of_its_condition() -> None:
    """The controller's own words."""
    assert verdict(of(halt=HALT)).told == "InvalidSpec: no such release"


def test_nodes_that_failed_are_found_with_component_and_cause() -> None:
    """So that the end is told as that of any run; what only waits is no failure."""
    waiting = NodeState(component="gfd", node="t4-2", state=State.PROGRESSING, reason="ContainerCreating")
    found = failures(of(states={**failed("t4-1"), ("gfd", "t4-2"): waiting}))
    assert found == {("driver", "t4-1"): "it does not build"}


def test_a_component_that_fails_on_no_node_is_found_as_a_whole() -> None:
    """Such as a Deployment."""
    gone = NodeState(component="nfd", node="", state=State.FAILED, reason="ImagePullBackOff")
    assert failures(of(states={("nfd", ""): gone}))["nfd", ""] == "ImagePullBackOff"
