"""Progress on a terminal and in a log."""

from __future__ import annotations

import io

from gpu_provision.cli.display import Display
from gpu_provision.model.progress import Event, State
from gpu_provision.report.progress import HEARTBEAT

WAITING = Event(component="driver", node="t4-1", state=State.PROGRESSING, message="builds")
FAILED = Event(component="driver", node="t4-2", state=State.FAILED, message="does not build")


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        """Start at zero."""
        self.now = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def test_a_log_gets_a_line_per_step_and_a_heartbeat() -> None:
    """No control characters, ever."""
    stream, clock = io.StringIO(), Clock()
    display = Display(stream, clock=clock)
    display(WAITING)
    display(WAITING)
    display.tick()
    clock.now = HEARTBEAT
    display.tick()
    assert stream.getvalue().splitlines() == [
        ". driver t4-1 progressing",
        "waiting 30 s for driver 0/1 ready; t4-1: builds",
    ]


def test_a_terminal_gets_one_line_that_is_rewritten() -> None:
    """Only a failure stays above it."""
    stream = io.StringIO()
    display = Display(stream, live=True, clock=Clock())
    display(WAITING)
    display.tick()
    display(FAILED)
    display.tick()
    shown = [part for part in stream.getvalue().split("\r\x1b[K") if part]
    assert shown[0].endswith("driver 0/1 ready; t4-1: builds")
    assert shown[1].startswith("! driver t4-2 failed: does not build\n")


def test_leaving_takes_the_rewritten_line_away_and_ends_the_heartbeat() -> None:
    """Whatever comes next starts on a clean line."""
    stream = io.StringIO()
    with Display(stream, live=True) as display:
        display(WAITING)
    assert stream.getvalue().endswith("\r\x1b[K")


def test_timestamps_stand_before_every_line() -> None:
    """With -v a log can be compared with a cluster's."""
    stream = io.StringIO()
    display = Display(stream, timestamps=True, clock=Clock())
    display(WAITING)
    display.tick()
    stamp, _, text = stream.getvalue().partition(" ")
    assert stamp.endswith("Z")
    assert text == ". driver t4-1 progressing\n"


def test_nothing_is_lost_between_the_last_tick_and_the_end() -> None:
    """The last events of a run are those that matter most."""
    stream = io.StringIO()
    with Display(stream) as display:
        display(FAILED)
    assert stream.getvalue() == "! driver t4-2 failed: does not build\n"
