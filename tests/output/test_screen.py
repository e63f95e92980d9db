"""What rich draws: tables and the picture of a run, as text."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest

from gpu_provision.model.progress import State, Transition
from gpu_provision.output.progress import NodeTimeline, timelines_of
from gpu_provision.output.screen import console, table, timeline_picture
from gpu_provision.output.text import PLAIN, Style, escape_for_terminal

WAITS = "waits for a slot: max_parallel_upgrades is 1"


def rollout() -> dict[str, NodeTimeline]:
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


def drawn(nodes: dict[str, NodeTimeline], columns: int, lines: int = 24, *, color: bool = False) -> list[str]:
    stream = io.StringIO()
    console(stream, color=color, columns=columns, terminal=color).print(timeline_picture(nodes, 40.0, columns, lines))
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_nodes_are_rows_with_their_past_and_what_they_wait_for(golden: Callable[[str, str], None]) -> None:
    """What goes on comes first, then failures, then those that wait; what does not fit is counted."""
    golden("picture", "\n".join([*drawn(rollout(), 80), "", *drawn(rollout(), 160), "", *drawn(rollout(), 80, 6)]))
    assert drawn(rollout(), 80, 4) == drawn({}, 80) == []


@pytest.mark.parametrize("columns", [160, 80, 50, 40, 25])
def test_a_reason_is_wrapped_and_never_cut(columns: int) -> None:
    """A narrow terminal loses the past first; colors take no room."""
    plain = drawn(rollout(), columns)
    assert all(len(line) <= columns for line in plain)
    told = " ".join(" ".join(line[4:] if line.startswith("n") else line.strip() for line in plain).split())
    assert "slot: max_parallel_upgrades is 1" in told
    assert "\x1b[" in "".join(drawn(rollout(), columns, color=True))


HEADERS = ("COMPONENT", "STATE", "REASON")
ROWS = [("driver", "ready", ""), ("toolkit", "failed", "ImagePullBackOff: [red]no[/red] such tag :smile: \x1b[31m")]


def test_a_table_keeps_its_lines_where_no_terminal_ends() -> None:
    """Text of others is text: no markup, no emoji, no escape sequence."""
    assert escape_for_terminal(table(HEADERS, ROWS, PLAIN)).splitlines() == [
        "COMPONENT  STATE   REASON",
        "driver     ready",
        r"toolkit    failed  ImagePullBackOff: [red]no[/red] such tag :smile: \x1b[31m",
    ]


def test_a_table_wraps_its_last_column_at_the_terminal() -> None:
    """Colors of cells stay, those of the header are bold."""
    style = Style(enabled=True, columns=60)
    rows = [("driver", style.paint("red", "failed"), "word " * 12)]
    text = escape_for_terminal(table(HEADERS, rows, style))
    assert text.splitlines() == [
        "\x1b[1mCOMPONENT\x1b[0m  \x1b[1mSTATE\x1b[0m   \x1b[1mREASON\x1b[0m",
        "driver     \x1b[31mfailed\x1b[0m  word word word word word word word word",
        "                   word word word word",
    ]


def test_a_table_puts_below_the_row_what_has_no_room(golden: Callable[[str, str], None]) -> None:
    """Whole, with its header; an empty cell takes no line."""
    golden(
        "table-40", table(HEADERS, [("driver", "failed", "word " * 12), ("toolkit", "ready", "")], Style(columns=40))
    )
