"""A local copy of one kind of object that follows the API server, with indexes and handlers.

List once, then watch; after a loss of the connection or an expired watch, list again and report the
differences as if they had been watched. Handlers are plain functions: they note what to do and return.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Hashable, Iterable

from gpu_provision.sandbox.api import Api, ApiError, ApiResource, Object, ObjectEvent
from gpu_provision.sandbox.objects import Key, key_of

Change = Callable[[Object | None, Object | None], None]
"""Called with the object before and after; None stands for "did not exist" or "is gone"."""

_log = logging.getLogger(__name__)
_GONE = 410
_FIRST_DELAY, _MAX_DELAY = 0.05, 10.0
_SHORT_WATCH = 1.0
_EVENTS_PER_TURN = 20


class Index:
    """Finds objects by keys that a function derives from them."""

    def __init__(self, keys: Callable[[Object], Iterable[Hashable]]) -> None:
        """Start empty."""
        self._keys = keys
        self._members: dict[Hashable, dict[Key, None]] = {}
        self._keys_of: dict[Key, frozenset[Hashable]] = {}

    def put(self, key: Key, obj: Object | None) -> None:
        """Take in the present state of an object; None removes it."""
        before = self._keys_of.get(key, frozenset())
        after = frozenset(self._keys(obj)) if obj is not None else frozenset()
        if before == after:
            return
        for gone in before - after:
            members = self._members[gone]
            members.pop(key, None)
            if not members:
                del self._members[gone]
        for new in after - before:
            self._members.setdefault(new, {})[key] = None
        if after:
            self._keys_of[key] = after
        else:
            self._keys_of.pop(key, None)

    def members(self, index_key: Hashable) -> Iterable[Key]:
        """Return the keys of the objects found under ``index_key``."""
        return self._members.get(index_key, ())


class Informer:
    """Follows one resource, optionally of one namespace or narrowed by selectors.

    Attributes:
        objects: (namespace, name) -> object; read-only for users, who must not change the objects either.
    """

    def __init__(
        self,
        api: Api,
        resource: ApiResource,
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
    ) -> None:
        """Prepare; nothing is asked of the server before ``run``."""
        self.resource = resource
        self.objects: dict[Key, Object] = {}
        self._api = api
        self._narrowed = {"namespace": namespace, "label_selector": label_selector, "field_selector": field_selector}
        self._handlers: list[Change] = []
        self._indexes: dict[str, Index] = {}
        self._synced = asyncio.Event()
        self._version = 0
        self._deleting: dict[str, str] = {}

    def on_event(self, handler: Callable[[str, Object], None]) -> None:
        """Call ``handler(type, object)`` for each change; type is ADDED, MODIFIED or DELETED.

        Objects that are already known are reported as ADDED at once.
        """

        def change(old: Object | None, new: Object | None) -> None:
            if new is not None:
                handler("ADDED" if old is None else "MODIFIED", new)
            elif old is not None:
                handler("DELETED", old)

        self.on_change(change)

    def on_change(self, handler: Change) -> None:
        """Call ``handler(before, after)`` for each change; known objects are reported at once."""
        self._handlers.append(handler)
        for obj in tuple(self.objects.values()):
            _call(handler, None, obj)

    def index(self, name: str, keys: Callable[[Object], Iterable[Hashable]]) -> None:
        """Keep an index under ``name``, unless there is one; ``keys`` derives the keys of an object."""
        if name in self._indexes:
            return
        self._indexes[name] = index = Index(keys)
        for key, obj in self.objects.items():
            index.put(key, obj)

    def by_index(self, name: str, index_key: Hashable) -> list[Object]:
        """Return the objects that the index ``name`` finds under ``index_key``."""
        return [self.objects[key] for key in self._indexes[name].members(index_key)]

    async def wait_for_sync(self) -> None:
        """Return once the first list is in."""
        await self._synced.wait()

    @property
    def is_synced(self) -> bool:
        """Whether the first list is in."""
        return self._synced.is_set()

    def observe(self, obj: Object) -> None:
        """Take in the answer to one's own write before the watch brings it."""
        if _version(obj) > self._version:
            self._put(obj)

    def observe_deletion(self, obj: Object, at: str) -> None:
        """Take in that one's own deletion of ``obj`` was accepted ``at`` (RFC 3339).

        Until the watch says more, the object is shown with that deletionTimestamp.
        """
        uid, key = obj["metadata"].get("uid", ""), key_of(obj)
        known = self.objects.get(key)
        if known is None or known["metadata"].get("uid") != uid or known["metadata"].get("deletionTimestamp"):
            return
        self._deleting[uid] = at
        self._put(known)

    async def run(self) -> None:
        """Follow the resource until cancelled."""
        failures = 0
        while True:
            try:
                version = await self._relist()
                failures = await self._follow(version, failures)
            except ApiError as refusal:
                level = logging.DEBUG if refusal.code == _GONE else logging.WARNING
                _log.log(level, "%s: %s; listing again", self.resource.plural, refusal)
            except Exception as error:  # noqa: BLE001  the transport decides what it raises; all mean "again"
                _log.warning("%s: %r; listing again", self.resource.plural, error)
            await asyncio.sleep(min(_FIRST_DELAY * 2**failures, _MAX_DELAY))
            failures = min(failures + 1, 10)

    async def _relist(self) -> str:
        objects, version = await self._api.list(self.resource, **self._narrowed)
        found = {key_of(obj): obj for obj in objects}
        self._version = int(version or 0)
        for key in [key for key in self.objects if key not in found]:
            self._drop(key)
        for key, obj in found.items():
            known = self.objects.get(key)
            if known is None or _version(known) != _version(obj):
                self._put(obj)
        self._synced.set()
        return version

    async def _follow(self, version: str, failures: int) -> int:
        """Watch until a stream ends early; return the number of failures in a row."""
        while True:
            started = time.monotonic()
            count = 0
            async for event in self._api.watch(self.resource, version, **self._narrowed):
                end_if_cancelled()
                self._handle_event(event)
                version = event.object["metadata"].get("resourceVersion", version)
                count += 1
                failures = 0
                if count % _EVENTS_PER_TURN == 0:
                    await asyncio.sleep(0)
            if count == 0 and time.monotonic() - started < _SHORT_WATCH:
                return failures

    def _handle_event(self, event: ObjectEvent) -> None:
        version = _version(event.object)
        self._version = max(self._version, version)
        if event.type == "BOOKMARK":
            return
        key = key_of(event.object)
        known = self.objects.get(key)
        if event.type != "DELETED":
            if known is None or version > _version(known):
                self._put(event.object)
            return
        if known is not None and known["metadata"].get("uid") == event.object["metadata"].get("uid"):
            self._drop(key, event.object)

    def _put(self, obj: Object) -> None:
        key = key_of(obj)
        known = self.objects.get(key)
        if known is not None and known["metadata"].get("uid") != obj["metadata"].get("uid"):
            self._drop(key)
            known = None
        at = self._deleting.get(obj["metadata"].get("uid", ""))
        if at is not None and not obj["metadata"].get("deletionTimestamp"):
            obj = {**obj, "metadata": {**obj["metadata"], "deletionTimestamp": at}}
        self.objects[key] = obj
        self._notify_handlers(key, known, obj)

    def _drop(self, key: Key, last: Object | None = None) -> None:
        known = self.objects.pop(key)
        self._deleting.pop(known["metadata"].get("uid", ""), None)
        self._notify_handlers(key, last or known, None)

    def _notify_handlers(self, key: Key, old: Object | None, new: Object | None) -> None:
        for index in self._indexes.values():
            index.put(key, new)
        for handler in self._handlers:
            _call(handler, old, new)


def _call(handler: Change, old: Object | None, new: Object | None) -> None:
    try:
        handler(old, new)
    except Exception:  # noqa: BLE001  one user's mistake must not blind the others
        _log.exception("a handler failed")


def end_if_cancelled() -> None:
    """Raise CancelledError if the running task has been cancelled and a callee swallowed that.

    Before Python 3.12, asyncio.wait_for may, and so may a TaskGroup one of whose tasks fails at that moment.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _version(obj: Object) -> int:
    return int(obj["metadata"].get("resourceVersion") or 0)
