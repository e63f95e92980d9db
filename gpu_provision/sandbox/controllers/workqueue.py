"""A queue of keys for controllers: deduplicated, with delays, back-off and rest.

A key is handed out once however often it was added, and never to two workers at the same time. A key whose
work was expensive rests for a multiple of that time, longer while others are busy too, so that a burst of
events costs a bounded share of the processor instead of one full pass per event.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_FIRST_RETRY, _LONGEST_RETRY = 0.01, 30.0
_REST_FACTOR, _LONGEST_REST, _NO_REST = 2.0, 0.5, 0.001


class WorkQueue(Generic[K]):
    """Keys to work on, in the order in which they became ready."""

    def __init__(self) -> None:
        """Start empty."""
        self._ready: dict[K, None] = {}
        self._held: set[K] = set()
        self._again: set[K] = set()
        self._started: dict[K, float] = {}
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        self._waiters: list[asyncio.Future[None]] = []

    def __len__(self) -> int:
        """Return the number of keys that are ready to be worked on."""
        return len(self._ready)

    def add(self, key: K) -> None:
        """Have the key worked on; after the present work on it, if there is any."""
        if key in self._held:
            self._again.add(key)
            return
        self._ready[key] = None
        self._wake()

    def add_after(self, key: K, seconds: float) -> None:
        """Have the key worked on after a delay; of several delays the shortest counts."""
        loop = asyncio.get_running_loop()
        due = loop.time() + max(seconds, 0.0)
        present = self._timers.get(key)
        if present is not None:
            if present.when() <= due:
                return
            present.cancel()
        self._timers[key] = loop.call_at(due, self._due, key)

    async def take(self) -> K:
        """Wait for a key and return it; the caller ends with ``done``."""
        while not self._ready:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        key = next(iter(self._ready))
        del self._ready[key]
        self._held.add(key)
        self._started[key] = time.monotonic()
        return key

    def done(self, key: K, *, failed: bool = False) -> None:
        """End the work on a key; after a failure it comes again, later each time."""
        if failed:
            count = self._failures[key] = self._failures.get(key, 0) + 1
            self.add_after(key, min(_FIRST_RETRY * 2.0 ** min(count, 20), _LONGEST_RETRY))
        else:
            self._failures.pop(key, None)
        cost = time.monotonic() - self._started.pop(key)
        rest = min(cost * _REST_FACTOR * len(self._held), _LONGEST_REST)
        if rest < _NO_REST:
            self._release(key)
            return
        asyncio.get_running_loop().call_later(rest, self._release, key)

    def _release(self, key: K) -> None:
        self._held.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def _due(self, key: K) -> None:
        self._timers.pop(key, None)
        self.add(key)

    def _wake(self) -> None:
        while self._waiters:
            waiter = self._waiters.pop()
            if not waiter.done():
                waiter.set_result(None)
                return
