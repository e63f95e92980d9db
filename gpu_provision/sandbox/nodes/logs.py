"""Where the simulated containers' output goes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Protocol

MOST_LINES = 2000


class LogSink(Protocol):
    """Takes the text that a container prints; whole lines, each with its line feed."""

    def append(self, namespace: str, pod: str, uid: str, container: str, text: str) -> None:
        """Keep the text."""
        ...


class StoreLogs:
    """Hands output to the embedded API server in this process."""

    def __init__(self, append_log: Callable[[str, str, str, str, str], None]) -> None:
        """``append_log`` is the store's method: namespace, pod, uid, container, text."""
        self._append = append_log

    def append(self, namespace: str, pod: str, uid: str, container: str, text: str) -> None:
        """Keep the text."""
        self._append(namespace, pod, uid, container, text)


class PostedLogs:
    """Sends output to a sandbox's API server in another process, in order."""

    def __init__(self, post: Callable[[str, str, str, str], Awaitable[None]]) -> None:
        """``post`` sends namespace, pod, container, text."""
        self._post = post
        self._lines: asyncio.Queue[tuple[str, str, str, str]] = asyncio.Queue()

    def append(self, namespace: str, pod: str, uid: str, container: str, text: str) -> None:
        """Queue the text."""
        del uid
        self._lines.put_nowait((namespace, pod, container, text))

    async def run(self) -> None:
        """Send until cancelled; a pod that is gone takes its output with it."""
        while True:
            await self._post(*await self._lines.get())


class KeptLogs:
    """Keeps output in memory, for the kubelet endpoint that a real API server asks."""

    def __init__(self) -> None:
        """Start empty."""
        self._lines: dict[tuple[str, str, str], deque[tuple[str, str]]] = {}
        self._uids: dict[tuple[str, str, str], str] = {}

    def append(self, namespace: str, pod: str, uid: str, container: str, text: str) -> None:
        """Keep the text; a new pod of the same name starts afresh."""
        key = (namespace, pod, container)
        if self._uids.get(key) != uid:
            self._uids[key], self._lines[key] = uid, deque(maxlen=MOST_LINES)
        time = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        self._lines[key].extend((time, line) for line in text.splitlines())

    def lines(self, namespace: str, pod: str, container: str) -> tuple[tuple[str, str], ...] | None:
        """Return (time, line) pairs; None for a container that never printed."""
        kept = self._lines.get((namespace, pod, container))
        return None if kept is None else tuple(kept)

    def forget(self, namespace: str, pod: str) -> None:
        """Drop what a pod that is gone has printed."""
        for key in [key for key in self._lines if key[:2] == (namespace, pod)]:
            del self._lines[key], self._uids[key]
