"""What survives a restart: one SQLite file in WAL mode.

Every write is its own transaction and is with the operating system before the caller goes on, so ``kill -9`` loses
nothing that was acknowledged. A power failure may lose the last moments (``synchronous=NORMAL``).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
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


class Row(NamedTuple):
    """One stored object."""

    storage: str
    version: int
    object: Object


class LogLine(NamedTuple):
    """One piece of a container's log; ``at`` is in seconds since the epoch."""

    id: int
    at: float
    text: str


class Database:
    """The file; ``path`` may be ``:memory:``."""

    def __init__(self, path: Path | str) -> None:
        """Open the file, making it if it is not there."""
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.executescript(_SCHEMA)
        self._reserved = self._fact("reserved")

    def _fact(self, name: str) -> int:
        row = self._connection.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return int(row[0]) if row else 0

    def first_free_version(self) -> int:
        """Return a resourceVersion that no earlier run has used."""
        return self._reserved

    def rows(self) -> Iterator[Row]:
        """Every object, oldest write first."""
        query = "SELECT storage, version, body FROM objects ORDER BY version"
        for storage, version, body in self._connection.execute(query):
            yield Row(storage, version, json.loads(body))

    def put(self, storage: str, key: tuple[str, str], version: int, body: bytes) -> None:
        """Keep an object."""
        self._reserve(version)
        self._connection.execute(
            "INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?)", (storage, *key, version, body)
        )

    def remove(self, storage: str, key: tuple[str, str], version: int) -> None:
        """Forget an object."""
        self._reserve(version)
        self._connection.execute(
            "DELETE FROM objects WHERE storage = ? AND namespace = ? AND name = ?", (storage, *key)
        )

    def _reserve(self, version: int) -> None:
        if version < self._reserved:
            return
        self._reserved = version + RESERVE
        self._connection.execute("INSERT OR REPLACE INTO facts VALUES ('reserved', ?)", (self._reserved,))

    def append_log(self, uid: str, container: str, restart: int, at: float, text: str) -> None:
        """Keep a piece of a container's log."""
        self._connection.execute(
            "INSERT INTO logs (uid, container, restart, at, text) VALUES (?, ?, ?, ?, ?)",
            (uid, container, restart, at, text),
        )

    def log(self, uid: str, container: str, restart: int, after: int = 0) -> list[LogLine]:
        """Return the pieces of one run of a container, those after piece ``after``."""
        query = "SELECT id, at, text FROM logs WHERE uid = ? AND container = ? AND restart = ? AND id > ? ORDER BY id"
        return [LogLine(*row) for row in self._connection.execute(query, (uid, container, restart, after))]

    def last_restart(self, uid: str, container: str) -> int:
        """Return the newest run of a container that has logged; 0 if none."""
        query = "SELECT max(restart) FROM logs WHERE uid = ? AND container = ?"
        return int(self._connection.execute(query, (uid, container)).fetchone()[0] or 0)

    def drop_logs(self, uid: str) -> None:
        """Forget the logs of a pod."""
        self._connection.execute("DELETE FROM logs WHERE uid = ?", (uid,))

    def close(self) -> None:
        """Write everything into the one file."""
        self._connection.close()
