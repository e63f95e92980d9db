"""What a run says while it goes, and what each node was about over time.

The time comes in as an argument, text comes out; `screen` draws the picture of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum

from gpu_provision.diagnostics.failures import is_trouble
from gpu_provision.model.findings import one_line
from gpu_provision.model.progress import Event, State, Transition
from gpu_provision.output.text import PLAIN, Style, group_by, join_first, ranges
from gpu_provision.rollout.states import UpgradeState

HEARTBEAT = 30.0  # seconds without a word after which a waiting run says what it waits for
_SETTLED = frozenset({State.READY, State.FAILED, State.BLOCKED})
_MOST_REASONS = 3


@dataclass(slots=True)
class Progress:
    """Follows the events of one run. Times are seconds on any clock that only goes forward."""

    started: float
    last_report: float = 0.0  # when something was last said
    states: dict[tuple[str, str], Event] = field(default_factory=dict)  # the last of every component and node
    unreported: list[Event] = field(default_factory=list)  # new since the last `new_lines`
    waves: tuple[frozenset[str], ...] = ()  # nodes of each wave of the rollout that was planned
    _replacing_since: float | None = None
    _replaced: tuple[int, float] = (0, 0.0)  # how many, and since when

    def __post_init__(self) -> None:
        """Count the first heartbeat from the start."""
        self.last_report = max(self.last_report, self.started)

    def observe(self, event: Event) -> None:
        """Take an event in; only what a reader would act on is kept for saying.

        That is: something has settled, something has begun, something is in trouble, and every step of a driver's
        replacement. Where a pod stands between that is for the heartbeat.
        """
        key = (event.component, event.node)
        before, self.states[key] = self.states.get(key), event
        if before == event or event.state is State.PENDING:
            return
        begun = before is None or (before.state, before.step) != (event.state, event.step)
        is_step = begun and bool(event.step)
        if event.state is not State.PROGRESSING or not event.component or is_step or is_trouble(event.message):
            self.unreported.append(event)
        elif begun and event.node:
            self.unreported.append(replace(event, message=""))

    def new_lines(self, now: float, style: Style = PLAIN) -> list[str]:
        """Return a line per step since the last call; nodes that take the same step share one."""
        events, self.unreported = self.unreported, []
        self.last_report = now if events else self.last_report
        return lines(events, style)

    def heartbeat(self, now: float) -> str:
        """Return what is awaited if nothing was said for HEARTBEAT seconds; else an empty string."""
        if now - self.last_report < HEARTBEAT or not self._unsettled:
            return ""
        self.last_report = now
        about = self._summary(now)
        return f"waiting {duration(now - self.started)}{f' for {about}' if about else ''}{self._reasons()}"

    def current(self, now: float) -> str:
        """Return the one line that a terminal shows and rewrites."""
        text = f"{self._summary(now)}{self._reasons()}".removeprefix("; ")
        return f"{duration(now - self.started):>6}  {text}" if self._unsettled else ""

    def rollout(self, now: float) -> str:
        """Return ``wave 2 of 3, about 4 min left`` while drivers are replaced; the time is that of the nodes so far."""
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
    def _unsettled(self) -> tuple[Event, ...]:
        """What has not settled yet; where nothing is known of components, the run's own last word."""
        events = [event for event in self.states.values() if event.state not in _SETTLED]
        return tuple(event for event in events if event.component) or tuple(events)

    @property
    def _reported(self) -> tuple[Event, ...]:
        """What has begun and has not settled; else everything that has not."""
        return tuple(event for event in self._unsettled if event.state is State.PROGRESSING) or self._unsettled

    def _summary(self, now: float) -> str:
        """Return the rollout, and ``driver 2/3 ready`` for what goes on; for what only waits, if nothing goes on."""
        parts = [self.rollout(now)]
        for component in dict.fromkeys(event.component for event in self._reported if event.component):
            both = [event for event in self.states.values() if event.component == component]
            own = [event for event in both if event.node] or both
            parts.append(f"{component} {sum(event.state is State.READY for event in own)}/{len(own)} ready")
        return ", ".join(filter(None, parts))

    def _reasons(self) -> str:
        reasons = []
        for group in _group_events(event for event in self._reported if event.message):
            who = ranges(event.node for event in group if event.node) or group[0].component
            reasons.append(one_line(": ".join(filter(None, (who, group[0].message)))))
        return f"; {join_first(reasons, _MOST_REASONS, '; ')}" if reasons else ""


def lines(events: Iterable[Event], style: Style = PLAIN) -> list[str]:
    """Return events as lines: sign, component, nodes, state, message; a run's own word stands alone."""
    return [
        group[0].line(ranges(each.node for each in group if each.node), style.state(group[0].state, group[0].word))
        for group in _group_events(events)
    ]


