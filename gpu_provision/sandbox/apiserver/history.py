"""The recent changes of one resource, and those who wait for the next.

A watcher is a cursor into the history and no queue: however slow it is, memory stays bounded; one that falls behind
the window is told so (410) and lists again, as with any API server.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import NamedTuple, Self

from gpu_provision.sandbox.apiserver.item import Item
from gpu_provision.sandbox.apiserver.status import expired

WINDOW = 5000
"""Changes kept per resource."""


class Change(NamedTuple):
    """ADDED, MODIFIED or DELETED; ``before`` is what a MODIFIED object was, for selectors that it left."""

    version: int
    type: str
    item: Item
    before: Item | None


class History:
    """Changes of one resource in the order of their versions."""

    def __init__(self, floor: int, window: int = WINDOW) -> None:
        """``floor`` is the version up to which nothing is known."""
        self._changes: deque[Change] = deque(maxlen=window)
        self._floor = floor
        self._waiting: set[asyncio.Event] = set()

    def add(self, change: Change) -> None:
        """Record a change and wake whoever waits."""
        if len(self._changes) == self._changes.maxlen:
            self._floor = self._changes[0].version
        self._changes.append(change)
        for event in self._waiting:
            event.set()

    def since(self, version: int) -> list[Change]:
        """Return the changes after ``version``. Raises StatusError 410 if some of them are forgotten."""
        if version < self._floor:
            raise expired(version, self._floor)
        newer: list[Change] = []
        for change in reversed(self._changes):
            if change.version <= version:
                break
            newer.append(change)
        newer.reverse()
        return newer

    def forget(self, version: int) -> None:
        """Let every watch from before ``version`` expire."""
        self._changes.clear()
        self._floor = version
        for event in self._waiting:
            event.set()

    def cursor(self, version: int) -> Cursor:
        """Return a cursor behind ``version``; use it as a context."""
        return Cursor(self, version, self._waiting)


class Cursor:
    """A place in a history from which to wait for more."""

    def __init__(self, history: History, version: int, waiting: set[asyncio.Event]) -> None:
        """``waiting`` is where the history looks for whom to wake."""
        self.version = version
        self._history, self._waiting, self._event = history, waiting, asyncio.Event()

    def __enter__(self) -> Self:
        """Ask to be woken."""
        self._waiting.add(self._event)
        return self

    def __exit__(self, *_: object) -> None:
        """Be woken no more."""
        self._waiting.discard(self._event)

    async def next(self, timeout: float | None = None) -> list[Change]:  # noqa: ASYNC109 - a beat, no deadline
        """Return the next changes, none after ``timeout`` seconds. Raises StatusError 410."""
        self._event.clear()
        changes = self._history.since(self.version)
        if not changes:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):  # wait_for loses a cancellation that meets an event
                    await self._event.wait()
            changes = self._history.since(self.version)
        if changes:
            self.version = changes[-1].version
        return changes
