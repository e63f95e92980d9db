"""Tells the cluster how a pod is: changes that come close together become one write."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from gpu_provision.sandbox.api import ApiError
from gpu_provision.sandbox.nodes.status import now, pod_status
from gpu_provision.sandbox.nodes.world import CONFLICT, NOT_FOUND, PODS

if TYPE_CHECKING:
    from gpu_provision.sandbox.nodes.pod import PodWorker

_log = logging.getLogger(__name__)
_OURS = {"Initialized", "Ready", "ContainersReady"}
Object = dict[str, Any]


class Reporter:
    """Writes one pod's status."""

    def __init__(self, worker: PodWorker) -> None:
        """Nothing is written before the first change."""
        self._worker = worker
        self._wanted = self._gone = False
        self._written: Object = {}
        self._task: asyncio.Task[None] | None = None
        self._given_up: Object = {}
        self._version = 0

    def changed(self) -> None:
        """Note that the status is another now."""
        self._wanted = True
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._write_all())

    def observe(self, pod: Object) -> None:
        """Correct a pod whose conditions somebody else changed, as happens to pods of a node that was late."""
        if not self._written or int(pod["metadata"].get("resourceVersion", 0)) <= self._version:
            return
        if _shown(pod.get("status") or {}) != _shown(self._written):
            self._written = {**self._written, "conditions": (pod.get("status") or {}).get("conditions") or []}
            self.changed()

    def give_up(self, reason: str, message: str) -> None:
        """Report from now on that the pod failed as a whole."""
        self._given_up = {"phase": "Failed", "reason": reason, "message": message}
        self.changed()

    async def replace(self, status: Object) -> None:
        """Write a status that is not made of the containers' states."""
        await self._write(status)

    async def settle(self) -> None:
        """Return once everything is written."""
        self.changed()
        if self._task is not None:
            await self._task

    def tasks(self) -> tuple[asyncio.Task[None] | None]:
        """Return the write in progress."""
        return (self._task,)

    async def _write_all(self) -> None:
        while self._wanted and not self._gone:
            self._wanted = False
            status = self._status()
            if status != self._written:
                await self._write(status)

    def _status(self) -> Object:
        worker = self._worker
        worker.start_time = worker.start_time or now()
        written = {**worker.pod, "status": self._written} if self._written else worker.pod
        status = pod_status(
            written,
            worker.inits,
            worker.mains,
            host_ip=worker.world.kubelet_address or worker.machine.address,
            pod_ip=worker.pod_ip,
            start_time=worker.start_time,
        )
        return status | self._given_up

    async def _write(self, status: Object) -> None:
        metadata = self._worker.pod["metadata"]
        body = {"metadata": {"uid": metadata["uid"]}, "status": status}
        api = self._worker.world.api

        try:
            made = await api.patch(PODS, metadata["name"], body, metadata["namespace"], "status")
            self._version = int(made["metadata"].get("resourceVersion", 0))
            self._written = status
        except ApiError as error:
            self._gone = error.code in {NOT_FOUND, CONFLICT}
            if not self._gone:
                _log.warning("status of pod %s: %s", self._worker.name, error)


def _shown(status: Object) -> dict[str, str]:
    """Return the conditions that a kubelet answers for."""
    return {c["type"]: c["status"] for c in status.get("conditions") or () if c["type"] in _OURS}
