"""Events as controllers and kubelets record them and ``kubectl describe`` shows them.

Equal events of an object become one with a count. Recording never waits and never fails its caller.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import OrderedDict

from gpu_provision.sandbox.api import EVENTS, NOT_FOUND, Api, ApiError, Object
from gpu_provision.sandbox.objects import timestamp

_log = logging.getLogger(__name__)
_MAX_REMEMBERED = 16_384


class EventRecorder:
    """Records events in the background while ``run`` runs."""

    def __init__(self, api: Api) -> None:
        """Start with an empty memory."""
        self._api = api
        self._recorded: OrderedDict[tuple[str, ...], Object] = OrderedDict()
        self._stored: set[str] = set()
        self._pending: dict[tuple[str, ...], None] = {}
        self._wake = asyncio.Event()

    def record(  # noqa: PLR0913  the parts of an event
        self, involved: Object, reason: str, message: str, *, component: str, host: str = "", warning: bool = False
    ) -> None:
        """Write an event soon; ``involved`` is the reference to the object that it is about."""
        level, moment = "Warning" if warning else "Normal", timestamp()
        key = (involved["uid"], involved.get("fieldPath", ""), component, level, reason, message)
        body = self._recorded.setdefault(key, {})
        if not body:
            name = f"{involved['name']}.{uuid.uuid4().hex[:16]}"
            body |= {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": name, "namespace": involved.get("namespace") or "default"},
                "involvedObject": involved,
                "source": {"component": component, **({"host": host} if host else {})},
                "reportingComponent": component,
                "reportingInstance": host,
                "firstTimestamp": moment,
                "type": level,
                "reason": reason,
                "message": message,
                "count": 0,
            }
            if len(self._recorded) > _MAX_REMEMBERED:
                _, forgotten = self._recorded.popitem(last=False)
                self._stored.discard(forgotten["metadata"]["name"])
        body |= {"lastTimestamp": moment, "count": body["count"] + 1}
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
                if body := self._recorded.get(key):
                    try:
                        await self._store(body)
                    except (ApiError, OSError) as error:
                        _log.debug("event not recorded: %r", error)

    async def _store(self, body: Object) -> None:
        name, namespace = body["metadata"]["name"], body["metadata"]["namespace"]
        if name in self._stored:
            change = {key: body[key] for key in ("count", "lastTimestamp")}
            try:
                await self._api.patch(EVENTS, name, change, namespace)
            except ApiError as refusal:
                if refusal.code != NOT_FOUND:
                    raise
            else:
                return
        await self._api.create(EVENTS, dict(body), namespace)
        self._stored.add(name)
