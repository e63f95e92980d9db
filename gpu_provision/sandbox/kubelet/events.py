"""Events about pods and nodes, counted instead of repeated, written beside the work that causes them."""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from gpu_provision.sandbox.api import EVENTS, Api, ApiError, Object
from gpu_provision.sandbox.kubelet.pod_status import now

REMEMBERED = 20_000


class EventRecorder:
    """Records events; equal ones of one object become one event with a count."""

    def __init__(self, api: Api, *, everything: bool = True) -> None:
        """With ``everything`` off, only warnings are recorded."""
        self._api, self._everything = api, everything
        self._queue: asyncio.Queue[tuple[Object, str, str, str, str]] = asyncio.Queue()
        self._known: OrderedDict[tuple[str, ...], tuple[str, int]] = OrderedDict()

    def normal(self, involved: Mapping[str, Any], reason: str, message: str, *, field: str = "") -> None:
        """Record that something went as it should."""
        if self._everything:
            self._queue.put_nowait((_reference(involved, field), "Normal", reason, message, _host(involved)))

    def warning(self, involved: Mapping[str, Any], reason: str, message: str, *, field: str = "") -> None:
        """Record a problem."""
        self._queue.put_nowait((_reference(involved, field), "Warning", reason, message, _host(involved)))

    async def run(self) -> None:
        """Write events until cancelled; one that the server refuses is dropped."""
        while True:
            entry = await self._queue.get()
            try:
                await self._write(*entry)
            except (ApiError, OSError):
                continue

    async def _write(self, reference: Object, kind: str, reason: str, message: str, host: str) -> None:
        key = (reference["kind"], reference.get("uid", ""), reference.get("fieldPath", ""), reason, message)
        namespace = reference.get("namespace") or "default"
        name, count = self._known.get(key, ("", 0))
        if name:
            await self._api.patch(EVENTS, name, {"count": count + 1, "lastTimestamp": now()}, namespace)
        else:
            name = f"{reference['name']}.{secrets.token_hex(8)}"
            await self._api.create(EVENTS, _event(name, namespace, reference, (kind, reason, message, host)), namespace)
        self._remember(key, (name, count + 1))

    def _remember(self, key: tuple[str, ...], entry: tuple[str, int]) -> None:
        self._known[key] = entry
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)


def _host(involved: Mapping[str, Any]) -> str:
    return str(involved.get("spec", {}).get("nodeName") or involved["metadata"]["name"])


def _kind(involved: Mapping[str, Any]) -> str:
    """Return the kind of an object; the items of a list do not say it."""
    if "containers" in involved.get("spec", {}):
        return "Pod"
    return "ConfigMap" if "data" in involved else "Node"


def _reference(involved: Mapping[str, Any], field: str) -> Object:
    metadata = involved["metadata"]
    kind = _kind(involved)
    # A kubelet names its node by name where others use the uid; kubectl describe looks for either.
    uid = metadata["name"] if kind == "Node" else metadata.get("uid", "")
    reference = {"apiVersion": "v1", "kind": kind, "name": metadata["name"], "uid": uid}
    reference |= {"namespace": metadata["namespace"]} if metadata.get("namespace") else {}
    return reference | ({"fieldPath": field} if field else {})


def _event(name: str, namespace: str, reference: Object, words: tuple[str, str, str, str]) -> Object:
    kind, reason, message, host = words
    time = now()
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": reference,
        "type": kind,
        "reason": reason,
        "message": message,
        "source": {"component": "kubelet", "host": host},
        "reportingComponent": "kubelet",
        "reportingInstance": host,
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
    }
