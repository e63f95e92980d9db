"""Objects by storage, namespace and name in one SQLite file; watch caches; logs of pods.

Each write is one transaction, flushed to the operating system before the call returns, so ``kill -9`` loses no
acknowledged write. A power failure may lose the last ones (``synchronous=NORMAL``).
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
import marshal
import sqlite3
import time
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict, deque
from collections.abc import AsyncIterator
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.errors import StatusError
from gpu_provision.sandbox.objects import Key, key_of, to_json, value_at

WINDOW = 5000
"""Changes in the watch cache of a resource."""
RESERVE = 1000
"""Size of the blocks in which resourceVersions are reserved, so that no restart reuses one."""
PODS = "/pods"
FIRST: Key = ("", "")
"""Sorts before every key, since names are not empty."""
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


class StoredObject:
    """An immutable object with its JSON, encoded once for the disk and all readers."""

    def __init__(self, obj: Object, version: int) -> None:
        """``version`` is the object's resourceVersion as a number."""
        self.object, self.version = obj, version

    @cached_property
    def json(self) -> bytes:
        """The object as compact JSON."""
        return to_json(self.object)

    @cached_property
    def json_without_kind(self) -> bytes:
        """The object as JSON without kind and apiVersion, as an item of a list."""
        return to_json({key: value for key, value in self.object.items() if key not in ("apiVersion", "kind")})

    @cached_property
    def _frozen(self) -> bytes:
        return marshal.dumps(self.object)

    def copy(self) -> Object:
        """Return a copy that the caller may change.

        Many readers copy the same item, so it is marshalled once: three times as fast as a deep copy.
        """
        thawed: Object = marshal.loads(self._frozen)  # noqa: S302 - own bytes
        return thawed


class ChangeRecord(NamedTuple):
    """ADDED, MODIFIED or DELETED; ``before`` is the previous state of a MODIFIED object, for selectors."""

    version: int
    type: str
    item: StoredObject
    before: StoredObject | None


class WatchCache:
    """Changes of one resource, ordered by version."""

    def __init__(self, floor: int, window: int = WINDOW) -> None:
        """``floor`` is the last version before the cached changes."""
        self._changes: deque[ChangeRecord] = deque(maxlen=window)
        self._floor = floor
        self._waiting: set[asyncio.Event] = set()

    def add(self, change: ChangeRecord) -> None:
        """Record a change and wake the watches."""
        if len(self._changes) == self._changes.maxlen:
            self._floor = self._changes[0].version
        self._changes.append(change)
        self._wake()

    def expire(self, version: int) -> None:
        """Expire every watch from before ``version``."""
        self._changes.clear()
        self._floor = version
        self._wake()

    def _wake(self) -> None:
        for event in self._waiting:
            event.set()

    def changes_since(self, version: int) -> list[ChangeRecord]:
        """Return the changes after ``version``. Raises StatusError 410 if some of them are no longer cached."""
        if version < self._floor:
            raise StatusError(410, "Expired", f"too old resource version: {version} ({self._floor})")
        newer = takewhile(lambda change: change.version > version, reversed(self._changes))
        return [*newer][::-1]

    async def wait_for_changes(self, version: int, seconds: float) -> list[ChangeRecord]:
        """Wait for changes after ``version``; return none after the timeout. Raises StatusError 410."""
        if changes := self.changes_since(version):
            return changes
        event = asyncio.Event()
        self._waiting.add(event)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):  # wait_for loses a cancellation at the time of an event
                    await event.wait()
        finally:
            self._waiting.discard(event)
        return self.changes_since(version)


class ResourceStore:
    """The objects of one storage, with an index of pods by node."""

    def __init__(self) -> None:
        """Start without objects."""
        self.items: dict[Key, StoredObject] = {}
        self.by_node: dict[str, dict[Key, StoredObject]] = {}
        self._keys: list[Key] = []  # in order

    def put(self, key: Key, item: StoredObject) -> StoredObject | None:
        """Store an item; return the previous one."""
        before = self.items.get(key)
        if before is None:
            insort(self._keys, key)
        else:
            self._forget_node(key, before)
        self.items[key] = item
        if node := value_at(item.object, "spec", "nodeName"):
            self.by_node.setdefault(node, {})[key] = item
        return before

    def remove(self, key: Key) -> StoredObject | None:
        """Remove and return an item."""
        before = self.items.pop(key, None)
        if before is not None:
            del self._keys[bisect_left(self._keys, key)]
            self._forget_node(key, before)
        return before

    def _forget_node(self, key: Key, item: StoredObject) -> None:
        if node := value_at(item.object, "spec", "nodeName"):
            self.by_node[node].pop(key, None)

    def keys(self, namespace: str, after: Key) -> list[Key]:
        """Return the sorted keys after one; an empty namespace means all."""
        start, end = bisect_right(self._keys, after), len(self._keys)
        if namespace:
            start = max(start, bisect_left(self._keys, (namespace, "")))
            end = bisect_left(self._keys, (f"{namespace}\0", ""))
        return self._keys[start:end]


