"""Shows a run while it goes: a line per step in logs, one rewritten line on a terminal."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from types import TracebackType
from typing import Self, TextIO

from gpu_provision.cli.output import Output
from gpu_provision.model.progress import Event, State
from gpu_provision.report.progress import Progress, fitted, lines
from gpu_provision.report.style import PLAIN, Style

_TICK = 0.5  # seconds between looks at the clock
_ERASE = "\r\x1b[K"
_LASTING = frozenset({State.FAILED, State.BLOCKED})  # stays on a terminal; all else is rewritten


class Display:
    """Listens to the events of a run; a context manager, which also keeps the heartbeat going.

    Args:
        stream: Where to write; stderr in the command line.
        style: Colors of that stream.
        live: Whether the stream is a terminal on which a line can be rewritten.
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
        self._progress = Progress(clock())
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._keep_ticking, name="heartbeat", daemon=True)

    def __call__(self, event: Event) -> None:
        """Take an event in; it is shown with the next tick, together with what happens at the same time."""
        with self._lock:
            self._progress.observe(event)

    def tick(self) -> None:
        """Show what is new, and that the run goes on: the heartbeat in logs, the running seconds on a terminal."""
        with self._lock:
            if self._live:
                self._rewrite()
            else:
                self._say(*self._progress.news(self._clock(), self._style))
                self._say(self._progress.heartbeat(self._clock()))

    def __enter__(self) -> Self:
        """Start the heartbeat."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the heartbeat and take the rewritten line away."""
        self._done.set()
        self._thread.join()
        self.tick()
        if self._live:
            self._write(_ERASE)

    def _keep_ticking(self) -> None:
        while not self._done.wait(_TICK):
            self.tick()

    def _say(self, *texts: str) -> None:
        stamp = f"{datetime.now(UTC):%H:%M:%S}Z " if self._timestamps else ""
        self._write("".join(f"{stamp}{text}\n" for text in texts if text))

    def _rewrite(self) -> None:
        lasting = [event for event in self._progress.unsaid if event.state in _LASTING]
        self._progress.unsaid.clear()
        columns = shutil.get_terminal_size().columns
        self._write("".join([_ERASE, *(f"{line}\n" for line in lines(lasting, self._style))]))
        self._write(fitted(self._progress.current(self._clock()), columns))

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def shown_on_stderr(out: Output) -> AbstractContextManager[Callable[[Event], None]]:
    """Return the listener that a command's run gets: nothing with ``--quiet``, else a Display."""
    if out.quiet:
        return nullcontext(_ignore)
    return Display(sys.stderr, style=out.error_style, live=is_live(sys.stderr), timestamps=bool(out.verbose))


def _ignore(_event: Event) -> None:
    """Listen to nothing."""


def is_live(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether a line can be rewritten there: a terminal that is not dumb."""
    return stream.isatty() and environ.get("TERM", "") not in {"", "dumb"}
