"""Events as controllers and kubelets record them and ``kubectl describe`` shows them.

Equal events of an object become one with a count. Recording never waits and never fails its caller.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import OrderedDict
from dataclasses import dataclass

from gpu_provision.sandbox.api import EVENTS, NOT_FOUND, Api, ApiError, Object
from gpu_provision.sandbox.objects import format_time, now

_log = logging.getLogger(__name__)
_MAX_REMEMBERED = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSource:
    """Who records an event: a component such as ``kubelet``, and its host."""

    component: str
    host: str = ""


@dataclass(slots=True)
class _Recorded:
    body: Object
    stored: bool = False


class EventRecorder:
    """Records events in the background while ``run`` runs."""

    def __init__(self, api: Api) -> None:
        """Start with an empty memory."""
        self._api = api
        self._recorded: OrderedDict[tuple[str, ...], _Recorded] = OrderedDict()
        self._pending: dict[tuple[str, ...], None] = {}
        self._wake = asyncio.Event()

    def record(
        self, involved: Object, reason: str, message: str, *, source: EventSource, warning: bool = False
    ) -> None:
        """Write an event soon; ``involved`` is the reference to the object that it is about."""
        level = "Warning" if warning else "Normal"
        key = (involved["uid"], involved.get("fieldPath", ""), source.component, level, reason, message)
        moment = format_time(now())
        recorded = self._recorded.get(key)
        if recorded is None:
            recorded = self._recorded[key] = _Recorded(_build(involved, source, moment))
            if len(self._recorded) > _MAX_REMEMBERED:
                self._recorded.popitem(last=False)
        body = recorded.body
        body |= {
            "type": level,
            "reason": reason,
            "message": message,
            "lastTimestamp": moment,
            "count": body["count"] + 1,
        }
        self._pending[key] = None
        self._wake.set()

    async def run(self) -> None:
        """Write what was recorded until cancelled; an event that the server refuses is dropped."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._pending:
                key = next(iter(self._pending))
                del self._pending[key]
                if recorded := self._recorded.get(key):
                    try:
                        await self._store(recorded)
                    except (ApiError, OSError) as error:
                        _log.debug("event not recorded: %r", error)

    async def _store(self, recorded: _Recorded) -> None:
        body, metadata = recorded.body, recorded.body["metadata"]
        if recorded.stored:
            change = {key: body[key] for key in ("count", "lastTimestamp")}
            try:
                await self._api.patch(EVENTS, metadata["name"], change, metadata["namespace"])
            except ApiError as refusal:
                if refusal.code != NOT_FOUND:
                    raise
            else:
                return
        await self._api.create(EVENTS, dict(body), metadata["namespace"])
        recorded.stored = True


def _build(involved: Object, source: EventSource, moment: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{involved['name']}.{uuid.uuid4().hex[:16]}",
            "namespace": involved.get("namespace") or "default",
        },
        "involvedObject": involved,
        "source": {"component": source.component, **({"host": source.host} if source.host else {})},
        "reportingComponent": source.component,
        "reportingInstance": source.host,
        "firstTimestamp": moment,
        "count": 0,
    }
