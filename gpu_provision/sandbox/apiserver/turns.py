"""Turns of the simulation with everybody else on the event loop.

Thousands of simulated pods are ready to go on at the same moment. Were they all to go on in one turn of the loop, that
turn would take seconds, and a request over HTTPS, which needs several turns, longer than any client waits.
"""

from __future__ import annotations

import asyncio
from collections import deque

_IN_A_TURN = 4
"""Calls in process between two looks at the network: some 10 ms of work."""


class Turns:
    """Lets a few go on in each turn of the loop, in the order in which they came."""

    def __init__(self) -> None:
        """Begin with nobody waiting."""
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Return when it is one's turn."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            loop.call_soon(self._next, loop)
        await turn

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        for _ in range(min(_IN_A_TURN, len(self._waiting))):
            turn = self._waiting.popleft()
            if not turn.done():  # who is cancelled waits no more
                turn.set_result(None)
        if self._waiting:
            loop.call_soon(self._next, loop)
