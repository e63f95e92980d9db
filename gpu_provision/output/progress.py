"""The progress of a run as text, and the timeline of each node.

Functions take the time as an argument and return text; `screen` draws the timelines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum

from gpu_provision.diagnostics.failures import is_failure
from gpu_provision.model.findings import one_line
from gpu_provision.model.progress import Event, State, Transition
from gpu_provision.output.text import PLAIN, Style, group_by, join_first, ranges
from gpu_provision.rollout.states import UpgradeState

HEARTBEAT = 30.0  # seconds of silence before a waiting run reports its pending components
_SETTLED = frozenset({State.READY, State.FAILED, State.BLOCKED})
_MAX_REASONS = 3


@dataclass(slots=True)
class Progress:
    """Follows the events of one run. Times are seconds of a monotonic clock."""

    started: float
    last_report: float = 0.0  # time of the last report
    states: dict[tuple[str, str], Event] = field(default_factory=dict)  # the last event of every component and node
    unreported: list[Event] = field(default_factory=list)  # new since the last `new_lines`
    waves: tuple[frozenset[str], ...] = ()  # nodes of each wave of the rollout that was planned
    _replacing_since: float | None = None
    _replaced: tuple[int, float] = (0, 0.0)  # how many, and since when

    def __post_init__(self) -> None:
        """Count the first heartbeat from the start."""
        self.last_report = max(self.last_report, self.started)

    def observe(self, event: Event) -> None:
        """Record an event, and queue it for the next report if a reader would act on it.

        These are settled and started components, failures, and every step of a driver's replacement.
        The heartbeat reports all else.
        """
        key = (event.component, event.node)
        before, self.states[key] = self.states.get(key), event
        if before == event or event.state is State.PENDING:
            return
        begun = before is None or (before.state, before.step) != (event.state, event.step)
        is_step = begun and bool(event.step)
        if event.state is not State.PROGRESSING or not event.component or is_step or is_failure(event.message):
            self.unreported.append(event)
        elif begun and event.node:
            self.unreported.append(replace(event, message=""))

    def new_lines(self, now: float, style: Style = PLAIN) -> list[str]:
        """Return a line per step since the last call; nodes that take the same step share one."""
        events, self.unreported = self.unreported, []
        self.last_report = now if events else self.last_report
        return lines(events, style)

    def heartbeat(self, now: float) -> str:
        """Return the pending components after HEARTBEAT seconds of silence; else an empty string."""
        if now - self.last_report < HEARTBEAT or not self._unsettled_events:
            return ""
        self.last_report = now
        about = self._summary(now)
        return f"waiting {duration(now - self.started)}{f' for {about}' if about else ''}{self._reasons()}"

    def current(self, now: float) -> str:
        """Return the status line of a terminal."""
        text = f"{self._summary(now)}{self._reasons()}".removeprefix("; ")
        return f"{duration(now - self.started):>6}  {text}" if self._unsettled_events else ""

    def rollout(self, now: float) -> str:
        """Return ``wave 2 of 3, about 4 min left`` during a rollout; the estimate follows from the finished nodes."""
        of_driver = {node: event for (component, node), event in self.states.items() if component == "driver"}
        steps = {node: event.step for node, event in of_driver.items() if is_under_way(event.step)}
        replaced = {node for node, event in of_driver.items() if event.state in _SETTLED} - steps.keys()
        left = [wave - replaced for wave in self.waves]
        nodes = sum(map(len, left))
        done = sum(map(len, self.waves)) - nodes
        if self._replacing_since is None and set(steps.values()) - {UpgradeState.UPGRADE_REQUIRED}:
            self._replacing_since = now
        if self._replacing_since is None or not nodes:
            return ""
        if done != self._replaced[0]:
            self._replaced = done, now
        number = next(number for number, some in enumerate(left, start=1) if some)
        each = (self._replaced[1] - self._replacing_since) / max(done, 1)
        rest = each * nodes - (now - self._replaced[1])
        return f"wave {number} of {len(left)}{f', about {duration(rest)} left' if done and rest > 0 else ''}"

    @property
    def _unsettled_events(self) -> tuple[Event, ...]:
        """Events of unsettled components; without any, the run's own last event."""
        events = [event for event in self.states.values() if event.state not in _SETTLED]
        return tuple(event for event in events if event.component) or tuple(events)

    @property
    def _begun_events(self) -> tuple[Event, ...]:
        """Unsettled events that have begun; without any, all unsettled events."""
        return (
            tuple(event for event in self._unsettled_events if event.state is State.PROGRESSING)
            or self._unsettled_events
        )

    def _summary(self, now: float) -> str:
        """Return the rollout, and ``driver 2/3 ready`` for each reported component."""
        parts = [self.rollout(now)]
        for component in dict.fromkeys(event.component for event in self._begun_events if event.component):
            both = [event for event in self.states.values() if event.component == component]
            own = [event for event in both if event.node] or both
            parts.append(f"{component} {sum(event.state is State.READY for event in own)}/{len(own)} ready")
        return ", ".join(filter(None, parts))

    def _reasons(self) -> str:
        reasons = []
        for group in _group_events(event for event in self._begun_events if event.message):
            who = ranges(event.node for event in group if event.node) or group[0].component
            reasons.append(one_line(": ".join(filter(None, (who, group[0].message)))))
        return f"; {join_first(reasons, _MAX_REASONS, '; ')}" if reasons else ""


