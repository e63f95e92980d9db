"""What a run says while it goes: one line per step, a heartbeat while it waits, one line on a terminal.

Pure: the time comes in as an argument, text comes out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gpu_provision.model.progress import Event, State
from gpu_provision.report.style import PLAIN, Style

HEARTBEAT = 30.0  # seconds without a word after which a waiting run says what it waits for
_SIGNS = {
    State.PENDING: " ",
    State.PROGRESSING: ".",
    State.READY: "+",
    State.FAILED: "!",
    State.BLOCKED: "-",
}
_SETTLED = frozenset({State.READY, State.FAILED, State.BLOCKED})
_MOST_REASONS = 3

Key = tuple[str, str]  # component, node


@dataclass(slots=True)
class Progress:
    """Follows the events of one run. Times are seconds on any clock that only goes forward.

    Attributes:
        started: When the run began.
        spoken: When something was last said.
        states: The last event of every component and node.
    """

    started: float
    spoken: float = 0.0
    states: dict[Key, Event] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Count the first heartbeat from the start."""
        self.spoken = max(self.spoken, self.started)

    def observe(self, event: Event, now: float, style: Style = PLAIN) -> str:
        """Take an event in; return its line, or an empty string if it says nothing new."""
        before = self.states.get((event.component, event.node))
        self.states[event.component, event.node] = event
        if before == event:
            return ""
        self.spoken = now
        return line(event, style)

    def heartbeat(self, now: float) -> str:
        """Return what is awaited if nothing was said for HEARTBEAT seconds; else an empty string."""
        if now - self.spoken < HEARTBEAT or not self.awaited:
            return ""
        self.spoken = now
        return f"waiting {_duration(now - self.started)} for {self.summary()}{self._reasons()}"

    def current(self, now: float) -> str:
        """Return the one line that a terminal shows and rewrites."""
        return f"{_duration(now - self.started):>6}  {self.summary()}{self._reasons()}" if self.awaited else ""

    @property
    def awaited(self) -> tuple[Event, ...]:
        """What has not settled yet."""
        return tuple(event for event in self.states.values() if event.state not in _SETTLED)

    def summary(self) -> str:
        """Return ``driver 2/3 ready, device_plugin 0/3 ready`` for what is being waited for."""
        waiting = dict.fromkeys(event.component for event in self.awaited)
        return ", ".join(f"{component} {self._count(component)}" for component in waiting)

    def _count(self, component: str) -> str:
        own = [event for event in self.states.values() if event.component == component]
        ready = sum(event.state is State.READY for event in own)
        return f"{ready}/{len(own)} ready"

    def _reasons(self) -> str:
        told = [event for event in self.awaited if event.message]
        reasons = [f"{_where(event)}: {event.message}" for event in told[:_MOST_REASONS]]
        more = len(told) - len(reasons)
        return f"; {'; '.join(reasons)}{f' and {more} more' if more else ''}" if reasons else ""


def line(event: Event, style: Style = PLAIN) -> str:
    """Return an event as one line: sign, component, node, state, message; a run's own word stands alone."""
    sign = _SIGNS[event.state]
    if not (event.component or event.node):
        return f"{sign} {event.message}"
    about = " ".join(filter(None, (event.component, event.node)))
    message = f": {event.message}" if event.message else ""
    return f"{sign} {about} {style.state(event.state)}{message}"


def _where(event: Event) -> str:
    return event.node or event.component


def _duration(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole} s" if whole < 2 * 60 else f"{whole // 60} min {whole % 60:02} s"


def fitted(text: str, columns: int) -> str:
    """Return a text cut to a terminal's width."""
    return text if len(text) < columns else f"{text[: max(columns - 4, 0)]}..."
