"""The progress of a run and the timeline of each node; test_progress.yaml has the cases."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.model.progress import Event, State, Transition
from gpu_provision.output.progress import HEARTBEAT, Progress, is_under_way, lines, timelines_of
from gpu_provision.rollout.states import UpgradeState
from tests.data_file import document

DATA = document(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


def _event(component: str, node: str, state: str, message: str = "", step: str = "") -> Event:
    return Event(component=component, node=node, state=State(state), message=message, step=step)


@pytest.mark.parametrize("case", DATA["events"], ids=lambda case: case["name"])
def test_a_run_says_what_a_reader_would_act_on(case: dict[str, Any]) -> None:
    """And a terminal the current state."""
    progress = Progress(0.0)
    for event in case["events"]:
        progress.observe(_event(*event))
    assert progress.new_lines(1.0) == case["news"]
    assert progress.current(5.0) == f"   5 s  {case['current']}"
    assert progress.heartbeat(61.0).endswith(case["current"])


def test_the_heartbeat_names_what_is_awaited_and_why() -> None:
    """After thirty seconds of silence, and not once everything has settled. Equal steps of nodes share a line."""
    progress = Progress(0.0)
    progress.observe(_event("driver", "gpu-01", "ready"))
    progress.observe(_event("driver", "gpu-03", "progressing", "ImagePullBackOff"))
    progress.new_lines(2.0)
    assert progress.heartbeat(2.0 + HEARTBEAT - 0.1) == ""
    assert progress.heartbeat(2.0 + HEARTBEAT) == "waiting 32 s for driver 1/2 ready; gpu-03: ImagePullBackOff"
    assert progress.heartbeat(3.0 + HEARTBEAT) == ""
    for number in (1, 2, 3):
        progress.observe(_event("driver", f"gpu-0{number}", "failed"))
    assert progress.new_lines(40.0) == ["! driver gpu-01..03 failed"]
    assert (progress.heartbeat(1000.0), progress.current(1000.0)) == ("", "")


def test_a_rollout_tells_its_wave_and_the_time_left() -> None:
    """The time is that of the nodes so far; before the first one is done nothing is known."""
    progress = Progress(0.0, waves=(frozenset({"t4-1"}), frozenset({"t4-2", "t4-3"})))

    def step(node: str, step: str, state: str = "progressing") -> None:
        progress.observe(_event("driver", node, state, step=step))

    for node in ("t4-1", "t4-2", "t4-3"):
        step(node, "upgrade-required")
    assert progress.rollout(5.0) == ""
    step("t4-1", "cordon-required")
    assert progress.rollout(10.0) == "wave 1 of 2"
    step("t4-1", "upgrade-done", "ready")
    assert progress.rollout(70.0) == "wave 2 of 2, about 2 min 00 s left"
    assert progress.rollout(100.0) == "wave 2 of 2, about 90 s left"
    assert progress.current(100.0) == " 100 s  wave 2 of 2, about 90 s left, driver 1/3 ready"
    assert progress.heartbeat(120.0).startswith("waiting 2 min 00 s for wave 2 of 2, about 70 s left, driver 1/3 ready")
    step("t4-2", "upgrade-done", "ready")
    step("t4-3", "upgrade-failed", "failed")
    assert progress.rollout(130.0) == ""


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("step", [step for step in UpgradeState if step])
def test_an_event_prints_as_its_line(state: State, step: UpgradeState) -> None:
    """With the step in place of the state exactly while a node is on its way to another driver."""
    event = replace(_event("driver", "t4-1", state, f"is in {step}"), step=step)
    word = step.value if state is State.PROGRESSING and is_under_way(step) else state.value
    assert [str(event)] == lines([event])
    assert str(event)[2:] == f"driver t4-1 {word}"


@pytest.mark.parametrize("case", DATA["lanes"], ids=lambda case: case["name"])
def test_a_node_is_about_one_thing_at_a_time(case: dict[str, Any]) -> None:
    """Reasons within one component make no new span; what is not per node, such as a Deployment, has no lane."""

    def transition(at: float, component: str, state: str, reason: str = "", step: str = "") -> Transition:
        return Transition(at=at, component=component, node="t4-1", state=State(state), reason=reason, step=step)

    of_no_node = Transition(at=0, component="nfd", node="", state=State.READY)
    (lane,) = timelines_of([of_no_node, *(transition(*each) for each in case["transitions"])]).values()
    spans = [
        f"{each.begin}-{each.end} {each.activity.letter} {each.text}"
        for each in lane.spans(12)
        if each.end > each.begin
    ]
    assert spans == case["spans"]
    assert lane.started == float(next((span.split("-")[0] for span in spans if span.split()[1] not in ".=x!"), "inf"))
