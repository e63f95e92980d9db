"""Waiting, blocking and deadlines, with a clock that the test holds."""

from __future__ import annotations

import pytest

from gpu_provision.model.progress import NodeState, State
from gpu_provision.planning.states import Key
from gpu_provision.planning.upgrades import KEEPS
from gpu_provision.reconcile.states import BUSY, NOT_VALIDATED, STEADY_SECONDS, DeadlineTracker

REQUIRES = {"driver": (), "toolkit": ("driver",), "plugin": ("toolkit",)}


def settler() -> DeadlineTracker:
    return DeadlineTracker(requires=REQUIRES, timeouts={"driver": 60, "toolkit": 10})


def raw(**found: tuple[State, str]) -> dict[Key, NodeState]:
    """States on node ``a``; the parts that are not per node are ready."""
    states = {}
    for name in REQUIRES:
        states[name, ""] = NodeState(component=name, node="", state=State.READY)
    for name, (state, reason) in found.items():
        states[name, "a"] = NodeState(component=name, node="a", state=state, reason=reason)
    return {key: states[key] for name in REQUIRES for key in ((name, ""), (name, "a")) if key in states}


BUILDING = (State.PROGRESSING, "builds")
READY = (State.READY, "")


def test_a_component_waits_for_what_it_requires() -> None:
    settled = settler().settle(raw(driver=BUILDING, toolkit=(State.PROGRESSING, "Init:0/1")), 0)
    assert settled["toolkit", "a"].state is State.PENDING
    assert settled["toolkit", "a"].reason == "waits for driver"


def test_a_clock_starts_when_everything_required_is_ready() -> None:
    """Fifty seconds of driver build are not the toolkit's."""
    clock = settler()
    waiting = (State.PROGRESSING, "Init:0/1")
    clock.settle(raw(driver=BUILDING, toolkit=waiting), 0)
    clock.settle(raw(driver=READY, toolkit=waiting), 50)
    assert clock.settle(raw(driver=READY, toolkit=waiting), 60)["toolkit", "a"].state is State.PROGRESSING
    failed = clock.settle(raw(driver=READY, toolkit=waiting), 61)["toolkit", "a"]
    assert failed.state is State.FAILED
    assert failed.reason == "Init:0/1 (not ready after 10 s)"


def test_a_failure_blocks_what_requires_it_and_nothing_else() -> None:
    settled = settler().settle(raw(driver=(State.FAILED, "no headers"), toolkit=BUILDING, plugin=BUILDING), 0)
    assert settled["driver", "a"].state is State.FAILED
    assert settled["toolkit", "a"].state is State.BLOCKED
    assert settled["plugin", "a"].state is State.BLOCKED


def test_being_ready_for_moments_grants_no_time() -> None:
    """In a crash loop a container is ready at every start; the run would never end."""
    clock, crashed = settler(), (State.PROGRESSING, "CrashLoopBackOff")
    for start in range(0, 9, 3):
        assert clock.settle(raw(driver=READY, toolkit=crashed), start)["toolkit", "a"].state is State.PROGRESSING
        clock.settle(raw(driver=READY, toolkit=READY), start + 2.9)
    clock.settle(raw(driver=READY, toolkit=crashed), 9)
    assert clock.settle(raw(driver=READY, toolkit=crashed), 10.4)["toolkit", "a"].state is State.FAILED
    assert clock.settle(raw(driver=READY, toolkit=READY), 10.5)["toolkit", "a"].state is State.READY
    assert clock.settle(raw(driver=READY, toolkit=crashed), 10.6)["toolkit", "a"].state is State.FAILED


def test_being_ready_for_a_while_grants_all_its_time() -> None:
    """A pod that is replaced an hour later is not a crash loop."""
    clock, starting = settler(), (State.PROGRESSING, "starts")
    clock.settle(raw(driver=READY, toolkit=starting), 0)
    clock.settle(raw(driver=READY, toolkit=READY), 8)
    assert (
        clock.settle(raw(driver=READY, toolkit=starting), 8 + STEADY_SECONDS)["toolkit", "a"].state is State.PROGRESSING
    )
    later = clock.settle(raw(driver=READY, toolkit=starting), 17 + STEADY_SECONDS)["toolkit", "a"]
    assert later.state is State.PROGRESSING


def test_what_runs_already_is_not_blocked() -> None:
    settled = settler().settle(raw(driver=(State.FAILED, "x"), toolkit=READY), 0)
    assert settled["toolkit", "a"].state is State.READY


def test_a_component_that_recovers_after_its_deadline_is_ready() -> None:
    clock = settler()
    clock.settle(raw(driver=BUILDING), 0)
    assert clock.settle(raw(driver=BUILDING), 61)["driver", "a"].state is State.FAILED
    assert clock.settle(raw(driver=READY), 62)["driver", "a"].state is State.READY


