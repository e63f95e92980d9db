"""What a node was about over time."""

from __future__ import annotations

import re

import pytest

from gpu_provision.model.progress import State, Transition
from gpu_provision.output.progress import Activity, NodeTimelines, Size, TimelineSpan, picture, timelines_of
from gpu_provision.output.text import Style, for_terminal


def at(seconds: float, component: str, state: State, reason: str = "", *, step: str = "") -> Transition:
    """Return a transition on the one node of these tests."""
    return Transition(at=seconds, component=component, node="t4-1", state=state, reason=reason, step=step)


def test_a_node_that_is_brought_up_is_about_the_first_component_that_is_not_ready() -> None:
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
    ).of["t4-1"]
    assert [span for span in lane.spans(12) if span.end > span.begin] == [
        TimelineSpan(0, 5, Activity.COMES_UP, "driver", "ContainerCreating"),
        TimelineSpan(5, 9, Activity.VALIDATION, "driver_validation", ""),
        TimelineSpan(9, 12, Activity.READY, "driver", ""),
    ]


def test_a_replacement_tells_what_the_node_is_about_until_it_is_over() -> None:
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
    ).of["t4-1"]
    spans = [span for span in lane.spans(12) if span.end > span.begin]
    assert "".join(span.doing.letter for span in spans) == ".cerv+"
    assert [span.text for span in spans[:3]] == ["waits for a slot", "cordon", "GPU pods leave: default/train"]
    assert spans[3].text == "driver restarts"
    assert lane.started == 3


def test_a_failure_is_what_matters_most() -> None:
    """Also that of a replacement, with its component and its reason."""
    lane = timelines_of(
        [
            at(0, "driver", State.PROGRESSING, step="pod-restart-required"),
            at(5, "driver", State.FAILED, "no PCI bus", step="upgrade-failed"),
            at(5, "toolkit", State.BLOCKED, "needs driver"),
        ]
    ).of["t4-1"]
    assert lane.current.text == "driver failed: no PCI bus"


def test_a_paused_replacement_is_blocked() -> None:
    """It neither goes on nor waits for anything that would come."""
    lane = timelines_of([at(0, "driver", State.BLOCKED, "the rollout stopped", step="upgrade-required")]).of["t4-1"]
    assert lane.current.doing is Activity.BLOCKED


def test_a_node_whose_host_is_ready_waits_for_the_cluster_phase() -> None:
    """What is ready before anything else is known of is not all that there is to do."""
    lane = timelines_of([at(0, "hosts", State.READY), at(3, "driver", State.PENDING), at(9, "driver", State.READY)])
    assert [span.doing for span in lane.of["t4-1"].spans(10)] == [Activity.WAITS, Activity.WAITS, Activity.READY]
    only_hosts = timelines_of([at(0, "hosts", State.PROGRESSING), at(3, "hosts", State.READY)])
    assert only_hosts.of["t4-1"].current.doing is Activity.READY


def test_what_is_not_per_node_has_no_lane() -> None:
    """Such as a Deployment."""
    assert not timelines_of([Transition(at=0, component="nfd", node="", state=State.READY)]).of


def test_letters_tell_everything_apart() -> None:
    """Without colors, too."""
    assert len({doing.letter for doing in Activity}) == len(Activity)


WAITS = "waits for a slot: max_parallel_upgrades is 1"


def rollout() -> NodeTimelines:
    """Return four nodes in the middle of a rollout, 40 seconds old: done, failed, evicting, waiting."""

    def on(node: str, *steps: tuple[float, str, str], state: State = State.PROGRESSING) -> list[Transition]:
        return [
            Transition(at=at, component="driver", node=node, state=state, step=step, reason=reason)
            for at, step, reason in steps
        ]

    return timelines_of(
        [
            *on("n1", (0, "cordon-required", ""), (4, "pod-restart-required", "")),
            *on("n1", (10, "upgrade-done", ""), state=State.READY),
            *on("n2", (0, "upgrade-required", WAITS), (10, "cordon-required", ""), (14, "pod-restart-required", "")),
            *on("n2", (25, "upgrade-failed", "no PCI bus"), state=State.FAILED),
            *on("n3", (0, "upgrade-required", WAITS), (28, "pod-deletion-required", "default/train")),
            *on("n4", (0, "upgrade-required", WAITS)),
        ]
    )


def test_nodes_are_rows_with_their_past_and_what_they_wait_for() -> None:
    """What goes on comes first, then failures, then those that wait, then those that are done."""
    assert picture(rollout(), 40.0, Size(80, 24)) == [
        "n3  .................eeeeeeee  GPU pods leave 12 s: default/train",
        "n2  ......ccrrrrrrr!!!!!!!!!!  driver failed: no PCI bus",
        "n4  .........................  waits for a slot: max_parallel_upgrades is 1",
        "n1  ccrrrr+++++++++++++++++++  ready",
        ". waiting, c cordon, e GPU pods leave, r driver restarts, + ready, ! failed",
    ]


def test_what_does_not_fit_is_counted() -> None:
    """The rows that are left are those that matter most."""
    lines = picture(rollout(), 40.0, Size(80, 5))
    assert [line.split()[0] for line in lines[:2]] == ["n3", "n2"]
    assert lines[2] == "and 2 more: 1 waiting, 1 ready"


@pytest.mark.parametrize("columns", [120, 80, 50, 40, 25, 12])
def test_no_line_is_wider_than_the_terminal(columns: int) -> None:
    """A narrow one loses the past first, then words; colors take no room."""
    lines = map(for_terminal, picture(rollout(), 40.0, Size(columns, 24), Style(enabled=True)))
    plain = [re.sub(r"\x1b\[\d*m", "", line) for line in lines]
    assert plain == picture(rollout(), 40.0, Size(columns, 24))
    assert all(len(line) < columns for line in plain)


def test_there_is_no_picture_without_room_or_nodes() -> None:
    """Then the line above says it all."""
    assert picture(rollout(), 40.0, Size(80, 3)) == []
    assert picture(NodeTimelines(), 40.0, Size(80, 24)) == []
