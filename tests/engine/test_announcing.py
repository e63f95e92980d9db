"""What is told of where a run stands."""

from __future__ import annotations

from gpu_provision.engine.announcing import Announcer
from gpu_provision.model.progress import Event, NodeState, State


def state(node: str, found: State, reason: str = "") -> NodeState:
    return NodeState(component="driver", node=node, state=found, reason=reason)


READY = {("driver", node): state(node, State.READY) for node in ("a", "b")}


def test_what_is_new_is_told_once() -> None:
    told: list[Event] = []
    announcer = Announcer(told.append, 0.0)
    announcer.show(READY)
    announcer.show(READY)
    assert [(event.node, event.state) for event in told] == [("a", State.READY), ("b", State.READY)]


def test_what_was_ready_before_a_run_is_not_told_when_a_node_joins() -> None:
    """A thousand nodes of which nothing has changed would else be told each time, component by component."""
    told: list[Event] = []
    announcer = Announcer(told.append, 0.0, known=READY)
    assert not announcer.states, "a record of how far the run has come is short before its first look"
    shown = READY | {("driver", "c"): state("c", State.PENDING), ("driver", "b"): state("b", State.PROGRESSING)}
    announcer.show(shown)
    assert [event.node for event in told] == ["b", "c"]
    assert announcer.states == shown
    assert [each.node for each in announcer.timeline] == ["b", "c"]
