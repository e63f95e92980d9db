"""What a run says while it goes, and what each node was about."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_provision.model.progress import Event, State, Transition
from gpu_provision.output.progress import HEARTBEAT, Activity, Progress, TimelineSpan, is_under_way, lines, timelines_of
from gpu_provision.rollout.states import UpgradeState


def _event(component: str, node: str, state: State, message: str = "") -> Event:
    return Event(component=component, node=node, state=state, message=message)


def test_the_heartbeat_names_what_is_awaited_and_why() -> None:
    """After thirty quiet seconds; nothing is awaited once everything has settled. Equal steps of nodes share a line."""
    progress = Progress(0.0)
    progress.observe(_event("driver", "gpu-01", State.READY))
    progress.observe(_event("driver", "gpu-03", State.PROGRESSING, "ImagePullBackOff"))
    progress.news(2.0)
    assert progress.heartbeat(2.0 + HEARTBEAT - 0.1) == ""
    assert progress.heartbeat(2.0 + HEARTBEAT) == "waiting 32 s for driver 1/2 ready; gpu-03: ImagePullBackOff"
    assert progress.heartbeat(3.0 + HEARTBEAT) == ""
    for number in (1, 2, 3):
        progress.observe(_event("driver", f"gpu-0{number}", State.FAILED))
    assert progress.news(40.0) == ["! driver gpu-01..03 failed"]
    assert (progress.heartbeat(1000.0), progress.current(1000.0)) == ("", "")


BUILDS = _event("driver", "t4-1", State.PROGRESSING, "builds")


@pytest.mark.parametrize(
    ("events", "told"),
    [
        ([BUILDS, _event("toolkit", "t4-1", State.PENDING, "waits for driver")], "driver 0/1 ready; t4-1: builds"),
        (
            [_event("nfd", "", State.PROGRESSING, "0 of 1 replicas"), _event("nfd", "t4-1", State.READY)],
            "nfd 1/1 ready; nfd: 0 of 1 replicas",
        ),
        (
            [_event("driver", f"n{number}", State.PROGRESSING, f"reason {number}") for number in range(20)],
            "driver 0/20 ready; n0: reason 0; n1: reason 1; n2: reason 2 and 17 more",
        ),
    ],
    ids=["what waits for it is left out", "nodes are counted", "reasons are counted"],
)
def test_the_line_of_a_terminal_is_about_what_goes_on(events: list[Event], told: str) -> None:
    progress = Progress(0.0)
    for event in events:
        progress.observe(event)
    assert progress.current(5.0) == f"   5 s  {told}"


def test_trouble_and_steps_are_said_at_once_the_rest_by_the_heartbeat() -> None:
    """A first run on many nodes would say hundreds of lines; the step of a replacement is the word on the node."""
    progress = Progress(0.0)
    events = [
        _event("toolkit", "t4-1", State.PENDING, "waits for driver"),
        _event("toolkit", "t4-1", State.PROGRESSING, "ContainerCreating"),
        _event("toolkit", "t4-1", State.PROGRESSING, "init container wait runs"),
        _event("toolkit", "t4-1", State.PROGRESSING, "ctr: ImagePullBackOff: no such tag"),
        _event("toolkit", "t4-1", State.READY),
    ]
    for step, message in (
        ("upgrade-done", "the pod still runs the previous content"),
        ("upgrade-required", "waits for a slot"),
        ("cordon-required", "is in cordon-required"),
        ("pod-deletion-required", "pods to go: a, b"),
        ("pod-deletion-required", "pods to go: b"),
    ):
        events.append(replace(_event("driver", "t4-1", State.PROGRESSING, message), step=step))
    for event in events:
        progress.observe(event)
    assert progress.news(1.0) == [
        ". toolkit t4-1 progressing",
        ". toolkit t4-1 progressing: ctr: ImagePullBackOff: no such tag",
        "= toolkit t4-1 ready",
        ". driver t4-1 progressing: the pod still runs the previous content",
        ". driver t4-1 upgrade-required: waits for a slot",
        ". driver t4-1 cordon-required",
        ". driver t4-1 pod-deletion-required: pods to go: a, b",
    ]


def test_a_rollout_tells_its_wave_and_the_time_left() -> None:
    """The time is that of the nodes so far; before the first one is done nothing is known."""
    progress = Progress(0.0, waves=(frozenset({"t4-1"}), frozenset({"t4-2", "t4-3"})))

    def step(node: str, step: str, state: State = State.PROGRESSING) -> None:
        progress.observe(replace(_event("driver", node, state), step=step))

    for node in ("t4-1", "t4-2", "t4-3"):
        step(node, "upgrade-required")
    assert progress.rollout(5.0) == ""
    step("t4-1", "cordon-required")
    assert progress.rollout(10.0) == "wave 1 of 2"
    step("t4-1", "upgrade-done", State.READY)
    assert progress.rollout(70.0) == "wave 2 of 2, about 2 min 00 s left"
    assert progress.rollout(100.0) == "wave 2 of 2, about 90 s left"
    assert progress.current(100.0) == " 100 s  wave 2 of 2, about 90 s left, driver 1/3 ready"
    assert progress.heartbeat(120.0).startswith("waiting 2 min 00 s for wave 2 of 2, about 70 s left, driver 1/3 ready")
    step("t4-2", "upgrade-done", State.READY)
    step("t4-3", "upgrade-failed", State.FAILED)
    assert progress.rollout(130.0) == ""


def test_a_run_without_components_waits_with_its_own_words() -> None:
    """Such as a removal; beside components its last word, which may be old, is not what is awaited."""
    progress = Progress(0.0)
    progress.observe(_event("", "", State.PROGRESSING, "waits for default/train to end"))
    progress.news(0.0)
    assert progress.heartbeat(60.0) == "waiting 60 s; waits for default/train to end"
    assert progress.current(60.0) == "  60 s  waits for default/train to end"
    progress.observe(_event("driver", "t4-1", State.PROGRESSING, "builds"))
    assert progress.current(61.0).endswith("driver 0/1 ready; t4-1: builds")


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("step", [step for step in UpgradeState if step])
def test_an_event_prints_as_its_line(state: State, step: UpgradeState) -> None:
    """With the step in place of the state exactly while a node is on its way to another driver."""
    event = Event(component="driver", node="t4-1", state=state, step=step, message=f"is in {step}")
    word = step.value if state is State.PROGRESSING and is_under_way(step) else state.value
    assert [str(event)] == lines([event])
    assert str(event)[2:] == f"driver t4-1 {word}"


def at(seconds: float, component: str, state: State, reason: str = "", *, step: str = "") -> Transition:
    """Return a transition on the one node of these tests."""
    return Transition(at=seconds, component=component, node="t4-1", state=state, reason=reason, step=step)


def test_a_new_node_is_about_its_first_component_not_ready() -> None:
    """Reasons within one component make no new span; the last one stands."""
    lane = timelines_of(
        [
            at(0, "driver", State.PROGRESSING, "no pod on this node yet"),
            at(0, "driver_validation", State.PENDING, "waits for driver"),
            at(2, "driver", State.PROGRESSING, "ContainerCreating"),
            at(5, "driver", State.READY),
            at(5, "driver_validation", State.PROGRESSING),
            at(9, "driver_validation", State.READY),
        ]
    )["t4-1"]
    assert [span for span in lane.spans(12) if span.end > span.begin] == [
        TimelineSpan(0, 5, Activity.COMES_UP, "driver", "ContainerCreating"),
        TimelineSpan(5, 9, Activity.VALIDATION, "driver_validation", ""),
        TimelineSpan(9, 12, Activity.READY, "driver", ""),
    ]


def test_a_replacement_is_what_a_node_is_about_until_its_end() -> None:
    """Whatever the other components do meanwhile."""
    lane = timelines_of(
        [
            at(0, "toolkit", State.READY),
            at(0, "driver", State.PROGRESSING, "waits for a slot", step="upgrade-required"),
            at(3, "driver", State.PROGRESSING, step="cordon-required"),
            at(4, "driver", State.PROGRESSING, "default/train", step="pod-deletion-required"),
            at(6, "driver", State.PROGRESSING, "is in pod-restart-required", step="pod-restart-required"),
            at(6, "toolkit", State.PROGRESSING),
            at(8, "toolkit", State.READY),
            at(9, "driver", State.PROGRESSING, step="validation-required"),
            at(11, "driver", State.READY, step="upgrade-done"),
        ]
    )["t4-1"]
    spans = [span for span in lane.spans(12) if span.end > span.begin]
    assert "".join(span.doing.letter for span in spans) == ".cerv="
    assert [span.text for span in spans[:3]] == ["waits for a slot", "cordon", "GPU pods leave: default/train"]
    assert spans[3].text == "driver restarts"
    assert lane.started == 3


def test_a_failure_is_what_matters_most() -> None:
    """Also that of a replacement, with its component and its reason; one that is paused is blocked."""
    lane = timelines_of(
        [
            at(0, "driver", State.PROGRESSING, step="pod-restart-required"),
            at(5, "driver", State.FAILED, "no PCI bus", step="upgrade-failed"),
            at(5, "toolkit", State.BLOCKED, "needs driver"),
            Transition(at=6, component="nfd", node="", state=State.READY),  # is of no node
        ]
    )
    assert [node.current.text for node in lane.values()] == ["driver failed: no PCI bus"]
    paused = timelines_of([at(0, "driver", State.BLOCKED, "the rollout stopped", step="upgrade-required")])
    assert paused["t4-1"].current.doing is Activity.BLOCKED


def test_a_node_whose_host_is_ready_waits_for_the_cluster_phase() -> None:
    """What is ready before anything else is known of is not all that there is to do."""
    lane = timelines_of([at(0, "hosts", State.READY), at(3, "driver", State.PENDING), at(9, "driver", State.READY)])
    assert [span.doing for span in lane["t4-1"].spans(10)] == [Activity.WAITS, Activity.WAITS, Activity.READY]
    only_hosts = timelines_of([at(0, "hosts", State.PROGRESSING), at(3, "hosts", State.READY)])
    assert only_hosts["t4-1"].current.doing is Activity.READY
