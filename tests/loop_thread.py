"""An event loop in its own thread, for servers of tests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

_DEADLINE = 120.0


class LoopThread:
    """Runs from the start until it is closed."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_DEADLINE)

    def close(self) -> None:
        self.run(_end_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_DEADLINE)
        self._loop.close()


async def _end_all() -> None:
    for _ in range(10):  # asyncio closes aborted sockets in its next rounds
        await asyncio.sleep(0)
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
