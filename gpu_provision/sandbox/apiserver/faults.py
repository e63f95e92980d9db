"""Faults of the API server itself, declared in the ConfigMap kube-system/sandbox-faults under the key ``api-server``.

The value is YAML; every fault may be limited to ``verbs`` (HTTP methods), ``paths`` (a regular expression) and
``agents`` (part of the User-Agent), and to the next ``requests``::

    throttle: {requests: 5, retry_after: 1}     # 429 with Retry-After; or {rate: 10}: more than 10 requests a second
    unavailable: {seconds: 30}                  # 503
    latency: {seconds: 0.2, agents: gpu-provision}
    drop: {requests: 2, verbs: [PATCH]}         # the connection closes without an answer
    expire-watches: true                        # every watch gets 410 once

Requests to that ConfigMap itself are exempt, so that a fault can always be taken back.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import yaml

from gpu_provision.sandbox.apiserver.objects import at
from gpu_provision.sandbox.apiserver.status import too_many_requests, unavailable
from gpu_provision.sandbox.apiserver.store import Item

NAMESPACE, NAME, KEY = "kube-system", "sandbox-faults", "api-server"
_EXEMPT = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{NAME}"
KINDS = ("latency", "drop", "unavailable", "throttle")


class DropConnection(Exception):
    """The connection is to be closed without an answer."""


class Asked(NamedTuple):
    """What a fault may look at."""

    method: str
    path: str
    agent: str


@dataclass
class Fault:
    """One fault and how much of it is left."""

    kind: str
    settings: dict[str, Any]
    started: float = field(default_factory=time.monotonic)
    seen: int = 0
    recent: list[float] = field(default_factory=list)

    def applies(self, asked: Asked) -> bool:
        """Say whether the fault hits this request; counts it if so."""
        limits = self.settings
        if limits.get("verbs") and asked.method not in limits["verbs"]:
            return False
        if not re.search(str(limits.get("paths", "")), asked.path) or str(limits.get("agents", "")) not in asked.agent:
            return False
        if self.kind != "latency" and "seconds" in limits and time.monotonic() > self.started + limits["seconds"]:
            return False
        if "rate" in limits and not self._too_fast(limits["rate"]):
            return False
        self.seen += 1
        return "requests" not in limits or self.seen <= limits["requests"]

    def _too_fast(self, rate: float) -> bool:
        now = time.monotonic()
        self.recent = [*(moment for moment in self.recent if moment > now - 1), now]
        return len(self.recent) > rate


class Faults:
    """The faults in force."""

    def __init__(self, expire_watches: Callable[[], None]) -> None:
        """``expire_watches`` is called when the fault of that name is switched on."""
        self._expire_watches = expire_watches
        self._faults: list[Fault] = []
        self._text = ""
        self.problem = ""

    def changed(self, _before: Item | None, after: Item | None) -> None:
        """Read the ConfigMap anew if this is it; a text that is no YAML map is kept as ``problem``."""
        changed = after or _before
        if changed is None or _name(changed) != (NAMESPACE, NAME):
            return
        text = (at(after.object, "data", KEY) or "") if after else ""
        if text == self._text:
            return
        self._text = text
        declared, self.problem = _read(text)
        self._faults = [Fault(kind, _settings(declared[kind])) for kind in KINDS if declared.get(kind)]
        if declared.get("expire-watches"):
            self._expire_watches()

    async def suffer(self, asked: Asked) -> None:
        """Wait, or raise what a fault makes of this request: StatusError or DropConnection."""
        if asked.path == _EXEMPT:
            return
        for fault in self._faults:
            if fault.applies(asked):
                await self._act(fault)

    async def _act(self, fault: Fault) -> None:
        match fault.kind:
            case "latency":
                await asyncio.sleep(float(fault.settings.get("seconds", 0.5)))
            case "drop":
                raise DropConnection
            case "unavailable":
                message = str(fault.settings.get("message", "the server is currently unable to handle the request"))
                raise unavailable(message)
            case _:
                message = "the server has received too many requests and has asked us to try again later"
                raise too_many_requests(message, retry_after=int(fault.settings.get("retry_after", 1)))


def _name(item: Item) -> tuple[str, str]:
    metadata = item.object["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _settings(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _read(text: str) -> tuple[dict[str, Any], str]:
    try:
        declared = yaml.safe_load(text) if text else {}
    except yaml.YAMLError as error:
        return {}, f"{KEY} is no YAML: {error}"
    if not isinstance(declared, dict):
        return {}, f"{KEY} is no map of faults"
    unknown = sorted(set(map(str, declared)) - {*KINDS, "expire-watches"})
    return declared, f"unknown faults: {', '.join(unknown)}" if unknown else ""
