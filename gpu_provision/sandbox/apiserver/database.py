"""What survives a restart: one SQLite file in WAL mode.

Every write is its own transaction and is with the operating system before the caller goes on, so ``kill -9`` loses
nothing that was acknowledged. A power failure may lose the last moments (``synchronous=NORMAL``).
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

from gpu_provision.sandbox.api import Object

RESERVE = 1000
"""resourceVersions are reserved in blocks of this size, so that none is used twice after a restart."""


_SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS objects (
    storage TEXT, namespace TEXT, name TEXT, version INTEGER, body BLOB,
    PRIMARY KEY (storage, namespace, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value INTEGER);
CREATE TABLE IF NOT EXISTS logs (
    id INTEGER PRIMARY KEY, uid TEXT, container TEXT, restart INTEGER, at REAL, text TEXT);
CREATE INDEX IF NOT EXISTS logs_of_pod ON logs (uid, container, restart);
"""


class ObjectRow(NamedTuple):
    """One stored object."""

    storage: str
    version: int
    object: Object


class Database:
    """The file; ``path`` may be ``:memory:``."""

    def __init__(self, path: Path | str) -> None:
        """Open the file, making it if it is not there."""
        self.connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.connection.executescript(_SCHEMA)
        self._reserved = self._fact("reserved")

    def _fact(self, name: str) -> int:
        row = self.connection.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return int(row[0]) if row else 0

    def first_free_version(self) -> int:
        """Return a resourceVersion that no earlier run has used."""
        return self._reserved

    def rows(self) -> Iterator[ObjectRow]:
        """Every object, oldest write first."""
        query = "SELECT storage, version, body FROM objects ORDER BY version"
        for storage, version, body in self.connection.execute(query):
            yield ObjectRow(storage, version, json.loads(body))

    def put(self, storage: str, key: tuple[str, str], version: int, body: bytes) -> None:
        """Keep an object."""
        self._reserve(version)
        self.connection.execute("INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?)", (storage, *key, version, body))

    def remove(self, storage: str, key: tuple[str, str], version: int) -> None:
        """Forget an object."""
        self._reserve(version)
        self.connection.execute("DELETE FROM objects WHERE storage = ? AND namespace = ? AND name = ?", (storage, *key))

    def _reserve(self, version: int) -> None:
        if version < self._reserved:
            return
        self._reserved = version + RESERVE
        self.connection.execute("INSERT OR REPLACE INTO facts VALUES ('reserved', ?)", (self._reserved,))

    def close(self) -> None:
        """Write everything into the one file."""
        self.connection.close()


class LogLine(NamedTuple):
    """One piece of a container's log; ``at`` is in seconds since the epoch."""

    id: int
    at: float
    text: str


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
        self._connection = database.connection
        self._waiting: dict[str, set[asyncio.Event]] = {}

    def append(self, uid: str, container: str, text: str, *, restart: int = 0) -> None:
        """Add text to the log of a container's run."""
        if text:
            row = (uid, container, restart, time.time(), text)
            self._connection.execute("INSERT INTO logs (uid, container, restart, at, text) VALUES (?, ?, ?, ?, ?)", row)
            self.notify(uid)

    def drop(self, uid: str) -> None:
        """Forget a pod's logs and end the streams that follow them."""
        self._connection.execute("DELETE FROM logs WHERE uid = ?", (uid,))
        self.notify(uid)

    def notify(self, uid: str) -> None:
        """Let followers look again: there is more text, or the pod has changed."""
        for event in self._waiting.get(uid, ()):
            event.set()

    def last_restart(self, uid: str, container: str) -> int:
        """Return the newest run of a container that has printed something; 0 if none."""
        query = "SELECT max(restart) FROM logs WHERE uid = ? AND container = ?"
        return int(self._connection.execute(query, (uid, container)).fetchone()[0] or 0)

    def read(self, uid: str, container: str, restart: int, options: LogOptions, after: int = 0) -> tuple[str, int]:
        """Return the text after piece ``after``, and the last piece's number."""
        query = "SELECT id, at, text FROM logs WHERE uid = ? AND container = ? AND restart = ? AND id > ? ORDER BY id"
        pieces = [LogLine(*row) for row in self._connection.execute(query, (uid, container, restart, after))]
        last = pieces[-1].id if pieces else after
        lines = [line for piece in pieces if piece.at >= options.since for line in _lines(piece, options)]
        if options.tail is not None:
            lines = lines[-options.tail :] if options.tail else []
        return "".join(lines)[: options.limit_bytes], last

    async def changes(self, uid: str, seconds: float = 1.0) -> AsyncIterator[None]:
        """Yield whenever a pod's logs may have grown, and every so many seconds."""
        event = asyncio.Event()
        self._waiting.setdefault(uid, set()).add(event)
        try:
            while True:
                event.clear()
                yield
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(event.wait(), seconds)
        finally:
            self._waiting[uid].discard(event)
            if not self._waiting[uid]:
                del self._waiting[uid]


def _lines(piece: LogLine, options: LogOptions) -> list[str]:
    lines = piece.text.splitlines(keepends=True)
    if not options.timestamps:
        return lines
    prefix = dt.datetime.fromtimestamp(piece.at, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z ")
    return [prefix + line for line in lines]
