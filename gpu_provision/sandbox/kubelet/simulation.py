"""What the simulated machines of one cluster share."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpu_provision.sandbox.api import NOT_FOUND, Api, ApiError, ApiResource, Object
from gpu_provision.sandbox.events import EventRecorder, EventSource
from gpu_provision.sandbox.fleet import Timings
from gpu_provision.sandbox.informer import Informer
from gpu_provision.sandbox.kubelet.logs import LogSink
from gpu_provision.sandbox.kubelet.machine import Machine

LONGEST_BACK_OFF = 30


class KubeletEvents:
    """The events that kubelets record about pods and nodes; normal ones only if the fleet wants them."""

    def __init__(self, recorder: EventRecorder, *, everything: bool) -> None:
        """With ``everything`` off, only warnings are recorded."""
        self._recorder, self._everything = recorder, everything

    def normal(self, involved: Mapping[str, Any], reason: str, message: str, *, field: str = "") -> None:
        """Record that something went as it should."""
        if self._everything:
            self._record(involved, reason, message, field, warning=False)

    def warning(self, involved: Mapping[str, Any], reason: str, message: str, *, field: str = "") -> None:
        """Record a problem."""
        self._record(involved, reason, message, field, warning=True)

    def _record(self, involved: Mapping[str, Any], reason: str, message: str, field: str, *, warning: bool) -> None:
        spec, metadata = involved.get("spec", {}), involved["metadata"]
        kind = "Pod" if "containers" in spec else "ConfigMap" if "data" in involved else "Node"
        reference = {
            "apiVersion": "v1",
            "kind": kind,
            "name": metadata["name"],
            # A kubelet names its node by name where others use the uid; kubectl describe looks for either.
            "uid": metadata["name"] if kind == "Node" else metadata.get("uid", ""),
            **({"namespace": metadata["namespace"]} if metadata.get("namespace") else {}),
            **({"fieldPath": field} if field else {}),
        }
        source = EventSource(component="kubelet", host=str(spec.get("nodeName") or metadata["name"]))
        self._recorder.record(reference, reason, message, source=source, warning=warning)

    async def run(self) -> None:
        """Write events until cancelled."""
        await self._recorder.run()


@dataclass(slots=True, kw_only=True)
class Simulation:
    """The cluster, the machines, and how long things take.

    Attributes:
        pods: Every pod of the cluster, with an index ``node``.
        kubelet_address: Where a real API server finds the kubelet endpoint; empty on the embedded one.
    """

    api: Api
    timings: Timings
    write_log: LogSink
    events: KubeletEvents
    machines: Mapping[str, Machine]
    pods: Informer
    kubelet_address: str = ""
    kubelet_port: int = 10250

    async def sleep(self, seconds: float) -> None:
        """Let time pass as the fleet lives it."""
        await asyncio.sleep(self.timings.scaled(seconds))

    async def pause(self) -> None:
        """Wait as long as a waiter waits before it looks again."""
        await self.sleep(self.timings.retry)

    async def back_off(self, tries: int, machine: Machine, until: Callable[[], bool] = lambda: False) -> None:
        """Wait longer with every try, but no longer than until something holds on the machine."""
        seconds = self.timings.retry * min(2**tries, LONGEST_BACK_OFF)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.timings.scaled(seconds)):
                await machine.until(until)

    async def find(self, resource: ApiResource, name: str, namespace: str = "") -> Object | None:
        """Return an object; None if there is none."""
        try:
            return await self.api.get(resource, name, namespace)
        except ApiError as refusal:
            if refusal.code != NOT_FOUND:
                raise
            return None

    async def data_of(self, namespace: str, resource: str, name: str) -> dict[str, str] | None:
        """Return the data of a ConfigMap or Secret as texts; None if there is no such object."""
        found = await self.find(ApiResource("", "v1", resource), name, namespace)
        data = None if found is None else found.get("data") or {}
        if data is None or resource == "configmaps":
            return data
        return {key: base64.b64decode(value).decode(errors="replace") for key, value in data.items()}
