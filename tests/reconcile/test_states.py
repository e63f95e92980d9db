"""Requirements and deadlines, with the test's clock; progress reports to listeners."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_provision.model.progress import Event, NodeState, State, Transition
from gpu_provision.planning.states import ComponentNode
from gpu_provision.planning.upgrades import DRIVER_KEPT
from gpu_provision.reconcile import states
from gpu_provision.reconcile.states import (
    BUSY,
    NOT_VALIDATED,
    STEADY_SECONDS,
    DeadlineTracker,
    ProgressReporter,
    Timeline,
)

REQUIRES = {"driver": (), "toolkit": ("driver",), "plugin": ("toolkit",)}
Found = tuple[State, str]


def settler() -> DeadlineTracker:
    return DeadlineTracker(requires=REQUIRES, timeouts={"driver": 60, "toolkit": 10})


def raw(**found: Found) -> dict[ComponentNode, NodeState]:
    """States on node ``a``; the parts that are not per node are ready."""
    known = {(name, ""): NodeState(component=name, node="", state=State.READY) for name in REQUIRES}
    for name, (state, reason) in found.items():
        known[name, "a"] = NodeState(component=name, node="a", state=state, reason=reason)
    return {key: known[key] for name in REQUIRES for key in ((name, ""), (name, "a")) if key in known}


BUILDING, STARTING = (State.PROGRESSING, "builds"), (State.PROGRESSING, "Init:0/1")
READY, BROKEN = (State.READY, ""), (State.FAILED, "no headers")
IN_USE = (State.PROGRESSING, f"Unschedulable: 0/5 nodes are available: 1 {BUSY}")
LATE = (State.FAILED, "Init:0/1 (not ready after 10 s)")
BLOCKED = "needs driver, which is not ready here"


@pytest.mark.parametrize(
    ("driver", "toolkit", "plugin", "expected"),
    [
        (BUILDING, STARTING, STARTING, ((State.PENDING, "waits for driver"), (State.PENDING, "waits for toolkit"))),
        (BROKEN, BUILDING, BUILDING, ((State.BLOCKED, BLOCKED), (State.BLOCKED, BLOCKED.replace("driver", "toolkit")))),
        (BROKEN, READY, READY, (READY, READY)),
        ((State.READY, f"{DRIVER_KEPT}: stopped"), BUILDING, READY, (BUILDING, READY)),
        ((State.BLOCKED, f"{DRIVER_KEPT}: stopped"), BUILDING, READY, (BUILDING, READY)),
        (READY, (State.READY, NOT_VALIDATED), (State.PENDING, f"1 {BUSY}"), ((State.READY, NOT_VALIDATED),) * 2),
    ],
    ids=[
        "waits for what it requires",
        "is blocked by what failed",
        "is not blocked once it runs",
        "is served by a driver that keeps its content",
        "also if that is wrong",
        "is postponed with what it requires",
    ],
)
def test_a_component_goes_by_what_it_requires(
    driver: Found, toolkit: Found, plugin: Found, expected: tuple[Found, Found]
) -> None:
    settled = settler().settle(raw(driver=driver, toolkit=toolkit, plugin=plugin), 0)
    assert (settled["driver", "a"].state, settled["driver", "a"].reason) == driver
    assert tuple((settled[name, "a"].state, settled[name, "a"].reason) for name in ("toolkit", "plugin")) == expected
    unshared = {key: each for key, each in raw(driver=driver, toolkit=toolkit, plugin=plugin).items() if key[1]}
    assert settler().settle(unshared, 0) == {key: each for key, each in settled.items() if key[1]}


IN_TIME, POSTPONED = STARTING, (State.READY, NOT_VALIDATED)
MOMENTS = [(at + after, READY, each, None) for at in (0, 3, 6) for after, each in ((0, STARTING), (2, READY))]
LATER = 8 + STEADY_SECONDS
AFTER_61 = (61, READY, STARTING, LATE)


@pytest.mark.parametrize(
    "looks",
    [
        [(0, BUILDING, STARTING, None), (50, READY, STARTING, None), (60, READY, STARTING, IN_TIME), AFTER_61],
        [*MOMENTS, (9, READY, STARTING, IN_TIME), AFTER_61, (62, READY, READY, READY), (63, READY, STARTING, LATE)],
        [
            (0, READY, STARTING, None),
            (8, READY, READY, READY),
            (LATER, READY, STARTING, IN_TIME),
            (LATER + 9, READY, STARTING, IN_TIME),
        ],
        [(0, READY, STARTING, None), (6, BUILDING, STARTING, None), (56, READY, STARTING, IN_TIME), AFTER_61],
        [(0, READY, STARTING, None), AFTER_61, (62, READY, READY, READY)],
        [(0, READY, IN_USE, None), (9, READY, IN_USE, IN_USE), (11, READY, IN_USE, POSTPONED)],
    ],
    ids=[
        "starts when everything required is ready",
        "gains nothing by being ready for moments",
        "starts over after being ready for a while",
        "pauses while a requirement is away",
        "ends when a late component is ready",
        "fails no validation while all GPUs are in use",
    ],
)
def test_a_clock(looks: list[tuple[float, Found, Found, Found | None]]) -> None:
    """Ten seconds of the toolkit: second, driver, toolkit, and the reported state of the toolkit."""
    clock = settler()
    for second, driver, toolkit, expected in looks:
        found = clock.settle(raw(driver=driver, toolkit=toolkit), second)["toolkit", "a"]
        assert expected is None or (found.state, found.reason) == expected


def test_a_refused_object_fails_its_component_for_good() -> None:
    """Also on a node without a state of its own."""
    clock = settler()
    clock.rejected |= {("driver", ""): "DaemonSet ns/driver: invalid", ("node_labels", "cpu-1"): "Node cpu-1: denied"}
    settled = clock.settle(raw(driver=BUILDING, toolkit=BUILDING), 0)
    assert {key: each.state for key, each in settled.items() if each.state is not State.READY} == {
        ("driver", ""): State.FAILED,
        ("driver", "a"): State.BLOCKED,
        ("toolkit", "a"): State.BLOCKED,
        ("node_labels", "cpu-1"): State.FAILED,
    }


def test_a_state_with_a_deadline_elsewhere_has_none_here() -> None:
    """A driver whose turn comes later; its own time begins when it does."""
    clock, without_deadline = settler(), {("driver", "a")}
    clock.settle(raw(driver=BUILDING), 0)
    assert (
        clock.settle(raw(driver=BUILDING), 9999, without_deadline=without_deadline)["driver", "a"].state
        is State.PROGRESSING
    )
    assert clock.settle(raw(driver=BUILDING), 10000)["driver", "a"].state is State.FAILED


REBOOTS, NEXT = "MachineConfigPool gpu drains and reboots the node", "MachineConfigPool gpu has updated 1 of 2 nodes"


def machine_states(node: Found, driver: Found = BUILDING) -> dict[ComponentNode, NodeState]:
    """A component that rolls out node by node: on node ``a``, and as a whole; and the driver, which requires it."""
    found = {("machine_config", ""): (State.PROGRESSING, NEXT), ("machine_config", "a"): node, ("driver", "a"): driver}
    return {key: NodeState(component=key[0], node=key[1], state=s, reason=r) for key, (s, r) in found.items()}


def machines(**fields: Any) -> DeadlineTracker:
    requires: dict[str, tuple[str, ...]] = {"machine_config": (), "driver": ("machine_config",)}
    return DeadlineTracker(requires=requires, timeouts={"machine_config": 10}, **fields)


def test_a_driver_waits_for_its_own_node_and_for_no_other() -> None:
    clock = machines()
    assert clock.settle(machine_states(READY), 0)["driver", "a"].reason == BUILDING[1]
    assert (
        clock.settle(machine_states((State.PROGRESSING, REBOOTS)), 1)["driver", "a"].reason
        == "waits for machine_config"
    )


def test_each_progress_of_machines_starts_their_deadline() -> None:
    """The last of many nodes may wait for hours; one that does not come back counts as failed."""
    clock = machines()
    looks = [(0, "waits", State.PROGRESSING), (9, REBOOTS, State.PROGRESSING), (18, REBOOTS, State.PROGRESSING)]
    looks += [(20, REBOOTS, State.FAILED), (21, "waits", State.PROGRESSING)]
    for second, reason, expected in looks:
        found = clock.settle(machine_states((State.PROGRESSING, reason)), second)["machine_config", "a"]
        assert (second, found.state) == (second, expected)


def test_a_rejected_machine_config_blocks_its_nodes() -> None:
    clock = machines(rejected={("machine_config", ""): "MachineConfig 99-gpu-gpu-provision: denied"})
    found = clock.settle(machine_states((State.PROGRESSING, "waits")), 0)
    assert [each.state for each in found.values()] == [State.FAILED, State.BLOCKED, State.BLOCKED]


def test_only_a_clock_that_runs_wakes_a_run() -> None:
    """Else the run would look ten times a second until its end."""
    clock = settler()
    clock.settle(raw(driver=READY, toolkit=STARTING), 0)
    assert 6 < clock.next_deadline(3) < 7.1
    for now, found in enumerate((raw(driver=READY, toolkit=READY), raw(driver=BROKEN, toolkit=STARTING), {}), 5):
        clock.settle(found, now)
        assert clock.next_deadline(1000) == 30.0


def event(reason: str = "", *, state: State = State.PROGRESSING, component: str = "driver") -> Event:
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
    monkeypatch.setattr(states, "_MAX_REASONS", 2)
    monkeypatch.setattr(states, "MAX_TRANSITIONS", 4)
    line = Timeline(began=0.0)
    for number in range(5):
        line.observe(event(f"reason {number}"), number)
    assert [each.reason for each in line.transitions] == ["reason 0", "reason 1"]
    for number in range(10):
        line.observe(event(state=State.READY if number % 2 else State.PENDING), 10.0 + number)
    assert [each.state for each in line.transitions[2:]] == [State.PENDING, State.READY]


def state(node: str, found: State) -> NodeState:
    return NodeState(component="driver", node=node, state=found)


def test_a_changed_state_is_reported_once() -> None:
    """What was ready before a run is not new; a record of how far the run has come is short before its first look."""
    events = list[Event]()
    ready = {("driver", node): state(node, State.READY) for node in ("a", "b")}
    reporter = ProgressReporter(events.append, 0.0)
    reporter.report_states(ready)
    reporter.report_states(ready)
    assert [(event.node, event.state) for event in events] == [("a", State.READY), ("b", State.READY)]
    reporter = ProgressReporter(events.append, 0.0, known=ready)
    assert not reporter.states
    shown = ready | {("driver", "c"): state("c", State.PENDING), ("driver", "b"): state("b", State.PROGRESSING)}
    reporter.report_states(shown)
    assert [event.node for event in events[2:]] == [each.node for each in reporter.timeline] == ["b", "c"]
    assert reporter.states == shown