def test_a_refused_object_fails_its_component_for_good() -> None:
    clock = settler()
    clock.rejected["driver", ""] = "DaemonSet ns/driver: invalid"
    settled = clock.settle(raw(driver=BUILDING, toolkit=BUILDING), 0)
    assert settled["driver", ""].state is State.FAILED
    assert settled["driver", "a"].state is State.BLOCKED
    assert settled["toolkit", "a"].state is State.BLOCKED


def test_what_another_client_keeps_the_time_of_has_no_deadline() -> None:
    """A driver whose turn comes later; its own time begins when it does."""
    clock, untimed = settler(), {("driver", "a")}
    clock.settle(raw(driver=BUILDING), 0)
    assert clock.settle(raw(driver=BUILDING), 9999, untimed=untimed)["driver", "a"].state is State.PROGRESSING
    assert clock.settle(raw(driver=BUILDING), 10000)["driver", "a"].state is State.FAILED


@pytest.mark.parametrize("state", [State.READY, State.BLOCKED])
def test_a_driver_that_keeps_its_previous_content_blocks_nothing(state: State) -> None:
    """It works; only the driver's own state says whether that is right."""
    settled = settler().settle(raw(driver=(state, f"{KEEPS}: the rollout stopped"), toolkit=BUILDING), 0)
    assert settled["driver", "a"].state is state
    assert settled["toolkit", "a"].state is State.PROGRESSING


def test_the_next_deadline_is_awaited_no_longer_than_it_takes() -> None:
    clock = settler()
    clock.settle(raw(driver=READY, toolkit=BUILDING), 0)
    assert 6 < clock.next_deadline(3) < 7.1


def test_what_is_ready_is_no_longer_timed() -> None:
    """Its old clock must not make the run look again and again."""
    clock = settler()
    clock.settle(raw(driver=BUILDING), 0)
    clock.settle(raw(driver=READY), 10)
    assert clock.next_deadline(1000) == 30.0


def test_a_validation_that_finds_all_gpus_in_use_fails_no_run() -> None:
    """The GPUs are in use; the validation waits for a free one."""
    clock = settler()
    waiting = (State.PROGRESSING, f"Unschedulable: 0/5 nodes are available: 1 {BUSY}")
    clock.settle(raw(driver=READY, toolkit=waiting), 0)
    assert clock.settle(raw(driver=READY, toolkit=waiting), 9)["toolkit", "a"].state is State.PROGRESSING
    settled = clock.settle(raw(driver=READY, toolkit=waiting), 11)["toolkit", "a"]
    assert (settled.state, settled.reason) == (State.READY, NOT_VALIDATED)


def test_dependents_of_a_postponed_validation_are_postponed() -> None:
    """At once, and without an end: a node in use is not told to be validated, and fails nothing."""
    waiting = (State.PENDING, f"1 {BUSY}")
    settled = settler().settle(raw(driver=READY, toolkit=(State.READY, NOT_VALIDATED), plugin=waiting), 0)
    assert (settled["plugin", "a"].state, settled["plugin", "a"].reason) == (State.READY, NOT_VALIDATED)


def test_a_clock_pauses_while_a_requirement_is_away() -> None:
    """A driver that restarts in the middle does not use up the toolkit's time, nor grant it more."""
    clock, starting = settler(), (State.PROGRESSING, "Init:0/1")
    clock.settle(raw(driver=READY, toolkit=starting), 0)
    clock.settle(raw(driver=BUILDING, toolkit=starting), 6)
    clock.settle(raw(driver=READY, toolkit=starting), 50)
    assert clock.settle(raw(driver=READY, toolkit=starting), 54)["toolkit", "a"].state is State.PROGRESSING
    assert clock.settle(raw(driver=READY, toolkit=starting), 55)["toolkit", "a"].state is State.FAILED


def test_a_clock_that_stands_wakes_no_run() -> None:
    """Else the run would look ten times a second until its end."""
    clock, starting = settler(), (State.PROGRESSING, "Init:0/1")
    clock.settle(raw(driver=READY, toolkit=starting), 0)
    clock.settle(raw(driver=(State.FAILED, "x"), toolkit=starting), 5)
    assert clock.next_deadline(1000) == 30.0
    clock.settle({}, 6)
    assert clock.next_deadline(1000) == 30.0, "its node has left the cluster"


def test_what_was_refused_on_a_node_without_a_state_is_a_failure() -> None:
    clock = settler()
    clock.rejected["node_labels", "cpu-1"] = "Node cpu-1: denied"
    assert clock.settle(raw(driver=READY), 0)["node_labels", "cpu-1"].state is State.FAILED
