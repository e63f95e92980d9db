"""Where the simulated containers' output goes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

MOST_LINES = 2000


class LogOf(NamedTuple):
    """Names the output of one life of a container; ``restart`` counts the lives before."""

    namespace: str
    pod: str
    uid: str
    container: str
    restart: int


class LogSink(Protocol):
    """Takes the text that a container prints; whole lines, each with its line feed."""

    def append(self, of: LogOf, text: str) -> None:
        """Keep the text."""
        ...


class StoreLogs:
    """Hands output to the embedded API server in this process."""

    def __init__(self, append_log: Callable[..., None]) -> None:
        """``append_log`` takes namespace, pod, uid, container, text and ``restart``."""
        self._append = append_log

    def append(self, of: LogOf, text: str) -> None:
        """Keep the text."""
        self._append(of.namespace, of.pod, of.uid, of.container, text, restart=of.restart)


class PostedLogs:
    """Sends output to a sandbox's API server in another process, in order."""

    def __init__(self, post: Callable[[LogOf, str], Awaitable[None]]) -> None:
        """``post`` sends one text."""
        self._post = post
        self._texts: asyncio.Queue[tuple[LogOf, str]] = asyncio.Queue()

    def append(self, of: LogOf, text: str) -> None:
        """Queue the text."""
        self._texts.put_nowait((of, text))

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            await self._post(*await self._texts.get())


class KeptLogs:
    """Keeps output in memory, for the kubelet endpoint that a real API server asks."""

    def __init__(self) -> None:
        """Start empty."""
        self._lines: dict[tuple[str, str, str], dict[int, deque[tuple[str, str]]]] = {}
        self._uids: dict[tuple[str, str, str], str] = {}

    def append(self, of: LogOf, text: str) -> None:
        """Keep the text; a new pod of the same name starts afresh, and one earlier life is remembered."""
        key = (of.namespace, of.pod, of.container)
        if self._uids.get(key) != of.uid:
            self._uids[key], self._lines[key] = of.uid, {}
        lives = self._lines[key]
        time = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        lives.setdefault(of.restart, deque(maxlen=MOST_LINES)).extend((time, line) for line in text.splitlines())
        lives.pop(of.restart - 2, None)

    def lines(
        self, namespace: str, pod: str, container: str, *, previous: bool = False
    ) -> tuple[tuple[str, str], ...] | None:
        """Return (time, line) pairs; None for a container, or a life of it, that never printed."""
        lives = self._lines.get((namespace, pod, container), {})
        wanted = max(lives, default=0) - int(previous)
        return tuple(lives[wanted]) if wanted in lives else None

    def forget(self, namespace: str, pod: str) -> None:
        """Drop what a pod that is gone has printed."""
        for key in [key for key in self._lines if key[:2] == (namespace, pod)]:
            del self._lines[key], self._uids[key]
