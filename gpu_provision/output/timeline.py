"""A run as a picture for a terminal: one lane for each node, read off the transitions of its components."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from gpu_provision.model.progress import State, Transition
from gpu_provision.output.text import PLAIN, Style, natural
from gpu_provision.rollout.states import UpgradeState


class Doing(Enum):
    """What a node is about: a letter that reads without colors, and a word."""

    WAITS = (".", "waiting")
    COMES_UP = ("i", "coming up")
    CORDON = ("c", "cordon")
    JOBS = ("j", "jobs may end")
    EVICTION = ("e", "GPU pods leave")
    DRAIN = ("d", "drain")
    RESTART = ("r", "driver restarts")
    VALIDATION = ("v", "validation")
    UNCORDON = ("u", "uncordon")
    ELSEWHERE = ("m", "somebody else's maintenance")
    READY = ("+", "ready")
    BLOCKED = ("-", "blocked")
    FAILED = ("!", "failed")

    def __init__(self, letter: str, word: str) -> None:
        """Name the two."""
        self.letter, self.word = letter, word


AT_REST = frozenset({Doing.WAITS, Doing.READY, Doing.BLOCKED, Doing.FAILED})
"""Nothing goes on."""

_OF_STEP = {
    UpgradeState.UPGRADE_REQUIRED: Doing.WAITS,
    UpgradeState.CORDON_REQUIRED: Doing.CORDON,
    UpgradeState.WAIT_FOR_JOBS_REQUIRED: Doing.JOBS,
    UpgradeState.POD_DELETION_REQUIRED: Doing.EVICTION,
    UpgradeState.DRAIN_REQUIRED: Doing.DRAIN,
    UpgradeState.POD_RESTART_REQUIRED: Doing.RESTART,
    UpgradeState.VALIDATION_REQUIRED: Doing.VALIDATION,
    UpgradeState.UNCORDON_REQUIRED: Doing.UNCORDON,
    UpgradeState.NODE_MAINTENANCE_REQUIRED: Doing.ELSEWHERE,
    UpgradeState.POST_MAINTENANCE_REQUIRED: Doing.ELSEWHERE,
}
_OF_STATE = {
    State.FAILED: Doing.FAILED,
    State.PROGRESSING: Doing.COMES_UP,
    State.LEAVING: Doing.WAITS,
    State.BLOCKED: Doing.BLOCKED,
    State.PENDING: Doing.WAITS,
    State.READY: Doing.READY,
}
_FIRST = (State.FAILED, State.PROGRESSING, State.BLOCKED, State.LEAVING, State.PENDING, State.READY)
_OVER = frozenset({State.READY, State.FAILED})
_ENDS_BADLY = frozenset({State.BLOCKED, State.FAILED})
_VALIDATION = "validation"


@dataclass(frozen=True, slots=True)
class Span:
    """A node was about one thing from ``begin`` to ``end``, in seconds; ``reason`` is the last that was known."""

    begin: float
    end: float
    doing: Doing
    component: str
    reason: str

    @property
    def text(self) -> str:
        """Return what it was about, and why, in words: ``toolkit coming up: ContainerCreating``."""
        if self.doing is Doing.WAITS and self.reason:
            return self.reason
        about = f"{self.component} {self.doing.word}" if self.doing in _NAMES_COMPONENT else self.doing.word
        return f"{about}: {self.reason}" if self.reason else about


_NAMES_COMPONENT = frozenset({Doing.COMES_UP, Doing.FAILED})


@dataclass(slots=True)
class Lane:
    """One node. Fed with its transitions in the order of time."""

    node: str
    _open: list[Span] = field(default_factory=list)
    _components: dict[str, Transition] = field(default_factory=dict)

    def add(self, transition: Transition) -> None:
        """Take a transition of one of the node's components in."""
        if transition.component not in self._components and self._open and self.current.doing is Doing.READY:
            self._open[-1] = replace(self.current, doing=Doing.WAITS)  # it was not all that there was to do
        self._components[transition.component] = transition
        leading = _leading(self._components.values())
        doing = _doing(leading)
        span = Span(transition.at, transition.at, doing, leading.component, reason_beside(leading.step, leading.reason))
        before = self._open.pop() if self._open else span
        if (before.doing, before.component) == (span.doing, span.component):
            self._open.append(replace(span, begin=before.begin))
        else:
            self._open += [replace(before, end=transition.at), span]

    @property
    def current(self) -> Span:
        """Where the node stands; its end is not known yet."""
        return self._open[-1]

    @property
    def started(self) -> float:
        """When something was first done to the node; infinity if nothing ever was."""
        return next((span.begin for span in self._open if span.doing not in AT_REST), float("inf"))

    def spans(self, end: float) -> tuple[Span, ...]:
        """Return what the node was about until ``end``."""
        return (*self._open[:-1], replace(self.current, end=max(end, self.current.begin)))


@dataclass(slots=True)
class Lanes:
    """The lanes of all nodes, by name."""

    of: dict[str, Lane] = field(default_factory=dict)

    def add(self, transition: Transition) -> None:
        """Take a transition in; one of a component that is not per node is none of a lane."""
        if transition.node:
            self.of.setdefault(transition.node, Lane(transition.node)).add(transition)


def lanes_of(timeline: Iterable[Transition]) -> Lanes:
    """Return the lanes of a run that is over."""
    lanes = Lanes()
    for transition in timeline:
        lanes.add(transition)
    return lanes


def _leading(components: Iterable[Transition]) -> Transition:
    """Return the component that tells what its node is about: of the driver's replacement, else the first not ready."""
    known = list(components)
    rolling = next((each for each in known if is_under_way(each.step) and each.state not in _OVER), None)
    return rolling or min(known, key=lambda each: _FIRST.index(each.state))


def _doing(leading: Transition) -> Doing:
    if leading.state in _ENDS_BADLY:
        return _OF_STATE[leading.state]
    if is_under_way(leading.step):
        return _OF_STEP[UpgradeState(leading.step)]
    if leading.state is State.PROGRESSING and leading.component.endswith(_VALIDATION):
        return Doing.VALIDATION
    return _OF_STATE[leading.state]


def is_under_way(step: str) -> bool:
    """Whether a node with this value of its label is on its way to another driver, or waits for its turn."""
    return step in _OF_STEP


def reason_beside(step: str, reason: str) -> str:
    """Return a reason, unless it only says the step again."""
    return "" if step and reason == f"is in {step}" else reason


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
