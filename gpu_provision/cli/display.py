"""Live display of a run: a line per step in logs, redrawn timelines on a terminal."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from gpu_provision.cli.output import Output
from gpu_provision.model.plan import Plan
from gpu_provision.model.progress import Event, State
from gpu_provision.output.progress import NodeTimeline, Progress, add_transition, lines
from gpu_provision.output.text import PLAIN, Style, escape_for_terminal
from gpu_provision.reconcile.states import Timeline

if TYPE_CHECKING:
    from rich.live import Live

_TICK = 0.5  # seconds between updates
_PERMANENT = frozenset({State.FAILED, State.BLOCKED})  # stays on a terminal; all else is redrawn


class Display:
    """Displays the events of a run; a context manager, which also runs the heartbeat.

    Args:
        stream: Where to write, stderr in the command line; None to show nothing.
        style: Colors of that stream.
        live: Whether the stream is a terminal on which lines can be rewritten.
        timestamps: Whether lines begin with the time of day in UTC.
        clock: Monotonic time in seconds.
    """

    def __init__(
        self,
        stream: TextIO | None,
        *,
        style: Style = PLAIN,
        live: bool = False,
        timestamps: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the clock; write nothing before the first event."""
        self._stream, self._style, self._timestamps, self._clock = stream, style, timestamps, clock
        self._began = clock()
        self._progress = Progress(self._began)
        self._timeline, self._nodes = Timeline(self._began), dict[str, NodeTimeline]()
        self._lock = threading.Lock()
        self._done, self._reports = threading.Event(), ExitStack()
        self._thread = threading.Thread(target=self._keep_ticking, name="heartbeat", daemon=True)
        self._is_live = live
        self._picture: Live | None = None

    def __call__(self, event: Event) -> None:
        """Record an event for the next tick."""
        with self._lock:
            self._progress.observe(event)
            if (transition := self._timeline.observe(event, self._clock())) is not None:
                add_transition(self._nodes, transition)

    def print_message(self, text: str) -> None:
        """Write a permanent text, above the timelines on a terminal."""
        with self._lock:
            self._write(text)

    def set_waves(self, plan: Plan) -> None:
        """Record the waves of a plan for the progress of its rollout."""
        waves = plan.rollout.waves if plan.rollout else ()
        self._progress.waves = tuple(frozenset(node.node for node in wave.nodes) for wave in waves)

    def tick(self) -> None:
        """Show new events and the heartbeat in logs, or redraw the terminal."""
        with self._lock:
            if self._is_live:
                self._print_permanent()
                self._draw()
            else:
                stamp = f"{datetime.now(UTC):%H:%M:%S}Z " if self._timestamps else ""
                new = [*self._progress.new_lines(self._clock(), self._style), self._progress.heartbeat(self._clock())]
                self._write("\n".join(f"{stamp}{line}" for line in new if line))

    def _print_permanent(self) -> None:
        lasting = [event for event in self._progress.unreported if event.state in _PERMANENT]
        self._progress.unreported.clear()
        self._write("\n".join(lines(lasting, self._style)))

    def _draw(self) -> None:
        now, stream = self._clock(), self._stream
        summary = self._progress.current(now)
        if stream is None or not (summary or self._nodes):
            return
        from gpu_provision.output import screen

        if self._picture is None:
            self._picture = screen.live_display(stream, color=self._style.enabled)
            self._picture.start()
        size = self._picture.console.size
        self._picture.update(screen.timeline_picture(self._nodes, now - self._began, *size, summary), refresh=True)

    def __enter__(self) -> Self:
        """Start the heartbeat, and show reports of the connection to the API server as events."""
        if self._stream is not None:
            event = Event(component="", node="", state=State.PROGRESSING)
            show = redirect_reports(lambda message: self(replace(event, message=message)))
            self._reports.enter_context(show)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the heartbeat and remove the timelines; those of a run that fails stay."""
        if self._stream is None:
            return
        self._reports.close()
        self._done.set()
        self._thread.join()
        if self._is_live and not (error or self._picture):
            self._print_permanent()  # no need to draw before the removal
        else:
            self.tick()
        if self._picture:
            self._picture.transient = error is None
            self._picture.stop()

    def _keep_ticking(self) -> None:
        while not self._done.wait(_TICK):
            self.tick()

    def _write(self, text: str) -> None:
        if self._stream is None or not text:
            return
        if self._picture:
            from gpu_provision.output.screen import rich_text

            self._picture.console.print(rich_text(text))
        else:
            self._stream.write(escape_for_terminal(f"{text}\n"))
            self._stream.flush()


def show_progress(out: Output) -> Display:
    """Return the display of a run on stderr; a silent one with ``--quiet``."""
    stream = None if out.quiet else sys.stderr
    is_live = sys.stderr.isatty() and os.environ.get("TERM", "") not in {"", "dumb"}  # lines can be rewritten
    return Display(stream, style=out.error_style, live=is_live, timestamps=bool(out.verbose))


class _Reports(logging.Handler):
    """Shows log messages, such as retried requests; tracebacks go to the log file."""

    show: Callable[[str], None] = staticmethod(lambda _message: None)

    def emit(self, record: logging.LogRecord) -> None:
        """Show the message only."""
        self.show(record.getMessage())


_REPORTS = _Reports()


def start(out: Output) -> None:
    """Show log messages on stderr; with ``-v`` every retried request, with ``-q`` nothing."""
    _REPORTS.show = out.note
    logger = logging.getLogger("gpu_provision")
    logger.addHandler(_REPORTS)
    logger.setLevel(logging.DEBUG if out.verbose else logging.WARNING)
    logger.propagate = False


@contextmanager
def redirect_reports(show: Callable[[str], None]) -> Iterator[None]:
    """Pass log messages to ``show``, such as a display that other lines on the terminal would break."""
    before, _REPORTS.show = _REPORTS.show, show
    try:
        yield
    finally:
        _REPORTS.show = before