def lines(events: Iterable[Event], style: Style = PLAIN) -> list[str]:
    """Return events as lines: sign, component, nodes, state, message."""
    return [
        group[0].line(
            ranges(each.node for each in group if each.node), style.state(group[0].state, group[0].state_text)
        )
        for group in _group_events(events)
    ]


def _group_events(events: Iterable[Event]) -> Iterable[list[Event]]:
    """Group events that differ only in the node, in their order."""
    return group_by(events, lambda event: (event.component, event.state, event.step, event.message)).values()


def duration(seconds: float) -> str:
    """Return a duration as text: ``90 s``, ``2 min 05 s``, ``3 h 20 min``."""
    whole = int(seconds)
    if whole < 2 * 60:
        return f"{whole} s"
    minutes = whole // 60
    return f"{minutes} min {whole % 60:02} s" if minutes < 2 * 60 else f"{minutes // 60} h {minutes % 60:02} min"


class Activity(Enum):
    """The activity of a node: a letter for bars without colors, and a word."""

    WAITS = (".", "waiting")
    COMES_UP = ("i", "coming up")
    CORDON = ("c", "cordon")
    JOBS = ("j", "jobs may end")
    EVICTION = ("e", "GPU pods leave")
    DRAIN = ("d", "drain")
    RESTART = ("r", "driver restarts")
    VALIDATION = ("v", "validation")
    UNCORDON = ("u", "uncordon")
    ELSEWHERE = ("m", "external maintenance")
    READY = ("=", "ready")
    BLOCKED = ("x", "blocked")
    FAILED = ("!", "failed")

    def __init__(self, letter: str, word: str) -> None:
        """Set letter and word."""
        self.letter, self.word = letter, word


AT_REST = frozenset({Activity.WAITS, Activity.READY, Activity.BLOCKED, Activity.FAILED})
"""Activities without progress."""

_OF_STEP = {
    UpgradeState.UPGRADE_REQUIRED: Activity.WAITS,
    UpgradeState.CORDON_REQUIRED: Activity.CORDON,
    UpgradeState.WAIT_FOR_JOBS_REQUIRED: Activity.JOBS,
    UpgradeState.POD_DELETION_REQUIRED: Activity.EVICTION,
    UpgradeState.DRAIN_REQUIRED: Activity.DRAIN,
    UpgradeState.POD_RESTART_REQUIRED: Activity.RESTART,
    UpgradeState.VALIDATION_REQUIRED: Activity.VALIDATION,
    UpgradeState.UNCORDON_REQUIRED: Activity.UNCORDON,
    UpgradeState.NODE_MAINTENANCE_REQUIRED: Activity.ELSEWHERE,
    UpgradeState.POST_MAINTENANCE_REQUIRED: Activity.ELSEWHERE,
}
_OF_STATE = {  # the activity of a node is the first of these that a component has
    State.FAILED: Activity.FAILED,
    State.PROGRESSING: Activity.COMES_UP,
    State.BLOCKED: Activity.BLOCKED,
    State.LEAVING: Activity.WAITS,
    State.PENDING: Activity.WAITS,
    State.READY: Activity.READY,
}
_FIRST = tuple(_OF_STATE)