def _group_events(events: Iterable[Event]) -> Iterable[list[Event]]:
    """Return events in their order, those that differ in nothing but the node together."""
    return group_by(events, lambda event: (event.component, event.state, event.step, event.message)).values()


def duration(seconds: float) -> str:
    """Return a duration as people read it: ``90 s``, ``2 min 05 s``, ``3 h 20 min``."""
    whole = int(seconds)
    if whole < 2 * 60:
        return f"{whole} s"
    minutes = whole // 60
    return f"{minutes} min {whole % 60:02} s" if minutes < 2 * 60 else f"{minutes // 60} h {minutes % 60:02} min"


class Activity(Enum):
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
    ELSEWHERE = ("m", "external maintenance")
    READY = ("=", "ready")
    BLOCKED = ("x", "blocked")
    FAILED = ("!", "failed")

    def __init__(self, letter: str, word: str) -> None:
        """Name the two."""
        self.letter, self.word = letter, word


AT_REST = frozenset({Activity.WAITS, Activity.READY, Activity.BLOCKED, Activity.FAILED})
"""Nothing goes on."""

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
_OF_STATE = {  # what a node is about is the first of these that a component has
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
    """A node was about one thing from ``begin`` to ``end``, in seconds; ``reason`` is the last that was known."""

    begin: float
    end: float
    activity: Activity
    component: str
    reason: str

    @property
    def text(self) -> str:
        """Return what it was about, and why, in words: ``toolkit coming up: ContainerCreating``."""
        if self.activity is Activity.WAITS and self.reason:
            return self.reason
        names_component = self.activity in {Activity.COMES_UP, Activity.FAILED}
        about = f"{self.component} {self.activity.word}" if names_component else self.activity.word
        return f"{about}: {self.reason}" if self.reason else about


@dataclass(slots=True)
class NodeTimeline:
    """One node. Fed with its transitions in the order of time."""

    node: str
    _open: list[TimelineSpan] = field(default_factory=list)
    _components: dict[str, Transition] = field(default_factory=dict)

    def add(self, transition: Transition) -> None:
        """Take a transition of one of the node's components in."""
        if transition.component not in self._components and self._open and self.current.activity is Activity.READY:
            self._open[-1] = replace(self.current, activity=Activity.WAITS)  # it was not all that there was to do
        self._components[transition.component] = transition
        known = list(self._components.values())
        in_rollout = (
            each for each in known if is_under_way(each.step) and each.state not in {State.READY, State.FAILED}
        )
        leading = next(in_rollout, None) or min(known, key=lambda each: _FIRST.index(each.state))
        reason = "" if leading.reason == f"is in {leading.step}" else leading.reason  # only says the step again
        span = TimelineSpan(transition.at, transition.at, _activity_of(leading), leading.component, reason)
        before = self._open.pop() if self._open else span
        if (before.activity, before.component) == (span.activity, span.component):
            self._open.append(replace(span, begin=before.begin))
        else:
            self._open += [replace(before, end=transition.at), span]

    @property
    def current(self) -> TimelineSpan:
        """Where the node stands; its end is not known yet."""
        return self._open[-1]

    @property
    def started(self) -> float:
        """When something was first done to the node; infinity if nothing ever was."""
        return next((span.begin for span in self._open if span.activity not in AT_REST), float("inf"))

    def spans(self, end: float) -> tuple[TimelineSpan, ...]:
        """Return what the node was about until ``end``."""
        return (*self._open[:-1], replace(self.current, end=max(end, self.current.begin)))


def timelines_of(timeline: Iterable[Transition]) -> dict[str, NodeTimeline]:
    """Return the lanes of a run that is over, by node."""
    lanes: dict[str, NodeTimeline] = {}
    for transition in timeline:
        add_transition(lanes, transition)
    return lanes


def add_transition(lanes: dict[str, NodeTimeline], transition: Transition) -> None:
    """Take a transition in; one of a component that is not per node is none of a lane."""
    if transition.node:
        lanes.setdefault(transition.node, NodeTimeline(transition.node)).add(transition)


def count_activities(lanes: Iterable[NodeTimeline]) -> str:
    """Return what nodes are about, and how many of them: ``1 waiting, 3 ready``."""
    counts = Counter(lane.current.activity.word for lane in lanes)
    return ", ".join(f"{number} {word}" for word, number in counts.items())


def _activity_of(leading: Transition) -> Activity:
    if is_under_way(leading.step) and leading.state not in {State.BLOCKED, State.FAILED}:
        return _OF_STEP[UpgradeState(leading.step)]
    if leading.state is State.PROGRESSING and leading.component.endswith("validation"):
        return Activity.VALIDATION
    return _OF_STATE[leading.state]


def is_under_way(step: str) -> bool:
    """Whether a node with this value of its label is on its way to another driver, or waits for its turn."""
    return step in _OF_STEP
