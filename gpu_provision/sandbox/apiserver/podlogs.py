"""What containers have printed. Simulated kubelets fill it, ``kubectl logs`` reads it."""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from collections.abc import AsyncIterator
from typing import NamedTuple

from gpu_provision.sandbox.apiserver.database import Database, LogLine


class LogOptions(NamedTuple):
    """The parameters of ``pods/log``; times are seconds since the epoch."""

    tail: int | None = None
    since: float = 0
    timestamps: bool = False
    limit_bytes: int | None = None


class PodLogs:
    """The logs of all containers, by the pod's uid, the container's name and the number of its restarts."""

    def __init__(self, database: Database) -> None:
        """Logs live in the same file as the objects."""
        self._database = database
        self._waiting: dict[str, set[asyncio.Event]] = {}

    def append(self, uid: str, container: str, text: str, *, restart: int = 0, at: float | None = None) -> None:
        """Add text to the log of a container's run; ``at`` is seconds since the epoch, now by default."""
        if not text:
            return
        moment = time.time() if at is None else at
        self._database.append_log(uid, container, restart, moment, text)
        self.wake(uid)

    def drop(self, uid: str) -> None:
        """Forget a pod's logs and end whoever follows them."""
        self._database.drop_logs(uid)
        self.wake(uid)

    def wake(self, uid: str) -> None:
        """Let followers look again: there is more text, or the pod has changed."""
        for event in self._waiting.get(uid, ()):
            event.set()

    def last_restart(self, uid: str, container: str) -> int:
        """Return the newest run of a container that has printed something."""
        return self._database.last_restart(uid, container)

    def read(self, uid: str, container: str, restart: int, options: LogOptions, after: int = 0) -> tuple[str, int]:
        """Return the text after piece ``after``, and the last piece's number."""
        pieces = self._database.log(uid, container, restart, after)
        last = pieces[-1].id if pieces else after
        lines = [line for piece in pieces if piece.at >= options.since for line in _lines(piece, options)]
        if options.tail is not None:
            lines = lines[-options.tail :] if options.tail else []
        text = "".join(lines)
        return (text if options.limit_bytes is None else text[: options.limit_bytes]), last

    async def changes(self, uid: str, timeout: float = 1.0) -> AsyncIterator[None]:  # noqa: ASYNC109 - a beat, no deadline
        """Yield whenever a pod's logs may have grown, and every ``timeout`` seconds."""
        event = asyncio.Event()
        self._waiting.setdefault(uid, set()).add(event)
        try:
            while True:
                event.clear()
                yield
                try:
                    await asyncio.wait_for(event.wait(), timeout)
                except TimeoutError:
                    continue
        finally:
            self._waiting[uid].discard(event)
            if not self._waiting[uid]:
                del self._waiting[uid]


def _lines(piece: LogLine, options: LogOptions) -> list[str]:
    lines = piece.text.splitlines(keepends=True)
    if not options.timestamps:
        return lines
    moment = dt.datetime.fromtimestamp(piece.at, dt.UTC)
    prefix = moment.strftime("%Y-%m-%dT%H:%M:%S.%f000Z ")
    return [prefix + line for line in lines]
