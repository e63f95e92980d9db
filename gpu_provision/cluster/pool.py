"""Threads that send requests to one API server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

from gpu_provision.cluster.connection import Connection


class RequestPool(ThreadPoolExecutor):
    """A pool whose threads stop repeating requests when the thread that waits for them is interrupted."""

    def __init__(self, connection: Connection, max_workers: int = 16) -> None:
        """Start no thread yet."""
        super().__init__(max_workers)
        self._connection = connection

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for the threads; after Ctrl-C, only for what they have sent already."""
        is_interrupted = kind is not None and not issubclass(kind, Exception)
        if is_interrupted:
            self._connection.hurry()
        self.shutdown(cancel_futures=is_interrupted)
