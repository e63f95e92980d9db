"""What of a run is written down."""

from __future__ import annotations

import pytest

from gpu_provision.model.progress import Event, NodeState, State, Transition
from gpu_provision.reconcile import progress
from gpu_provision.reconcile.progress import ProgressReporter, Timeline


def event(reason: str = "", *, state: State = State.PROGRESSING, component: str = "driver") -> Event:
    """Return an event of one node."""
    return Event(component=component, node="t4-1", state=state, message=reason)


def test_every_change_is_written_down_once_with_its_time() -> None:
    """The run's own words are none."""
    line = Timeline(began=100.0)
    for now, each in ((100.0, event("a")), (101.0, event("a")), (102.5, event("b")), (103.0, event(component=""))):
        line.observe(each, now)
    assert line.transitions == [
        Transition(at=0.0, component="driver", node="t4-1", state=State.PROGRESSING, reason="a"),
        Transition(at=2.5, component="driver", node="t4-1", state=State.PROGRESSING, reason="b"),
    ]


def test_a_timeline_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """New reasons are left out first, then everything."""
    monkeypatch.setattr(progress, "_MOST_REASONS", 2)
    monkeypatch.setattr(progress, "MOST", 4)
    line = Timeline(began=0.0)
    for number in range(5):
        line.observe(event(f"reason {number}"), number)
    assert [each.reason for each in line.transitions] == ["reason 0", "reason 1"]
    for number in range(10):
        line.observe(event(state=State.READY if number % 2 else State.PENDING), 10.0 + number)
    assert [each.state for each in line.transitions[2:]] == [State.PENDING, State.READY]


def state(node: str, found: State, reason: str = "") -> NodeState:
    return NodeState(component="driver", node=node, state=found, reason=reason)


READY = {("driver", node): state(node, State.READY) for node in ("a", "b")}


def test_what_is_new_is_reported_once() -> None:
    told: list[Event] = []
    announcer = ProgressReporter(told.append, 0.0)
    announcer.show(READY)
    announcer.show(READY)
    assert [(event.node, event.state) for event in told] == [("a", State.READY), ("b", State.READY)]


def test_what_was_ready_before_a_run_is_not_reported() -> None:
    """A thousand nodes of which nothing has changed would else be told each time, component by component."""
    told: list[Event] = []
    announcer = ProgressReporter(told.append, 0.0, known=READY)
    assert not announcer.states, "a record of how far the run has come is short before its first look"
    shown = READY | {("driver", "c"): state("c", State.PENDING), ("driver", "b"): state("b", State.PROGRESSING)}
    announcer.show(shown)
    assert [event.node for event in told] == ["b", "c"]
    assert announcer.states == shown
    assert [each.node for each in announcer.timeline] == ["b", "c"]
