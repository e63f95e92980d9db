"""Shows a run while it goes: a line per step in logs, a picture that is rewritten on a terminal."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from datetime import UTC, datetime
from types import TracebackType
from typing import Protocol, Self, TextIO

from gpu_provision.cli.output import Output
from gpu_provision.model.progress import Event, State, Transition
from gpu_provision.output.progress import Progress, fitted, lines
from gpu_provision.output.text import PLAIN, Style, for_terminal
from gpu_provision.output.timeline import Lanes, Size, picture
from gpu_provision.reconcile.progress import Timeline

_TICK = 0.5  # seconds between looks at the clock
_NO_WRAP, _WRAP = "\x1b[?7l", "\x1b[?7h"
_LINES_LEFT = 3  # above the picture, for what stays
_LASTING = frozenset({State.FAILED, State.BLOCKED})  # stays on a terminal; all else is rewritten


class Display:
    """Listens to the events of a run; a context manager, which also keeps the heartbeat going.

    Args:
        stream: Where to write; stderr in the command line.
        style: Colors of that stream.
        live: Whether the stream is a terminal on which lines can be rewritten.
        timestamps: Whether lines begin with the time of day in UTC.
        clock: Seconds that only go forward.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        style: Style = PLAIN,
        live: bool = False,
        timestamps: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin to count from now; nothing is written before the first event."""
        self._stream, self._style, self._live, self._timestamps = stream, style, live, timestamps
        self._clock = clock
        self._began = clock()
        self._progress = Progress(self._began)
        self._timeline, self._lanes = Timeline(self._began), Lanes()
        self._drawn = 0  # lines that the next look takes away
        self._lock = threading.Lock()
        self._done, self._reports = threading.Event(), ExitStack()
        self._thread = threading.Thread(target=self._keep_ticking, name="heartbeat", daemon=True)

    def __call__(self, event: Event) -> None:
        """Take an event in; it is shown with the next tick, together with what happens at the same time."""
        with self._lock:
            self._progress.observe(event)
            if (transition := self._timeline.observe(event, self._clock())) is not None:
                self._lanes.add(transition)

    def say(self, text: str) -> None:
        """Write a text that stays, above the picture on a terminal."""
        with self._lock:
            if self._live:
                self._write(self._erased())
                self._drawn = 0
            self._write(for_terminal(f"{text}\n"))

    @property
    def timeline(self) -> tuple[Transition, ...]:
        """How everything came to stand where it does, up to now."""
        return tuple(self._timeline.transitions)

    def tick(self) -> None:
        """Show what is new, and that the run goes on: the heartbeat in logs, the running seconds on a terminal."""
        with self._lock:
            if self._live:
                self._rewrite()
            else:
                self._say(*self._progress.news(self._clock(), self._style))
                self._say(self._progress.heartbeat(self._clock()))

    def __enter__(self) -> Self:
        """Start the heartbeat, and show reports of the connection to the API server as events."""
        self._reports.enter_context(shown_by(self._report))
        self._thread.start()
        return self

    def _report(self, message: str) -> None:
        self(Event(component="", node="", state=State.PROGRESSING, message=message))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the heartbeat and take the picture away; one of a run that ends early stays, as nothing replaces it."""
        self._reports.close()
        self._done.set()
        self._thread.join()
        self.tick()
        if self._live:
            self._write("\n" if error and self._drawn else self._erased())

    def _keep_ticking(self) -> None:
        while not self._done.wait(_TICK):
            self.tick()

    def _say(self, *texts: str) -> None:
        stamp = f"{datetime.now(UTC):%H:%M:%S}Z " if self._timestamps else ""
        self._write(for_terminal("".join(f"{stamp}{text}\n" for text in texts if text)))

    def _rewrite(self) -> None:
        lasting = [event for event in self._progress.unsaid if event.state in _LASTING]
        self._progress.unsaid.clear()
        drawn = self._picture()
        stays = "".join(f"{line}\n" for line in lines(lasting, self._style))
        self._write("".join([self._erased(), for_terminal(stays), _NO_WRAP, for_terminal("\n".join(drawn)), _WRAP]))
        self._drawn = len(drawn)

    def _picture(self) -> list[str]:
        now, size = self._clock(), shutil.get_terminal_size()
        if not (current := self._progress.current(now)):
            return []
        room = Size(size.columns, size.lines - _LINES_LEFT)
        return [fitted(current, size.columns), *picture(self._lanes, now - self._began, room, self._style)]

    def _erased(self) -> str:
        """Return what takes away the lines that were drawn last, and puts the cursor where they began."""
        up = f"\x1b[{self._drawn - 1}A" if self._drawn > 1 else ""
        return f"\r{up}\x1b[J"

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class Shown(Protocol):
    """Where a command's run is shown."""

    def __call__(self, event: Event) -> None:
        """Take an event in."""

    def say(self, text: str) -> None:
        """Write a text that stays."""


class _Quiet:
    """Shows nothing."""

    def __call__(self, event: Event) -> None:
        pass

    def say(self, text: str) -> None:
        pass


def shown_on_stderr(out: Output) -> AbstractContextManager[Shown]:
    """Return where a command's run is shown: nowhere with ``--quiet``, else a Display."""
    if out.quiet:
        return nullcontext(_Quiet())
    return Display(sys.stderr, style=out.error_style, live=is_live(sys.stderr), timestamps=bool(out.verbose))


def is_live(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether lines can be rewritten there: a terminal that is not dumb."""
    return stream.isatty() and environ.get("TERM", "") not in {"", "dumb"}


_LOGGER = logging.getLogger("gpu_provision")


class _Reports(logging.Handler):
    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__()
        self.show = show

    def emit(self, record: logging.LogRecord) -> None:
        """Show the message alone; a traceback is for the log file."""
        self.show(record.getMessage())


def start(out: Output) -> None:
    """Show reports on stderr from now on; with ``-v`` each request that is repeated, with ``-q`` nothing."""
    for handler in [each for each in _LOGGER.handlers if isinstance(each, _Reports)]:
        _LOGGER.removeHandler(handler)
    _LOGGER.addHandler(_Reports(out.note))
    _LOGGER.setLevel(logging.DEBUG if out.verbose else logging.WARNING)
    _LOGGER.propagate = False


@contextmanager
def shown_by(show: Callable[[str], None]) -> Iterator[None]:
    """Pass reports to ``show``, such as a picture that other lines on the terminal would break."""
    reports = [each for each in _LOGGER.handlers if isinstance(each, _Reports)]
    before = [each.show for each in reports]
    for each in reports:
        each.show = show
    try:
        yield
    finally:
        for each, former in zip(reports, before, strict=True):
            each.show = former
