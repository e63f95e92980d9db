"""Watches over HTTP: one JSON document per line."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.calls import Call, Stream
from gpu_provision.sandbox.apiserver.objects import dumped
from gpu_provision.sandbox.apiserver.reading import (
    BOOKMARK_SECONDS,
    Event,
    Selection,
    Watch,
    checked_initial_events,
    parsed_version,
)
from gpu_provision.sandbox.apiserver.registry import Registry
from gpu_provision.sandbox.apiserver.status import StatusError
from gpu_provision.sandbox.apiserver.store import Item
from gpu_provision.sandbox.apiserver.tables import Form, form_of, one

_SHORTEST, _SPREAD, _GONE = 1800, 1800, 410


def watch(registry: Registry, call: Call, selection: Selection) -> Stream:
    """Start a watch. Raises StatusError 400, 422 or 504."""
    version = parsed_version(call.query.get("resourceVersion", ""))
    initial = checked_initial_events(dict(call.query))
    try:
        started = Watch(registry.store, call.info, selection, 0 if initial else version)
    except StatusError as error:
        if error.code != _GONE:
            raise
        return Stream(_refused(error))
    seconds = call.number("timeoutSeconds") or _SHORTEST + secrets.randbelow(_SPREAD)
    lines = _Lines(registry, call, started, bookmark_first=initial)
    return Stream(lines.until(asyncio.get_running_loop().time() + seconds))


async def _refused(error: StatusError) -> AsyncIterator[bytes]:
    """Fail as a watch that is under way does: what is too old is found out after the answer has begun."""
    yield _document("ERROR", dumped(error.status()))


class _Lines:
    """The events of one watch as lines."""

    def __init__(self, registry: Registry, call: Call, started: Watch, *, bookmark_first: bool) -> None:
        self._registry, self._info, self._watch = registry, call.info, started
        self._form: Form = form_of(call)
        self._bookmarks = call.flag("allowWatchBookmarks")
        self._bookmark_first = bookmark_first

    async def until(self, deadline: float) -> AsyncIterator[bytes]:
        """Yield lines until ``deadline`` (loop time); a watch that fell behind ends with an ERROR event."""
        loop = asyncio.get_running_loop()
        self._watch.beat = min(BOOKMARK_SECONDS, deadline - loop.time())
        if self._bookmark_first:
            for event in self._watch.initial():
                yield self._line(event)
            yield self._bookmark(self._watch.version, initial_end=True)
        try:
            async for events in self._watch.batches():
                yield b"".join(self._line(event) for event in events)
                if loop.time() >= deadline:
                    return
                self._watch.beat = min(BOOKMARK_SECONDS, deadline - loop.time())
        except StatusError as error:
            yield _document("ERROR", dumped(error.status()))

    def _line(self, event: Event) -> bytes:
        if event.item is None:
            return self._bookmark(event.version) if self._bookmarks else b""
        return _document(event.type, one(event.item, self._info, self._form, self._registry.custom))

    def _bookmark(self, version: int, *, initial_end: bool = False) -> bytes:
        metadata: Object = {"resourceVersion": str(version), "creationTimestamp": None}
        if initial_end:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        obj = {"kind": self._info.kind, "apiVersion": self._info.api_version, "metadata": metadata}
        if self._form.kind != "Table":
            return _document("BOOKMARK", dumped(obj))
        item = Item(obj, version)
        return _document("BOOKMARK", one(item, self._info, self._form, self._registry.custom))


def _document(kind: str, body: bytes) -> bytes:
    return b'{"type":"' + kind.encode() + b'","object":' + body + b"}\n"
