"""Ctrl-C while pyinfra waits for a run in a cluster: the run ends well and says what stays, then pyinfra ends."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType

import gevent

from gpu_provision.model.findings import attached_findings


class _Handler:
    """Of SIGINT while runs are awaited: pyinfra's own handler drops a run in the middle of a step."""

    def __init__(self) -> None:
        self.waiting: set[gevent.Greenlet] = set()
        self.end = signal.getsignal(signal.SIGINT)

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        """Interrupt those who wait; the next Ctrl-C ends the process at once."""
        signal.signal(number, self.end)
        for each in self.waiting:
            gevent.kill(each, KeyboardInterrupt)

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        here = gevent.getcurrent()
        if not self.waiting:
            self.end = signal.signal(signal.SIGINT, self)
        self.waiting.add(here)
        try:
            yield
        finally:
            self.waiting.discard(here)
            if not self.waiting:
                signal.signal(signal.SIGINT, self.end)


_HANDLER = _Handler()


@contextlib.contextmanager
def telling_what_stays(tell: Callable[[str], None]) -> Iterator[None]:
    """Have Ctrl-C interrupt a wait for a run; tell what the run leaves half done, and end the process as pyinfra does.

    For pyinfra's command, which runs operations in the main thread; elsewhere Python's own handling stays.
    """
    if signal.getsignal(signal.SIGINT) in {signal.default_int_handler, signal.SIG_DFL, signal.SIG_IGN, None}:
        yield
        return
    try:
        with _HANDLER.in_force():
            yield
    except KeyboardInterrupt as interrupt:
        for each in (*getattr(interrupt, "__notes__", ()), *attached_findings(interrupt)):
            tell(str(each))
        if not callable(_HANDLER.end):
            raise
        _HANDLER.end(signal.SIGINT, None)