@dataclass(frozen=True, slots=True)
class TimelineSpan:
    """One activity of a node from ``begin`` to ``end``, in seconds; ``reason`` is the last known one."""

    begin: float
    end: float
    activity: Activity
    component: str
    reason: str

    @property
    def text(self) -> str:
        """Activity and reason: ``toolkit coming up: ContainerCreating``."""
        if self.activity is Activity.WAITS and self.reason:
            return self.reason
        names_component = self.activity in {Activity.COMES_UP, Activity.FAILED}
        about = f"{self.component} {self.activity.word}" if names_component else self.activity.word
        return f"{about}: {self.reason}" if self.reason else about


@dataclass(slots=True)
class NodeTimeline:
    """The activities of one node, from its transitions in chronological order."""

    node: str
    _open: list[TimelineSpan] = field(default_factory=list)
    _components: dict[str, Transition] = field(default_factory=dict)

    def add(self, transition: Transition) -> None:
        """Add a transition of one of the node's components."""
        if transition.component not in self._components and self._open and self.current.activity is Activity.READY:
            self._open[-1] = replace(self.current, activity=Activity.WAITS)  # another component follows
        self._components[transition.component] = transition
        known = list(self._components.values())
        in_rollout = (
            each for each in known if is_under_way(each.step) and each.state not in {State.READY, State.FAILED}
        )
        leading = next(in_rollout, None) or min(known, key=lambda each: _FIRST.index(each.state))
        reason = "" if leading.reason == f"is in {leading.step}" else leading.reason  # repeats the step
        span = TimelineSpan(transition.at, transition.at, _activity_of(leading), leading.component, reason)
        before = self._open.pop() if self._open else span
        if (before.activity, before.component) == (span.activity, span.component):
            self._open.append(replace(span, begin=before.begin))
        else:
            self._open += [replace(before, end=transition.at), span]

    @property
    def current(self) -> TimelineSpan:
        """The current activity; its end is unknown."""
        return self._open[-1]

    @property
    def started(self) -> float:
        """Begin of the first activity with progress; infinity if there is none."""
        return next((span.begin for span in self._open if span.activity not in AT_REST), float("inf"))

    def spans(self, end: float) -> tuple[TimelineSpan, ...]:
        """Return all activities until ``end``."""
        return (*self._open[:-1], replace(self.current, end=max(end, self.current.begin)))


def timelines_of(timeline: Iterable[Transition]) -> dict[str, NodeTimeline]:
    """Return the timelines of a finished run by node."""
    lanes: dict[str, NodeTimeline] = {}
    for transition in timeline:
        add_transition(lanes, transition)
    return lanes


def add_transition(lanes: dict[str, NodeTimeline], transition: Transition) -> None:
    """Add a transition to its node's timeline; ignore one without a node."""
    if transition.node:
        lanes.setdefault(transition.node, NodeTimeline(transition.node)).add(transition)


def count_activities(lanes: Iterable[NodeTimeline]) -> str:
    """Return the number of nodes by activity: ``1 waiting, 3 ready``."""
    counts = Counter(lane.current.activity.word for lane in lanes)
    return ", ".join(f"{number} {word}" for word, number in counts.items())


def _activity_of(leading: Transition) -> Activity:
    if is_under_way(leading.step) and leading.state not in {State.BLOCKED, State.FAILED}:
        return _OF_STEP[UpgradeState(leading.step)]
    if leading.state is State.PROGRESSING and leading.component.endswith("validation"):
        return Activity.VALIDATION
    return _OF_STATE[leading.state]


def is_under_way(step: str) -> bool:
    """Whether this upgrade state is part of a driver replacement or waits for one."""
    return step in _OF_STEP
