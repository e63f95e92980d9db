"""Objects by storage, namespace and name; one counter of versions; the latest changes for watches."""

from __future__ import annotations

import asyncio
import contextlib
import marshal
from bisect import bisect_left, bisect_right, insort
from collections import deque
from pathlib import Path
from typing import NamedTuple

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.database import Database, PodLogs
from gpu_provision.sandbox.apiserver.errors import expired
from gpu_provision.sandbox.apiserver.objects import at, key_of, to_json

WINDOW = 5000
"""Changes kept per resource."""


class ChangeRecord(NamedTuple):
    """ADDED, MODIFIED or DELETED; ``before`` is what a MODIFIED object was, for selectors that it left."""

    version: int
    type: str
    item: StoredObject
    before: StoredObject | None


class WatchCache:
    """Changes of one resource in the order of their versions."""

    def __init__(self, floor: int, window: int = WINDOW) -> None:
        """``floor`` is the version up to which nothing is known."""
        self._changes: deque[ChangeRecord] = deque(maxlen=window)
        self._floor = floor
        self._waiting: set[asyncio.Event] = set()

    def add(self, change: ChangeRecord) -> None:
        """Record a change and wake the watches."""
        if len(self._changes) == self._changes.maxlen:
            self._floor = self._changes[0].version
        self._changes.append(change)
        for event in self._waiting:
            event.set()

    def changes_since(self, version: int) -> list[ChangeRecord]:
        """Return the changes after ``version``. Raises StatusError 410 if some of them are forgotten."""
        if version < self._floor:
            raise expired(version, self._floor)
        newer: list[ChangeRecord] = []
        for change in reversed(self._changes):
            if change.version <= version:
                break
            newer.append(change)
        newer.reverse()
        return newer

    def expire(self, version: int) -> None:
        """Let every watch from before ``version`` expire."""
        self._changes.clear()
        self._floor = version
        for event in self._waiting:
            event.set()

    async def wait_for_changes(self, version: int, seconds: float) -> list[ChangeRecord]:
        """Return the changes after ``version``, none if there are none for so long. Raises StatusError 410."""
        changes = self.changes_since(version)
        if changes:
            return changes
        event = asyncio.Event()
        self._waiting.add(event)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):  # wait_for loses a cancellation that meets an event
                    await event.wait()
        finally:
            self._waiting.discard(event)
        return self.changes_since(version)


class StoredObject:
    """An object that never changes again; its JSON is made once, for the disk and for every reader."""

    __slots__ = ("_frozen", "_json", "_json_without_kind", "object", "version")

    def __init__(self, obj: Object, version: int) -> None:
        """``version`` is the object's resourceVersion as a number."""
        self.object, self.version = obj, version
        self._json: bytes | None = None
        self._json_without_kind: bytes | None = None
        self._frozen: bytes | None = None

    @property
    def json(self) -> bytes:
        """The object as compact JSON."""
        if self._json is None:
            self._json = to_json(self.object)
        return self._json

    @property
    def json_without_kind(self) -> bytes:
        """The object as an item of a list, which says once what its items are."""
        if self._json_without_kind is None:
            rest = {key: value for key, value in self.object.items() if key not in ("apiVersion", "kind")}
            self._json_without_kind = to_json(rest)
        return self._json_without_kind

    def copy(self) -> Object:
        """Return the object for a caller who may change it.

        Many readers copy the same item, so it is frozen once and thawed for each (three times as fast as a walk).
        """
        if self._frozen is None:
            self._frozen = marshal.dumps(self.object)
        thawed: Object = marshal.loads(self._frozen)  # noqa: S302 - bytes that this line's neighbour has just made
        return thawed


Key = tuple[str, str]
PODS = "/pods"
FIRST: Key = ("", "")
"""Before every key: names are not empty."""


