"""Faults of the API server itself, declared in the ConfigMap kube-system/sandbox-faults under the key ``api-server``.

The value is YAML; every fault may be limited to ``verbs`` (HTTP methods), ``paths`` (a regular expression) and
``agents`` (part of the User-Agent), and to the next ``requests``::

    throttle: {requests: 5, retry_after: 1}     # 429 with Retry-After; or {rate: 10}: more than 10 requests a second
    unavailable: {seconds: 30}                  # 503
    latency: {seconds: 0.2, agents: gpu-provision}
    drop: {requests: 2, verbs: [PATCH]}         # the connection closes without an answer
    expire-watches: true                        # every watch gets 410 once

Requests to that ConfigMap itself are exempt, so that every fault can be removed.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import yaml

from gpu_provision.sandbox.apiserver.errors import StatusError, too_many_requests
from gpu_provision.sandbox.apiserver.store import StoredObject
from gpu_provision.sandbox.objects import key_of, value_at

NAMESPACE, NAME, KEY = "kube-system", "sandbox-faults", "api-server"
_EXEMPT = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{NAME}"
KINDS = ("latency", "drop", "unavailable", "throttle")


class DropConnectionError(Exception):
    """The connection closes without an answer."""


@dataclass
class ApiFault:
    """One fault and its number of hits."""

    kind: str
    settings: dict[str, Any]
    started: float = field(default_factory=time.monotonic)
    hit_count: int = 0
    recent: list[float] = field(default_factory=list)

    def hits(self, method: str, path: str, agent: str) -> bool:
        """Whether the fault hits a request; count the hit."""
        limits = self.settings
        if limits.get("verbs") and method not in limits["verbs"]:
            return False
        if not re.search(str(limits.get("paths", "")), path) or str(limits.get("agents", "")) not in agent:
            return False
        if self.kind != "latency" and "seconds" in limits and time.monotonic() > self.started + limits["seconds"]:
            return False
        if "rate" in limits:
            now = time.monotonic()
            self.recent = [*(moment for moment in self.recent if moment > now - 1), now]
            if len(self.recent) <= limits["rate"]:
                return False
        self.hit_count += 1
        return "requests" not in limits or self.hit_count <= limits["requests"]


class ApiFaults:
    """The active faults."""

    def __init__(self, expire_watches: Callable[[], None]) -> None:
        """The fault ``expire-watches`` calls ``expire_watches``."""
        self._expire_watches = expire_watches
        self._faults: list[ApiFault] = []
        self._text = ""

    def on_change(self, before: StoredObject | None, after: StoredObject | None) -> None:
        """Read the ConfigMap of faults after a change; a text other than a YAML map declares nothing."""
        changed = after or before
        if changed is None or key_of(changed.object) != (NAMESPACE, NAME):
            return
        text = (value_at(after.object, "data", KEY) or "") if after else ""
        if text == self._text:
            return
        self._text = text
        try:
            declared = yaml.safe_load(text)
        except yaml.YAMLError:
            declared = None
        declared = declared if isinstance(declared, dict) else {}
        settings = {kind: declared[kind] for kind in KINDS if declared.get(kind)}
        self._faults = [ApiFault(kind, own if isinstance(own, dict) else {}) for kind, own in settings.items()]
        if declared.get("expire-watches"):
            self._expire_watches()

    async def apply(self, method: str, path: str, agent: str) -> None:
        """Delay a request, or raise its fault: StatusError or DropConnectionError."""
        if path == _EXEMPT:
            return
        for fault in (one for one in self._faults if one.hits(method, path, agent)):
            match fault.kind:
                case "latency":
                    await asyncio.sleep(float(fault.settings.get("seconds", 0.5)))
                case "drop":
                    raise DropConnectionError
                case "unavailable":
                    message = str(fault.settings.get("message", "the server is currently unable to handle the request"))
                    raise StatusError(503, "ServiceUnavailable", message)
                case _:
                    message = "the server has received too many requests and has asked us to try again later"
                    raise too_many_requests(message, retry_after=int(fault.settings.get("retry_after", 1)))
