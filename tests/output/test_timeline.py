"""What a node was about over time."""

from __future__ import annotations

from gpu_provision.model.progress import State, Transition
from gpu_provision.output.progress import Activity, TimelineSpan, timelines_of


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
    ).of["t4-1"]
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
