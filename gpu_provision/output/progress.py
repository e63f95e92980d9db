"""What a run says while it goes: a line per step, a heartbeat while it waits, one line on a terminal.

Pure: the time comes in as an argument, text comes out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from gpu_provision.diagnostics.remedies import is_trouble
from gpu_provision.model.findings import one_line
from gpu_provision.model.progress import Event, State
from gpu_provision.output.text import PLAIN, Style, ranges

HEARTBEAT = 30.0  # seconds without a word after which a waiting run says what it waits for
SETTLED = frozenset({State.READY, State.FAILED, State.BLOCKED})
_MOST_REASONS = 3

Key = tuple[str, str]  # component, node


@dataclass(slots=True)
class Progress:
    """Follows the events of one run. Times are seconds on any clock that only goes forward.

    Attributes:
        started: When the run began.
        spoken: When something was last said.
        states: The last event of every component and node.
        unsaid: Events that are new since the last `news`.
    """

    started: float
    spoken: float = 0.0
    states: dict[Key, Event] = field(default_factory=dict)
    unsaid: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Count the first heartbeat from the start."""
        self.spoken = max(self.spoken, self.started)

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
            self.unsaid.append(event)
        elif begun and event.node:
            self.unsaid.append(replace(event, message=""))

    def news(self, now: float, style: Style = PLAIN) -> list[str]:
        """Return a line per step since the last call; nodes that take the same step share one."""
        events, self.unsaid = self.unsaid, []
        self.spoken = now if events else self.spoken
        return lines(events, style)

    def heartbeat(self, now: float) -> str:
        """Return what is awaited if nothing was said for HEARTBEAT seconds; else an empty string."""
        if now - self.spoken < HEARTBEAT or not self.awaited:
            return ""
        self.spoken = now
        summary = self.summary()
        return f"waiting {duration(now - self.started)}{f' for {summary}' if summary else ''}{self._reasons()}"

    def current(self, now: float) -> str:
        """Return the one line that a terminal shows and rewrites."""
        told = f"{self.summary()}{self._reasons()}".removeprefix("; ")
        return f"{duration(now - self.started):>6}  {told}" if self.awaited else ""

    @property
    def awaited(self) -> tuple[Event, ...]:
        """What has not settled yet; where nothing is known of components, the run's own last word."""
        found = [event for event in self.states.values() if event.state not in SETTLED]
        return tuple(event for event in found if event.component) or tuple(found)

    @property
    def _told_of(self) -> tuple[Event, ...]:
        """What has begun and has not settled; else everything that has not."""
        begun = tuple(event for event in self.awaited if event.state is State.PROGRESSING)
        return begun or self.awaited

    def summary(self) -> str:
        """Return ``driver 2/3 ready`` for what goes on; for what only waits, if nothing goes on."""
        waiting = dict.fromkeys(event.component for event in self._told_of if event.component)
        return ", ".join(f"{component} {self._count(component)}" for component in waiting)

    def _count(self, component: str) -> str:
        both = [event for event in self.states.values() if event.component == component]
        own = [event for event in both if event.node] or both
        ready = sum(event.state is State.READY for event in own)
        return f"{ready}/{len(own)} ready"

    def _reasons(self) -> str:
        reasons = [
            ": ".join(filter(None, (_who(group), group[0].message)))
            for group in _alike(event for event in self._told_of if event.message)
        ]
        more = len(reasons) - _MOST_REASONS
        told = one_line("; ".join(reasons[:_MOST_REASONS]))
        return f"; {told}{f' and {more} more' if more > 0 else ''}" if told else ""


def lines(events: Iterable[Event], style: Style = PLAIN) -> list[str]:
    """Return events as lines: sign, component, nodes, state, message; a run's own word stands alone."""
    return [_line(group, style) for group in _alike(events)]


def _alike(events: Iterable[Event]) -> list[list[Event]]:
    """Return events in their order, those that differ in nothing but the node together."""
    groups: dict[tuple[object, ...], list[Event]] = {}
    for event in events:
        groups.setdefault((event.component, event.state, event.step, event.message), []).append(event)
    return list(groups.values())


def _who(group: list[Event]) -> str:
    return ranges(event.node for event in group if event.node) or group[0].component


def _line(group: list[Event], style: Style) -> str:
    event = group[0]
    return event.line(ranges(each.node for each in group if each.node), style.state(event.state, event.word))


def duration(seconds: float) -> str:
    """Return a duration as people read it: ``90 s``, ``2 min 05 s``, ``3 h 20 min``."""
    whole = int(seconds)
    if whole < 2 * 60:
        return f"{whole} s"
    minutes = whole // 60
    return f"{minutes} min {whole % 60:02} s" if minutes < 2 * 60 else f"{minutes // 60} h {minutes % 60:02} min"


def fitted(text: str, columns: int) -> str:
    """Return a text cut to a terminal's width."""
    return text if len(text) < columns else f"{text[: max(columns - 4, 0)]}..."