class Store:
    """All objects of the cluster; ``path`` may be ``:memory:``. Not thread-safe.

    ``version`` is the version of the last write, ``oldest`` the oldest one for which continue tokens are valid.
    """

    def __init__(self, path: Path | str = ":memory:") -> None:
        """Load the objects of the file ``path``."""
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.executescript(_SCHEMA)
        reserved = self._connection.execute("SELECT value FROM facts WHERE name = 'reserved'").fetchone()
        self._reserved: int = reserved[0] if reserved else 0
        self._stores: defaultdict[str, ResourceStore] = defaultdict(ResourceStore)
        self._caches: dict[str, WatchCache] = {}
        self.logs = PodLogs(self._connection)
        for storage, version, body in self._connection.execute(
            "SELECT storage, version, body FROM objects ORDER BY version"
        ):
            item = StoredObject(json.loads(body), version)
            self._stores[storage].put(key_of(item.object), item)
        self.version = self._floor = max(1, self._reserved)
        self.oldest = 0

    def watch_cache(self, storage: str) -> WatchCache:
        """Return the watch cache of one storage."""
        if (cache := self._caches.get(storage)) is None:
            cache = self._caches[storage] = WatchCache(self._floor)
        return cache

    def get(self, storage: str, name: str, namespace: str = "") -> StoredObject | None:
        """Return an item; the caller must not change its object."""
        return self._stores[storage].items.get((namespace, name))

    def select(self, storage: str, namespace: str = "", node: str = "", after: Key = FIRST) -> list[StoredObject]:
        """Return the items after a key, of one or all namespaces, limited to pods on ``node`` if given."""
        store = self._stores[storage]
        if not node:
            return [store.items[key] for key in store.keys(namespace, after)]
        bound = store.by_node.get(node, {})
        return [bound[key] for key in sorted(bound) if key > after and namespace in {"", key[0]}]

    def count(self, storage: str) -> int:
        """Return the number of objects in a storage."""
        return len(self._stores[storage].items)

    def put(self, storage: str, obj: Object) -> StoredObject:
        """Store an object, which no caller changes later, under the next version."""
        self._next_version()
        obj["metadata"]["resourceVersion"] = str(self.version)
        item, key = StoredObject(obj, self.version), key_of(obj)
        row = (storage, *key, self.version, item.json)
        self._connection.execute("INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?)", row)
        before = self._stores[storage].put(key, item)
        kind = "MODIFIED" if before else "ADDED"
        self.watch_cache(storage).add(ChangeRecord(self.version, kind, item, before))
        return item

    def remove(self, storage: str, name: str, namespace: str = "") -> StoredObject | None:
        """Remove an object; watches get its last state with the version of the deletion."""
        key = (namespace, name)
        before = self._stores[storage].remove(key)
        if before is None:
            return None
        self._next_version()
        metadata = {**before.object["metadata"], "resourceVersion": str(self.version)}
        last = StoredObject({**before.object, "metadata": metadata}, self.version)
        self._connection.execute(
            "DELETE FROM objects WHERE storage = ? AND namespace = ? AND name = ?", (storage, *key)
        )
        self.watch_cache(storage).add(ChangeRecord(self.version, "DELETED", last, before))
        if storage == PODS:
            self.logs.drop(metadata["uid"])
        return last

    def _next_version(self) -> None:
        self.version += 1
        if self.version >= self._reserved:
            self._reserved = self.version + RESERVE
            self._connection.execute("INSERT OR REPLACE INTO facts VALUES ('reserved', ?)", (self._reserved,))

    def expire_watches(self) -> None:
        """Drop all cached changes, so that every watch, even a current one, has to list again."""
        self.version += 1
        self.oldest = self.version
        for cache in self._caches.values():
            cache.expire(self.version)

    def close(self) -> None:
        """Write everything to the file, and close the store."""
        self._connection.close()


class LogOptions(NamedTuple):
    """The parameters of ``pods/log``; ``since`` is in seconds since the epoch."""

    tail: int | None = None
    since: float = 0
    timestamps: bool = False
    limit_bytes: int | None = None


class PodLogs:
    """The logs of all containers, by the pod's uid, the container's name and the number of its restarts."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        """``connection`` is the store's."""
        self._connection = connection
        self._waiting: dict[str, set[asyncio.Event]] = {}

    def append(self, uid: str, container: str, text: str, *, restart: int = 0) -> None:
        """Append text to the log of a container's run."""
        if text:
            row = (uid, container, restart, time.time(), text)
            self._connection.execute("INSERT INTO logs (uid, container, restart, at, text) VALUES (?, ?, ?, ?, ?)", row)
            self.notify(uid)

    def drop(self, uid: str) -> None:
        """Delete a pod's logs, and end the streams that follow them."""
        self._connection.execute("DELETE FROM logs WHERE uid = ?", (uid,))
        self.notify(uid)

    def notify(self, uid: str) -> None:
        """Wake followers after new text or a change of the pod."""
        for event in self._waiting.get(uid, ()):
            event.set()

    def last_restart(self, uid: str, container: str) -> int:
        """Return the newest run of a container with a log; 0 without one."""
        query = "SELECT max(restart) FROM logs WHERE uid = ? AND container = ?"
        return int(self._connection.execute(query, (uid, container)).fetchone()[0] or 0)

    def read(self, uid: str, container: str, restart: int, options: LogOptions, after: int = 0) -> tuple[str, int]:
        """Return the text after row ``after``, and the id of the last row."""
        query = "SELECT id, at, text FROM logs WHERE uid = ? AND container = ? AND restart = ? AND id > ? ORDER BY id"
        lines: list[str] = []
        for number, seconds, text in self._connection.execute(query, (uid, container, restart, after)):
            after = number
            if seconds >= options.since:
                when = dt.datetime.fromtimestamp(seconds, dt.UTC)
                prefix = when.strftime("%Y-%m-%dT%H:%M:%S.%f000Z ") if options.timestamps else ""
                lines += (prefix + line for line in text.splitlines(keepends=True))
        if options.tail is not None:
            lines = lines[-options.tail :] if options.tail else []
        return "".join(lines)[: options.limit_bytes], after

    async def changes(self, uid: str, seconds: float = 1.0) -> AsyncIterator[None]:
        """Yield after each change of a pod's logs, and after each timeout."""
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
