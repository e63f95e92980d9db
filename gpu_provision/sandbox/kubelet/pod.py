"""The life of one pod on its machine, from admission to its end, and the writes of its status."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from gpu_provision.sandbox.api import CONFLICT, NOT_FOUND, PODS, ApiError, Object
from gpu_provision.sandbox.kubelet.machine import Machine
from gpu_provision.sandbox.kubelet.pod_sandbox import MountError, check_admission, read_volumes, start_sandbox
from gpu_provision.sandbox.kubelet.pod_status import (
    ContainerRecord,
    fresh_record,
    now,
    pod_phase,
    pod_status,
    rejected_status,
    remembered_record,
)
from gpu_provision.sandbox.kubelet.runner import PodContext, Puller, Runner
from gpu_provision.sandbox.kubelet.simulation import Simulation

_log = logging.getLogger(__name__)
_QUICK_TRIES = 2  # a ConfigMap or a directory that a pod waits for is seldom far behind
_LOST = 255  # what a kubelet reports for a container that vanished
_ENDED = {"Succeeded", "Failed"}


class PodWorker(PodContext):
    """Runs one pod: one task for its life, one for its end."""

    def __init__(self, simulation: Simulation, machine: Machine, pod: Object, puller: Puller) -> None:
        """Take over a pod that is bound to the machine."""
        super().__init__(simulation, machine, pod)
        self._records_from_status()
        self._reporter = StatusManager(self)
        self._runner = Runner(self, puller, self._reporter.changed)
        self._life: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self.pod_ip = str((pod.get("status") or {}).get("podIP", ""))
        self.start_time = str((pod.get("status") or {}).get("startTime", ""))

    def _records_from_status(self) -> None:
        status = self.pod.get("status") or {}
        self.adopted = bool(status.get("containerStatuses")) and self.machine.known
        spec = self.pod["spec"]
        first = "PodInitializing" if spec.get("initContainers") else "ContainerCreating"
        self.inits = _load_records(spec.get("initContainers") or (), status.get("initContainerStatuses") or (), first)
        self.mains = _load_records(spec["containers"], status.get("containerStatuses") or (), first)

    @property
    def name(self) -> str:
        """Namespace and name, for messages."""
        return f"{self.pod['metadata']['namespace']}/{self.pod['metadata']['name']}"

    def start(self) -> None:
        """Begin, unless the pod has already ended."""
        status = self.pod.get("status") or {}
        if status.get("phase") in _ENDED or self._life is not None:
            return
        if status.get("containerStatuses") and not self.adopted:
            self._lose_containers()  # they ran on a machine that has forgotten everything, such as its driver
            self._life = asyncio.create_task(self._live_after_reboot())
        else:
            self._life = asyncio.create_task(self._live())

    def update(self, pod: Object) -> None:
        """Take in the pod as it is now."""
        self.pod = pod
        self._reporter.observe(pod)
        if pod["metadata"].get("deletionTimestamp") and self._ending is None:
            self._ending = asyncio.create_task(self._end())

    def kill(self) -> None:
        """Stop at once: the pod is gone from the cluster."""
        self._cancel_life()
        self._tell_killing()
        self._runner.stop_all()
        self.machine.release(self.uid)

    def abandon(self) -> None:
        """Stop simulating, as if nothing had happened to the pod: the sandbox ends, the machine does not."""
        for task in (self._life, self._ending, self._reporter.task):
            if task is not None:
                task.cancel()

    def strike(self) -> None:
        """Let a fault crash the containers it is meant for."""
        self._runner.strike()

    def reboot(self) -> None:
        """Lose every container; the pod starts again once the machine is back."""
        if self._life is None or self._life.done() or self._ending is not None:
            return
        self._cancel_life()
        self._runner.forget_all()
        self._lose_containers()
        self._life = asyncio.create_task(self._live_after_reboot())

    def _lose_containers(self) -> None:
        for record in (*self.inits, *self.mains):
            if record.running:
                record.end(_LOST, "Unknown")
        self.pod_ip, self.adopted = "", False

    def _cancel_life(self) -> None:
        if self._life is not None:
            self._life.cancel()

    async def _live_after_reboot(self) -> None:
        await self.machine.until(lambda: not self.machine.rebooting)
        if self.pod["spec"].get("restartPolicy", "Always") == "Never" and any(r.exit_code for r in self.mains):
            self._reporter.changed()
            return
        for record in (*self.inits, *self.mains):
            record.begin_again()
        await self._live()

    async def _live(self) -> None:
        try:
            deadline = self.pod["spec"].get("activeDeadlineSeconds")
            async with asyncio.timeout(self.simulation.timings.scaled(deadline) if deadline else None):
                await self._run()
        except TimeoutError:
            self._give_up("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
        except ApiError as error:
            _log.warning("pod %s: %s", self.name, error)
        except Exception:  # noqa: BLE001 - a fault of one simulated pod must not end all machines
            _log.exception("pod %s: the simulation failed", self.name)

    async def _run(self) -> None:
        problem = "" if self.adopted else check_admission(self.pod, self.machine, self.simulation.pods)
        if problem:
            reason, _, message = problem.partition(": ")
            self.warn(reason, message)
            await self._reporter.replace(rejected_status(reason, message))
            return
        contents = await self._mounted()
        self.pod_ip = self.pod_ip or await start_sandbox(self.pod, self.machine, self.simulation)
        self._runner.prepare(contents)
        if await self._initialize():
            await self._run_mains()
        self._reporter.changed()
        self.machine.release(self.uid)

    async def _mounted(self) -> dict[str, dict[str, str]]:
        self._reporter.changed()
        tries = 0
        while True:
            try:
                return await read_volumes(self.pod, self.machine, self.simulation)
            except MountError as problem:
                self.warn("FailedMount", str(problem))
                await self.simulation.back_off(min(tries, _QUICK_TRIES), self.machine)
                tries += 1

    async def _initialize(self) -> bool:
        """Run the init containers one after the other; False if the pod failed on the way."""
        specs = self.pod["spec"].get("initContainers") or ()
        for spec, record in zip(specs, self.inits, strict=True):
            if record.exit_code != 0 and await self._runner.run_to_end(spec, record, init=True) != 0:
                return False
        return True

    async def _run_mains(self) -> None:
        specs = self.pod["spec"]["containers"]
        async with asyncio.TaskGroup() as group:
            for spec, record in zip(specs, self.mains, strict=True):
                if not self._finished(record):
                    group.create_task(self._runner.run_to_end(spec, record, init=False))

    def _finished(self, record: ContainerRecord) -> bool:
        policy = self.pod["spec"].get("restartPolicy", "Always")
        return record.exit_code is not None and not self._runner.restarts(policy, record.exit_code)

    def _give_up(self, reason: str, message: str) -> None:
        self._runner.stop_all()
        for record in (*self.inits, *self.mains):
            if record.running:
                record.end(137, "Error")
        self.machine.release(self.uid)
        self._reporter.give_up(reason, message)

    async def _end(self) -> None:
        """Stop the containers as their hooks say, then let go of the pod."""
        self._cancel_life()
        grace = self.pod["metadata"].get("deletionGracePeriodSeconds", 30)
        self._tell_killing()
        await self.simulation.sleep(min(grace, self.simulation.timings.termination))
        codes = self._runner.stop_all()
        for record in (*self.inits, *self.mains):
            if record.running:
                record.end(codes.get(record.name, 143))
        self.machine.release(self.uid)
        await self._reporter.settle()
        await self._delete()

    def _tell_killing(self) -> None:
        for record in (*self.inits, *self.mains):
            if record.running:
                self.note("Killing", f"Stopping container {record.name}")

    async def _delete(self) -> None:
        metadata = self.pod["metadata"]

        try:
            await self.simulation.api.delete(PODS, metadata["name"], metadata["namespace"], grace_seconds=0)
        except ApiError as error:
            if error.code not in {NOT_FOUND, CONFLICT}:
                _log.warning("pod %s: %s", self.name, error)

    @property
    def phase(self) -> str:
        """The phase that the containers amount to."""
        return pod_phase(self.pod, self.inits, self.mains)


def _load_records(specs: Any, statuses: Any, waiting: str) -> list[ContainerRecord]:
    known: Mapping[str, Any] = {status["name"]: status for status in statuses}
    return [
        remembered_record(spec, known[spec["name"]]) if spec["name"] in known else fresh_record(spec, waiting)
        for spec in specs
    ]


_OURS = {"Initialized", "Ready", "ContainersReady"}


class StatusManager:
    """Writes one pod's status; ``task`` is the write in progress."""

    def __init__(self, worker: PodWorker) -> None:
        """Nothing is written before the first change."""
        self._worker = worker
        self._wanted = self._gone = False
        self._written: Object = {}
        self.task: asyncio.Task[None] | None = None
        self._given_up: Object = {}
        self._version = 0

    def changed(self) -> None:
        """Note that the status is another now."""
        self._wanted = True
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(self._write_all())

    def observe(self, pod: Object) -> None:
        """Correct a pod whose conditions another client changed, as happens to pods of a node that was late."""
        if not self._written or int(pod["metadata"].get("resourceVersion", 0)) <= self._version:
            return
        if _own_conditions(pod.get("status") or {}) != _own_conditions(self._written):
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
        if self.task is not None:
            await self.task

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
            host_ip=worker.simulation.kubelet_address or worker.machine.address,
            pod_ip=worker.pod_ip,
            start_time=worker.start_time,
        )
        return status | self._given_up

    async def _write(self, status: Object) -> None:
        metadata = self._worker.pod["metadata"]
        body = {"metadata": {"uid": metadata["uid"]}, "status": status}
        api = self._worker.simulation.api

        try:
            made = await api.patch(PODS, metadata["name"], body, metadata["namespace"], "status")
            self._version = int(made["metadata"].get("resourceVersion", 0))
            self._written = status
        except ApiError as error:
            self._gone = error.code in {NOT_FOUND, CONFLICT}
            if not self._gone:
                _log.warning("status of pod %s: %s", self._worker.name, error)


def _own_conditions(status: Object) -> dict[str, str]:
    """Return the conditions that a kubelet answers for."""
    return {c["type"]: c["status"] for c in status.get("conditions") or () if c["type"] in _OURS}
