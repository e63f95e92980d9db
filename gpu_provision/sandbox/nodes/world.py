"""What the simulated machines of one cluster share."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpu_provision.sandbox.api import Api, ApiError, Resource
from gpu_provision.sandbox.fleet import Timings
from gpu_provision.sandbox.informer import Informer
from gpu_provision.sandbox.nodes.environment import decoded
from gpu_provision.sandbox.nodes.events import EventRecorder
from gpu_provision.sandbox.nodes.feature_board import FeatureBoard
from gpu_provision.sandbox.nodes.kubelet_server import LogSink
from gpu_provision.sandbox.nodes.machine import Machine

PODS = Resource("", "v1", "pods")
NODES = Resource("", "v1", "nodes")
CONFIG_MAPS = Resource("", "v1", "configmaps")
DAEMON_SETS = Resource("apps", "v1", "daemonsets")
LEASES = Resource("coordination.k8s.io", "v1", "leases")
RUNTIME_CLASSES = Resource("node.k8s.io", "v1", "runtimeclasses")
NODE_FEATURES = Resource("nfd.k8s-sigs.io", "v1alpha1", "nodefeatures")

NOT_FOUND, CONFLICT = 404, 409
LONGEST_BACK_OFF = 30
Object = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class World:
    """The cluster, the machines, and how long things take.

    Attributes:
        api: Does not give up while the server is away.
        pods: Every pod of the cluster, with an index ``node``.
        features: Takes the place of NodeFeature objects where the API server cannot store them.
        kubelet_address: Where a real API server finds the kubelet endpoint; empty on the embedded one.
    """

    api: Api
    timings: Timings
    logs: LogSink
    events: EventRecorder
    machines: Mapping[str, Machine]
    pods: Informer
    kubelet_address: str = ""
    kubelet_port: int = 10250
    features: FeatureBoard | None = None

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

    async def data_of(self, namespace: str, resource: str, name: str) -> dict[str, str] | None:
        """Return the data of a ConfigMap or Secret as texts; None if there is no such object."""
        try:
            return decoded(resource, await self.api.get(Resource("", "v1", resource), name, namespace))
        except ApiError as refusal:
            if refusal.code != NOT_FOUND:
                raise
            return None
