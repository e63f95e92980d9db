"""Maintenance of nodes for the worker process, which has no Kubernetes client: it asks its parent process."""

from __future__ import annotations

import itertools
from multiprocessing.connection import Connection
from typing import Any

from gevent.event import AsyncResult
from gevent.socket import wait_read

from gpu_provision.hosts.maintenance import DrainPreview, HostMembership, OnProgress
from gpu_provision.hosts.messages import Question, WorkerReply
from gpu_provision.model.codes import ENDED_EARLY
from gpu_provision.model.findings import Finding, RunFailed
from gpu_provision.model.hosts import Drain


class RemoteMaintenance:
    """`gpu_provision.hosts.maintenance.Maintenance` by the parent process, which reports progress by itself."""

    def __init__(self, connection: Connection) -> None:
        """Ask at this connection."""
        self._connection = connection
        self._numbers = itertools.count()
        self._open: dict[int, AsyncResult[WorkerReply]] = {}

    def receive_replies(self) -> None:
        """Take replies until the parent is gone; all open questions fail then."""
        try:
            while True:
                wait_read(self._connection.fileno())  # recv() alone would stop all greenlets
                reply = self._connection.recv()
                self._open.pop(reply.number).set(reply)
        except (EOFError, OSError):
            for answer in self._open.values():
                answer.set_exception(EOFError())

    def membership(self, node: str) -> HostMembership:
        """Ask what a machine is to the cluster."""
        found: HostMembership = self._ask("membership", node)
        return found

    def preview_drain(self, node: str, drain: Drain) -> DrainPreview:
        """Ask what a drain would do."""
        preview: DrainPreview = self._ask("preview_drain", node, drain)
        return preview

    def cordon_and_drain(self, node: str, drain: Drain, on_progress: OnProgress) -> tuple[str, ...]:  # noqa: ARG002
        """Have a node cordoned and drained."""
        pods: tuple[str, ...] = self._ask("cordon_and_drain", node, drain, reports_progress=True)
        return pods

    def wait_and_uncordon(self, node: str, boot_id: str, seconds: int, on_progress: OnProgress) -> None:  # noqa: ARG002
        """Have a node awaited and uncordoned."""
        self._ask("wait_and_uncordon", node, boot_id, seconds, reports_progress=True)

    def _ask(self, method: str, node: str, *arguments: Any, reports_progress: bool = False) -> Any:
        number = next(self._numbers)
        answer = self._open[number] = AsyncResult()
        try:
            self._connection.send(Question(number, method, node, arguments, reports_progress))
            reply = answer.get()
        except (EOFError, OSError) as error:
            gone = "the process that started the host phase has ended"
            raise RunFailed(Finding(code=ENDED_EARLY, what=gone)) from error
        if reply.errors:
            raise RunFailed(*reply.errors)
        return reply.value
