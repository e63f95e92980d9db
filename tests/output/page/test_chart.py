"""The timeline of a page."""

from __future__ import annotations

from gpu_provision.model.progress import State, Transition
from gpu_provision.output.html_report import Chart, chart
from gpu_provision.output.progress import Activity, timelines_of

_BEGINS, _IS_DONE = "pod-restart-required", "upgrade-done"


def drawn(*changes: tuple[float, str, State, str], seconds: float = 100.0) -> Chart:
    """Return the chart of (seconds, node, state, step)."""
    return chart(
        timelines_of(
            Transition(at=at, component="driver", node=node, state=state, step=step)
            for at, node, state, step in changes
        ),
        seconds,
    )


def test_bars_are_in_percent_of_the_run() -> None:
    """From the first thing that is known of a node to the end of the run."""
    (row,) = drawn(
        (0, "n1", State.PROGRESSING, "upgrade-required"),
        (20, "n1", State.PROGRESSING, "pod-restart-required"),
        (50, "n1", State.READY, "upgrade-done"),
    ).rows
    assert [(bar.x, bar.width, bar.doing) for bar in row.bars] == [
        (0, 20, Activity.WAITS),
        (20, 30, Activity.RESTART),
        (50, 50, Activity.READY),
    ]
    assert row.bars[1].title == "n1\n20.0 to 50.0 s: driver restarts"
    assert row.status == "ready"


def test_spans_too_short_to_be_seen_share_a_bar() -> None:
    """One node after the other among a thousand is a hair of the whole."""
    (row,) = drawn(
        (0, "n1", State.PROGRESSING, "upgrade-required"),
        (500, "n1", State.PROGRESSING, "cordon-required"),
        (500.2, "n1", State.PROGRESSING, "pod-restart-required"),
        (501, "n1", State.READY, "upgrade-done"),
        seconds=1000,
    ).rows
    assert [bar.doing for bar in row.bars] == [Activity.WAITS, Activity.RESTART, Activity.READY]
    assert row.bars[1].width == 0.3
    assert "500.0 to 500.2 s: cordon\n500.2 to 501.0 s: driver restarts" in row.bars[1].title


def test_failed_nodes_come_first_then_the_earliest() -> None:
    """Those that never began come last."""
    found = drawn(
        (0, "n3", State.PROGRESSING, "upgrade-required"),
        (0, "n10", State.PROGRESSING, _BEGINS),
        (0, "n2", State.PROGRESSING, _BEGINS),
        (5, "n1", State.PROGRESSING, _BEGINS),
        (8, "n1", State.FAILED, "upgrade-failed"),
        (9, "n2", State.READY, _IS_DONE),
    )
    assert [row.node for row in found.rows] == ["n1", "n2", "n10", "n3"]


def test_ticks_are_round_and_few() -> None:
    """Whatever the length of a run."""
    for seconds, last in ((0.5, "0 s"), (4, "3 s"), (99, "90 s"), (3600, "45 min"), (200_000, "48 h")):
        ticks = drawn((0, "n1", State.READY, ""), seconds=seconds).ticks
        assert len(ticks) <= 6
        assert ticks[0] == (0, "0 s")
        assert ticks[-1][1] == last


def test_a_failure_at_the_very_end_is_drawn() -> None:
    """It is what the reader looks for."""
    (row,) = drawn((0, "n1", State.PROGRESSING, ""), (100, "n1", State.FAILED, "")).rows
    assert row.bars[-1].doing is Activity.FAILED
    assert row.bars[-1].x + row.bars[-1].width == 100
