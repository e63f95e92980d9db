"""When a container counts as started and ready."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Any

from gpu_provision.sandbox.nodes.container import Container
from gpu_provision.sandbox.nodes.status import ContainerRecord
from gpu_provision.sandbox.nodes.world import World

_MARKER = ".driver-ctr-ready"
_VALIDATIONS = "/run/nvidia/validations"
_SCRIPT = re.compile(r"/[\w./-]+\.sh\b")


class Probes:
    """The startup and readiness probes of one container; liveness probes always pass."""

    def __init__(
        self, container: Container, record: ContainerRecord, world: World, changed: Callable[[], None]
    ) -> None:
        """Prepare for one life of the container."""
        self._container, self._record, self._world, self._changed = container, record, world, changed
        self._startup: Mapping[str, Any] | None = container.spec.get("startupProbe")
        self._readiness: Mapping[str, Any] | None = container.spec.get("readinessProbe")
        self._task: asyncio.Task[None] | None = None

    def started(self) -> None:
        """Note that the process runs: without probes that is all there is to it."""
        if self._container.adopted:
            return
        self._set(started=self._startup is None, ready=self._startup is None and self._readiness is None)

    def passed(self) -> None:
        """Note that the process serves."""
        if self._startup is None and self._readiness is None:
            self._set(started=True, ready=True)
            return
        problem = self._problem()
        if problem:
            self._world.events.warning(self._container.pod, "Unhealthy", f"Startup probe failed: {problem}")
            return
        self._mark()
        self._task = asyncio.create_task(self._pass())

    async def _pass(self) -> None:
        probes = [probe for probe in (self._startup, self._readiness) if probe]
        delay = sum(probe.get("initialDelaySeconds", 0) for probe in probes) * self._world.timings.probe
        await self._world.sleep(delay)
        if self._record.running:
            self._set(started=True, ready=True)

    def _set(self, *, started: bool, ready: bool) -> None:
        self._record.started, self._record.ready = started, ready
        self._container.machine.wake()
        self._changed()

    def _script(self) -> str:
        command = ((self._startup or {}).get("exec") or {}).get("command") or ()
        found = _SCRIPT.search(" ".join(command))
        return found[0] if found else ""

    def _problem(self) -> str:
        """Return why the startup probe cannot even run; empty if it can."""
        script = self._script()
        if not script or self._container.files.exists(script):
            return ""
        return f"sh: 0: cannot open {script}: No such file"

    def _mark(self) -> None:
        """Leave the file that the startup probe's script leaves."""
        script = self._script()
        if script and _MARKER in self._container.files.read(script):
            lines = ("GDRCOPY_ENABLED=false", "GDS_ENABLED=false", "GPU_DIRECT_RDMA_ENABLED=false")
            self._container.files.write(f"{_VALIDATIONS}/{_MARKER}", "\n".join(lines) + "\n")
