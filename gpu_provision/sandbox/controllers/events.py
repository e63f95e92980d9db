"""Events that controllers record, as ``kubectl describe`` shows them.

Equal events become one with a count; more than ten similar ones about an object within ten minutes are
combined into one, as client-go's recorder does. Recording never waits and never fails its caller.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import EVENTS, Api, ApiError, ApiResource, Object
from gpu_provision.sandbox.objects import KINDS, api_version

_log = logging.getLogger(__name__)
_REMEMBERED = 8192
_SIMILAR, _SIMILAR_SECONDS = 10, 600.0
_NOT_FOUND = 404

_Kind = tuple[str, str, str, str]
"""uid, component, type and reason: what makes events similar."""
_Id = tuple[_Kind, str]


class EventText(NamedTuple):
    """What an event says: a reason in CamelCase and a message for people."""

    reason: str
    message: str
    warning: bool = False


@dataclass(slots=True)
class _Entry:
    body: Object
    count: int = 0
    stored: bool = False


@dataclass(slots=True)
class _Similar:
    since: float
    messages: set[str] = field(default_factory=set)


class Recorder:
    """Records events in the background while ``run`` runs."""

    def __init__(self, api: Api) -> None:
        """Start with an empty memory."""
        self._api = api
        self._entries: OrderedDict[_Id, _Entry] = OrderedDict()
        self._similar: OrderedDict[_Kind, _Similar] = OrderedDict()
        self._pending: dict[_Id, None] = {}
        self._wake = asyncio.Event()

    def record(self, resource: ApiResource, obj: Object, note: EventText, *, component: str) -> None:
        """Write an event about ``obj``, soon."""
        level = "Warning" if note.warning else "Normal"
        kind = (obj["metadata"].get("uid", ""), component, level, note.reason)
        text = self._combined(kind, note.message)
        identity = (kind, text if text is note.message else "")
        entry = self._entries.get(identity)
        moment = objects.now()
        if entry is None:
            entry = self._entries[identity] = _Entry(_event(resource, obj, component, moment))
            _forget_oldest(self._entries)
        entry.count += 1
        entry.body |= {"type": level, "reason": note.reason, "message": text}
        entry.body |= {"count": entry.count, "lastTimestamp": objects.format_time(moment)}
        self._pending[identity] = None
        self._wake.set()

    def _combined(self, kind: _Kind, message: str) -> str:
        similar = self._similar.get(kind)
        if similar is None or time.monotonic() - similar.since > _SIMILAR_SECONDS:
            similar = self._similar[kind] = _Similar(time.monotonic())
            _forget_oldest(self._similar)
        if message in similar.messages or len(similar.messages) < _SIMILAR:
            similar.messages.add(message)
            return message
        return f"(combined from similar events): {message}"

    async def run(self) -> None:
        """Write what was recorded until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._pending:
                identity = next(iter(self._pending))
                del self._pending[identity]
                entry = self._entries.get(identity)
                if entry is not None:
                    await self._write(entry)

    async def _write(self, entry: _Entry) -> None:
        try:
            await self._store(entry)
        except Exception as error:  # noqa: BLE001  an event is never worth a controller's failure
            _log.debug("event not recorded: %r", error)

    async def _store(self, entry: _Entry) -> None:
        namespace, name = entry.body["metadata"]["namespace"], entry.body["metadata"]["name"]
        if entry.stored:
            change = {key: entry.body[key] for key in ("message", "count", "lastTimestamp")}
            try:
                await self._api.patch(EVENTS, name, change, namespace)
            except ApiError as refusal:
                if refusal.code != _NOT_FOUND:
                    raise
            else:
                return
        await self._api.create(EVENTS, dict(entry.body), namespace)
        entry.stored = True


def _event(resource: ApiResource, obj: Object, component: str, moment: datetime) -> Object:
    metadata = obj["metadata"]
    namespace = metadata.get("namespace") or "default"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name']}.{uuid.uuid4().hex[:16]}", "namespace": namespace},
        "involvedObject": {
            "apiVersion": api_version(resource),
            "kind": KINDS.get(resource) or obj.get("kind", ""),
            "namespace": metadata.get("namespace", ""),
            "name": metadata["name"],
            "uid": metadata.get("uid", ""),
            "resourceVersion": metadata.get("resourceVersion", ""),
        },
        "source": {"component": component},
        "reportingComponent": component,
        "reportingInstance": "",
        "firstTimestamp": objects.format_time(moment),
    }


def _forget_oldest(memory: OrderedDict[_Id, _Entry] | OrderedDict[_Kind, _Similar]) -> None:
    if len(memory) > _REMEMBERED:
        memory.popitem(last=False)
