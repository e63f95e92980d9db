"""What the simulated machines of a cluster share: its API, its events, and how long things take."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpu_provision.sandbox.api import Api, ApiResource
from gpu_provision.sandbox.events import EventRecorder
from gpu_provision.sandbox.fleet import Timings
from gpu_provision.sandbox.informer import Informer
from gpu_provision.sandbox.kubelet.logs import LogSink
from gpu_provision.sandbox.kubelet.machine import Machine

MAX_BACK_OFF = 30
"""Times the first pause; the kubelet's 10 s grow to 300 s."""


@dataclass(slots=True, kw_only=True)
class Simulation:
    """The cluster, the machines, and how long things take.

    Attributes:
        pods: Every pod of the cluster, with an index ``node``.
        all_events: Whether kubelets record normal events, too; warnings they always do.
        kubelet_address: Where a real API server finds the kubelet endpoint; empty on the embedded one.
    """

    api: Api
    timings: Timings
    write_log: LogSink
    recorder: EventRecorder
    all_events: bool
    machines: Mapping[str, Machine]
    pods: Informer
    kubelet_address: str = ""
    kubelet_port: int = 10250

    def event(
        self, involved: Mapping[str, Any], reason: str, message: str, field: str = "", *, warning: bool = False
    ) -> None:
        """Record an event of a kubelet about a pod, or about the ConfigMap of the faults."""
        if not warning and not self.all_events:
            return
        spec, metadata = involved.get("spec", {}), involved["metadata"]
        reference = {
            "apiVersion": "v1",
            "kind": "Pod" if spec else "ConfigMap",
            "name": metadata["name"],
            "uid": metadata.get("uid", ""),
            "namespace": metadata["namespace"],
            **({"fieldPath": field} if field else {}),
        }
        host = str(spec.get("nodeName") or metadata["name"])
        self.recorder.record(reference, reason, message, component="kubelet", host=host, warning=warning)

    async def sleep(self, seconds: float) -> None:
        """Let time pass as the fleet lives it."""
        await asyncio.sleep(self.timings.scale(seconds))

    async def pause(self) -> None:
        """Wait as long as a waiter waits before it looks again."""
        await self.sleep(self.timings.retry)

    async def back_off(self, tries: int, machine: Machine, until: Callable[[], bool] = lambda: False) -> None:
        """Wait longer with every try, but no longer than until something holds on the machine."""
        seconds = self.timings.retry * min(2**tries, MAX_BACK_OFF)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.timings.scale(seconds)):
                await machine.wait_until(until)

    async def data_of(self, namespace: str, resource: str, name: str) -> dict[str, str] | None:
        """Return the data of a ConfigMap or Secret as texts; None if there is no such object."""
        found = await self.api.find(ApiResource("", "v1", resource), name, namespace)
        data = None if found is None else found.get("data") or {}
        if data is None or resource == "configmaps":
            return data
        return {key: base64.b64decode(value).decode(errors="replace") for key, value in data.items()}
