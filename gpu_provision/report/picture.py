"""A run as a picture for a terminal: nodes as rows, what they were about over time, what each waits for. Pure."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from gpu_provision.report.lanes import AT_REST, Doing, Lane, Lanes, Span
from gpu_provision.report.names import natural
from gpu_provision.report.style import PLAIN, Style

_COLORS = {
    Doing.WAITS: "dim",
    Doing.READY: "green",
    Doing.BLOCKED: "yellow",
    Doing.FAILED: "red",
    Doing.EVICTION: "yellow",
    Doing.DRAIN: "yellow",
}
_RANKS = {Doing.FAILED: 1, Doing.BLOCKED: 2, Doing.WAITS: 3, Doing.READY: 4}  # whatever goes on comes first
_LONGEST_NAME, _LONGEST_BAR, _SHORTEST_BAR = 24, 40, 12
_LEGEND_LINES = 2
_FIXED_LINES = _LEGEND_LINES + 1  # and how many more nodes there are
_MOST_ROWS = 24
_BOUND = "\xa0"  # where no line ends


class Size(NamedTuple):
    """Of the terminal, in characters, as far as the picture may use it."""

    columns: int
    lines: int


def picture(lanes: Lanes, now: float, size: Size, style: Style = PLAIN) -> list[str]:
    """Return the picture's lines, none wider or more than fit; empty if there are no nodes or there is no room.

    Nodes that something is being done to come first, then failed ones, then those that wait.
    """
    room = min(size.lines - _FIXED_LINES, _MOST_ROWS)
    ranked = sorted(lanes.of.values(), key=lambda lane: (_rank(lane), natural(lane.node)))
    if room < 1 or not ranked:
        return []
    shown, rest = ranked[:room], ranked[room:]
    widths = _widths(shown, size.columns)
    time = _Time(min(lane.spans(now)[0].begin for lane in ranked), now)
    rows = [_row(lane, time, widths, style) for lane in shown]
    doings = {span.doing for lane in shown for span in lane.spans(now)} if widths.bar else set()
    return [*rows, *_more(rest, size.columns, style), *_legend(doings, size.columns, style)]


def _rank(lane: Lane) -> int:
    return _RANKS.get(lane.current.doing, 0)


class _Time(NamedTuple):
    """What the bars show, in seconds: from the first thing that is known until now."""

    begin: float
    now: float


class _Widths(NamedTuple):
    name: int
    bar: int
    text: int


def _widths(lanes: Iterable[Lane], columns: int) -> _Widths:
    """Share a line: the text has the most to say, so a narrow terminal loses the bar first."""
    name = min(max(len(lane.node) for lane in lanes), _LONGEST_NAME, max(columns // 3, 4))
    left = columns - 1 - name - 2
    bar = min(left // 3, _LONGEST_BAR)
    return _Widths(name, bar, left - bar - 2) if bar >= _SHORTEST_BAR else _Widths(name, 0, left)


def _row(lane: Lane, time: _Time, widths: _Widths, style: Style) -> str:
    name = cut(lane.node, widths.name).ljust(widths.name)
    cells = [name, _bar(lane.spans(time.now), time, widths.bar, style)] if widths.bar else [name]
    return "  ".join([*cells, _told(lane.current, time.now, widths.text, style)]).rstrip()


def _bar(spans: Sequence[Span], time: _Time, width: int, style: Style) -> str:
    """Return spans as one letter per cell of time: that of what began last in it."""
    letters: list[Doing | None] = [None] * width
    for span in spans:
        first, last = _cell(span.begin, time, width), _cell(span.end, time, width)
        letters[first : last + 1] = [span.doing] * (last + 1 - first)
    return "".join(_painted(doing, style) for doing in letters)


def _cell(at: float, time: _Time, width: int) -> int:
    seconds = time.now - time.begin
    return min(int((at - time.begin) / seconds * width), width - 1) if seconds > 0 else 0


def _painted(doing: Doing | None, style: Style) -> str:
    return " " if doing is None else style.paint(_COLORS.get(doing, "cyan"), doing.letter)


def _told(span: Span, now: float, width: int, style: Style) -> str:
    since = "" if span.doing in AT_REST else f" {max(now - span.begin, 0):.0f} s"
    head, _, reason = span.text.partition(": ")
    text = cut(f"{head}{since}{': ' if reason else ''}{reason}", width)
    painted = style.paint(_COLORS.get(span.doing, "cyan"), text[: len(head)])
    return f"{painted}{text[len(head) :]}"


def _more(rest: Sequence[Lane], columns: int, style: Style) -> list[str]:
    if not rest:
        return []
    counts = Counter(lane.current.doing for lane in rest)
    told = ", ".join(f"{number} {doing.word}" for doing, number in counts.items())
    return [style.dim(cut(f"and {len(rest)} more: {told}", columns - 1))]


def _legend(doings: Collection[Doing], columns: int, style: Style) -> list[str]:
    told = ", ".join(f"{doing.letter}{_BOUND}{doing.word.replace(' ', _BOUND)}" for doing in Doing if doing in doings)
    lines = textwrap.wrap(told, columns - 1, max_lines=_LEGEND_LINES, placeholder="...")
    return [style.dim(line.replace(_BOUND, " ")) for line in lines]


def cut(text: str, width: int) -> str:
    """Return a text on one line that is no longer than ``width``; what is missing is marked."""
    flat = " ".join(text.split())
    return flat if len(flat) <= width else f"{flat[: max(width - 3, 0)]}..."[: max(width, 0)]
