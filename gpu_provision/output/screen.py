"""Tables and the timelines of a run on a terminal, drawn by rich.

Callers import this module late: the import of rich takes 97 ms.
Foreign text is never markup: every cell is a `rich.text.Text`, and control characters become visible.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from gpu_provision.model.findings import escape_control_characters, one_line
from gpu_provision.output.progress import AT_REST, Activity, NodeTimeline, TimelineSpan, count_activities
from gpu_provision.output.text import Style, natural_key, painted_parts

_ENDLESS = 100_000  # columns without a terminal
_GAP = (0, 2, 0, 0)  # right of a cell
_MIN_WIDTH = 40  # least width of a long last column
_ACTIVITY_COLORS = {
    Activity.WAITS: "dim",
    Activity.READY: "green",
    Activity.BLOCKED: "yellow",
    Activity.FAILED: "red",
    Activity.EVICTION: "yellow",
    Activity.DRAIN: "yellow",
}
_RANKS = {Activity.FAILED: 1, Activity.BLOCKED: 2, Activity.WAITS: 3, Activity.READY: 4}  # progress comes first
_MAX_NAME, _MAX_BAR, _MIN_BAR, _MAX_ROWS = 24, 40, 12, 24
_OTHER_LINES = 4  # the summary above, the legend and the number of other nodes below


def console(stream: TextIO, *, color: bool, columns: int | None = None, terminal: bool = False) -> Console:
    """Return a console that writes plain text: no markup, no highlighting, no emoji."""
    return Console(
        file=stream,
        width=columns,
        color_system="standard" if color else None,
        no_color=not color,
        force_terminal=terminal,
        legacy_windows=False,
        markup=False,
        highlight=False,
        emoji=False,
    )


def live_display(stream: TextIO, *, color: bool) -> Live:
    """Return a display that is redrawn on request and removed at the end."""
    drawn = console(stream, color=color, terminal=True)
    return Live(console=drawn, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False)


def rich_text(painted: str) -> Text:
    """Return a text that `Style` painted as rich has it."""
    text = Text()
    for part, color in painted_parts(painted):
        text.append(escape_control_characters(part), style=color)
    return text


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], style: Style) -> str:
    """Return rows as columns under headers, painted.

    Where a terminal is too narrow the last column wraps; what has no room even so stands below its row.
    """
    cells = [[rich_text(cell.replace("\n", r"\n")) for cell in row] for row in rows]
    widths = [max(len(header), *(row[position].cell_len for row in cells)) for position, header in enumerate(headers)]
    widths[-1] = min(widths[-1], _MIN_WIDTH)
    columns = style.columns or _ENDLESS
    kept = next((some for some in range(len(headers), 0, -1) if sum(widths[:some]) + 2 * (some - 1) <= columns), 1)
    grid = Table(box=None, pad_edge=False, padding=_GAP, header_style="bold")
    for header in headers[:kept]:
        grid.add_column(header, no_wrap=header is not headers[-1], overflow="fold")
    for row in cells:
        grid.add_row(*row[:kept])
    drawn = console(io.StringIO(), color=True, columns=columns)
    head, *lines = (_line(line, style) for line in drawn.render_lines(grid, pad=False))
    if kept == len(headers):
        return "\n".join([head, *lines])
    text = [head]
    for row, line in zip(cells, lines, strict=True):
        text.append(line)
        for header, cell in zip(headers[kept:], row[kept:], strict=True):
            if cell.plain not in {"", "-"}:
                below = Padding(Text.assemble(f"{header.lower()}: ", cell), (0, 0, 0, 4))
                text += [_line(part, style) for part in drawn.render_lines(below, pad=False)]
    return "\n".join(text)


def _line(parts: Iterable[Segment], style: Style) -> str:
    painted = ""
    for part in parts:
        word, look = part.text.rstrip(), part.style
        color = look.color.name if look and look.color else ""
        color = color or next((name for name in ("bold", "dim") if getattr(look, name, None)), "")
        painted += f"{style.paint(color, word)}{part.text[len(word) :]}"
    return painted.rstrip()


def timeline_picture(nodes: dict[str, NodeTimeline], now: float, columns: int, lines: int, summary: str = "") -> Group:
    """Return a summary and a row for each node: its timeline and its current activity.

    Nodes with progress come first, then failed, then waiting ones. A narrow terminal omits timelines first; the
    current activity is wrapped and never cut.
    """
    ranked = sorted(nodes.values(), key=lambda node: (_RANKS.get(node.current.activity, 0), natural_key(node.node)))
    room = min(lines - _OTHER_LINES, _MAX_ROWS)
    if not ranked or room < 1:
        return Group(Text(one_line(summary))) if summary else Group()
    shown, rest = ranked[:room], ranked[room:]
    name = min(max(len(node.node) for node in shown), _MAX_NAME, max(columns // 3, 4))
    bar = min((columns - name - 2) // 3, _MAX_BAR)
    grid = Table.grid(padding=_GAP)
    grid.add_column(no_wrap=True, overflow="ellipsis", max_width=name)
    if bar >= _MIN_BAR:
        grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    begin = min(node.spans(now)[0].begin for node in ranked)
    for node in shown:
        past = (_bar(node, begin, now, bar),) if bar >= _MIN_BAR else ()
        grid.add_row(Text(one_line(node.node)), *past, _current_text(node.current, now))
    parts: list[Text | Table] = [Text(one_line(summary)), grid] if summary else [grid]
    if rest:
        parts.append(Text(f"and {len(rest)} more: {count_activities(rest)}", style="dim"))
    if bar >= _MIN_BAR:
        seen = {span.activity for node in shown for span in node.spans(now)}
        legend = ", ".join(f"{activity.letter} {activity.word}" for activity in Activity if activity in seen)
        parts.append(Text(legend, style="dim"))
    return Group(*parts)


def _bar(node: NodeTimeline, begin: float, now: float, width: int) -> Text:
    """Return spans as one letter per cell of time: of the last activity that began in it."""
    letters: list[Activity | None] = [None] * width
    scale = width / max(now - begin, 0.001)
    for span in node.spans(now):
        first, last = (min(int((at - begin) * scale), width - 1) for at in (span.begin, span.end))
        letters[first : last + 1] = [span.activity] * (last + 1 - first)
    text = Text()
    for activity in letters:
        style = _ACTIVITY_COLORS.get(activity, "cyan") if activity else ""
        text.append(activity.letter if activity else " ", style=style)
    return text


def _current_text(span: TimelineSpan, now: float) -> Text:
    since = "" if span.activity in AT_REST else f" {max(now - span.begin, 0):.0f} s"
    head, _, reason = one_line(span.text).partition(": ")
    text = Text(head, style=_ACTIVITY_COLORS.get(span.activity, "cyan"))
    text.append(f"{since}{': ' if reason else ''}{reason}", style="default")
    return text
