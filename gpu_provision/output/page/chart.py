"""The timeline of the page: nodes x time as bars in percent of the run; pure, and bounded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gpu_provision.output.progress import duration
from gpu_provision.output.text import natural
from gpu_provision.output.timeline import (
    Doing,
    Lane,
    Lanes,
    Span,
)

MOST_ROWS = 1000
_MOST_BARS = 40_000  # in the whole chart
_LEAST_LETTER = 3.0  # percent that a bar needs to hold its letter
_THINNEST = 0.3  # percent: what is there can be seen
_MOST_TOLD = 8  # spans that share a bar and are told
_MOST_TICKS = 5
_LAST_TICK = 0.92  # of the run; the label of a later one would not fit
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
_BROKEN = (Doing.FAILED, Doing.BLOCKED)


@dataclass(frozen=True, slots=True)
class Bar:
    """One thing that a node was about; several, where each is too short to be seen. ``x`` and ``width`` in percent."""

    x: float
    width: float
    doing: Doing
    title: str

    @property
    def letter(self) -> str:
        """The letter that it has room for."""
        return self.doing.letter if self.width >= _LEAST_LETTER else ""


@dataclass(frozen=True, slots=True)
class Row:
    """One node: its bars, and where it stands in the end."""

    node: str
    bars: tuple[Bar, ...]
    doing: Doing
    status: str


@dataclass(frozen=True, slots=True)
class Chart:
    """The whole of it. ``ticks`` are positions in percent and their labels; ``rest`` tells of nodes left out."""

    rows: tuple[Row, ...]
    ticks: tuple[tuple[float, str], ...]
    legend: tuple[Doing, ...]
    rest: str


def chart(lanes: Lanes, seconds: float) -> Chart:
    """Return the chart of a run: nodes that ended badly first, then in the order in which they were begun."""
    ordered = sorted(lanes.of.values(), key=_place)
    shown, rest = ordered[:MOST_ROWS], ordered[MOST_ROWS:]
    seconds = max(seconds, 0.001)
    least = max(_THINNEST, 200 * len(shown) / _MOST_BARS)
    rows = tuple(Row(lane.node, _bars(lane, seconds, least), lane.current.doing, lane.current.text) for lane in shown)
    used = {bar.doing for row in rows for bar in row.bars}
    return Chart(rows, tuple(_ticks(seconds)), tuple(doing for doing in Doing if doing in used), _told(rest))


def _place(lane: Lane) -> tuple[object, ...]:
    return lane.current.doing not in _BROKEN, lane.started, natural(lane.node)


def _told(rest: Sequence[Lane]) -> str:
    counts = Counter(lane.current.doing for lane in rest)
    return ", ".join(f"{number} {doing.word}" for doing, number in counts.items())


def _bars(lane: Lane, seconds: float, least: float) -> tuple[Bar, ...]:
    spans = lane.spans(seconds)
    seen = [span for span in spans if span.end > span.begin or span is spans[-1]]
    return tuple(_bar(lane.node, group, seconds) for group in _groups(seen, seconds * least / 100))


def _groups(spans: Iterable[Span], least: float) -> Iterator[list[Span]]:
    """Yield spans one by one; neighbors that are shorter than ``least`` seconds come together."""
    short: list[Span] = []
    for span in spans:
        if span.end - span.begin < least:
            short.append(span)
            continue
        if short:
            yield short
            short = []
        yield [span]
    if short:
        yield short


def _bar(node: str, group: Sequence[Span], seconds: float) -> Bar:
    longest = max(group, key=lambda span: span.end - span.begin)
    width = max((group[-1].end - group[0].begin) / seconds * 100, _THINNEST)
    x = min(group[0].begin / seconds * 100, 100 - width)
    told = [f"{span.begin:.1f} to {span.end:.1f} s: {span.text}" for span in group[:_MOST_TOLD]]
    more = [f"and {len(group) - _MOST_TOLD} more"] if len(group) > _MOST_TOLD else []
    return Bar(round(x, 2), round(width, 2), longest.doing, "\n".join([node, *told, *more]))


def _ticks(seconds: float) -> Iterator[tuple[float, str]]:
    step = next((step for step in _STEPS if seconds / step <= _MOST_TICKS), _STEPS[-1])
    for at in range(0, int(seconds * _LAST_TICK) + 1, step):
        yield round(at / seconds * 100, 2), duration(at).removesuffix(" 00 s").removesuffix(" 00 min")