class ResourceStore:
    """The objects of one storage by namespace and name, with an index of pods by node."""

    def __init__(self) -> None:
        """Start empty."""
        self.items: dict[Key, StoredObject] = {}
        self.by_node: dict[str, dict[Key, StoredObject]] = {}
        self._keys: list[Key] = []  # in order

    def put(self, key: Key, item: StoredObject) -> StoredObject | None:
        """Keep an item; return the one it replaces."""
        before = self.items.get(key)
        if before is None:
            insort(self._keys, key)
        else:
            self._forget_node(key, before)
        self.items[key] = item
        if node := at(item.object, "spec", "nodeName"):
            self.by_node.setdefault(node, {})[key] = item
        return before

    def remove(self, key: Key) -> StoredObject | None:
        """Take an item away."""
        before = self.items.pop(key, None)
        if before is not None:
            del self._keys[bisect_left(self._keys, key)]
            self._forget_node(key, before)
        return before

    def _forget_node(self, key: Key, item: StoredObject) -> None:
        if node := at(item.object, "spec", "nodeName"):
            self.by_node[node].pop(key, None)

    def keys(self, namespace: str, after: Key) -> list[Key]:
        """Return the keys behind one, in order; an empty namespace means all."""
        start, end = bisect_right(self._keys, after), len(self._keys)
        if namespace:
            start = max(start, bisect_left(self._keys, (namespace, "")))
            end = bisect_left(self._keys, (f"{namespace}\0", ""))
        return self._keys[start:end]


class Store:
    """Everything the cluster knows. Not for use from several threads.

    Attributes:
        version: Of the last write.
        oldest: Of the first state that pages of lists may still be of.
    """

    def __init__(self, path: Path | str = ":memory:") -> None:
        """Read what an earlier run has kept under ``path``."""
        self._database = Database(path)
        self._stores: dict[str, ResourceStore] = {}
        self._caches: dict[str, WatchCache] = {}
        self.logs = PodLogs(self._database)
        self.version = max(1, self._database.first_free_version())
        for row in self._database.rows():
            self._resource_store(row.storage).put(key_of(row.object), StoredObject(row.object, row.version))
        self._floor = self.version
        self.oldest = 0

    def _resource_store(self, storage: str) -> ResourceStore:
        store = self._stores.get(storage)
        if store is None:
            store = self._stores[storage] = ResourceStore()
        return store

    def watch_cache(self, storage: str) -> WatchCache:
        """Return the changes of one storage."""
        cache = self._caches.get(storage)
        if cache is None:
            cache = self._caches[storage] = WatchCache(self._floor)
        return cache

    def get(self, storage: str, name: str, namespace: str = "") -> StoredObject | None:
        """Return an item; its object must not be changed."""
        return self._resource_store(storage).items.get((namespace, name))

    def select(self, storage: str, namespace: str = "", node: str = "", after: Key = FIRST) -> list[StoredObject]:
        """Return items by namespace and name.

        Args:
            namespace: All if it is empty.
            node: Asks for the pods bound to it.
            after: The key behind which they begin.
        """
        store = self._resource_store(storage)
        if not node:
            return [store.items[key] for key in store.keys(namespace, after)]
        bound = store.by_node.get(node, {})
        return [bound[key] for key in sorted(bound) if key > after and namespace in {"", key[0]}]

    def count(self, storage: str) -> int:
        """Return how many objects a storage holds."""
        return len(self._resource_store(storage).items)

    def put(self, storage: str, obj: Object) -> StoredObject:
        """Keep an object, which is not changed from here on, under the next version."""
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        item, key = StoredObject(obj, self.version), key_of(obj)
        self._database.put(storage, key, self.version, item.json)
        before = self._resource_store(storage).put(key, item)
        kind = "MODIFIED" if before else "ADDED"
        self.watch_cache(storage).add(ChangeRecord(self.version, kind, item, before))
        return item

    def remove(self, storage: str, name: str, namespace: str = "") -> StoredObject | None:
        """Take an object away; watchers see its last state under the version of the deletion."""
        before = self._resource_store(storage).remove((namespace, name))
        if before is None:
            return None
        self.version += 1
        metadata = {**before.object["metadata"], "resourceVersion": str(self.version)}
        last = StoredObject({**before.object, "metadata": metadata}, self.version)
        self._database.remove(storage, (namespace, name), self.version)
        self.watch_cache(storage).add(ChangeRecord(self.version, "DELETED", last, before))
        if storage == PODS:
            self.logs.drop(metadata["uid"])
        return last

    def expire_watches(self) -> None:
        """Forget all changes, so that every watch must list again, also one that is up to date."""
        self.version += 1
        self.oldest = self.version
        for cache in self._caches.values():
            cache.expire(self.version)

    def close(self) -> None:
        """Close the file; the store is of no use afterwards."""
        self._database.close()
