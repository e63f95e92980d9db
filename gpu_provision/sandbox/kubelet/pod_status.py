"""The status of a pod from the states of its containers, as a kubelet computes and reports it."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gpu_provision.sandbox.api import CONFLICT, NOT_FOUND, PODS, ApiError, Object
from gpu_provision.sandbox.kubelet.machine import Machine
from gpu_provision.sandbox.kubelet.simulation import Simulation
from gpu_provision.sandbox.objects import format_time, timestamp

_log = logging.getLogger(__name__)
_OURS = {"Initialized", "Ready", "ContainersReady"}


@dataclass(slots=True, kw_only=True)
class ContainerRecord:
    """What a kubelet knows of one container. ``state`` is the API's union: waiting, running or terminated."""

    name: str
    image: str
    state: Object = field(default_factory=dict)
    last_state: Object = field(default_factory=dict)
    restarts: int = 0
    ready: bool = False
    started: bool = False
    container_id: str = ""
    image_id: str = ""

    def wait(self, reason: str, message: str = "") -> None:
        """Note that the container waits."""
        self.ready = self.started = False
        self.state = {"waiting": {"reason": reason, **({"message": message} if message else {})}}

    def run(self, container_id: str, runtime: str, since: datetime) -> None:
        """Note that the container runs."""
        self.container_id = f"{runtime}://{container_id}"
        self.state = {"running": {"startedAt": format_time(since)}}

    def end(self, exit_code: int, reason: str = "", message: str = "") -> None:
        """Note that the container ended."""
        self.ready = self.started = False
        started = self.state.get("running", {}).get("startedAt", timestamp())
        self.state = {
            "terminated": {
                "exitCode": exit_code,
                "reason": reason or ("Completed" if exit_code == 0 else "Error"),
                **({"message": message} if message else {}),
                "startedAt": started,
                "finishedAt": max(started, timestamp()),
                "containerID": self.container_id,
            }
        }

    def restart(self) -> None:
        """Note that the container will be started once more."""
        self.last_state, self.restarts = self.state, self.restarts + 1

    @property
    def running(self) -> bool:
        """Whether the container runs."""
        return "running" in self.state

    @property
    def exit_code(self) -> int | None:
        """The exit code; None unless the container ended."""
        return self.state["terminated"]["exitCode"] if "terminated" in self.state else None

    def to_status(self) -> Object:
        """Return the API's ContainerStatus."""
        return {
            "name": self.name,
            "image": self.image,
            "imageID": self.image_id,
            "containerID": self.container_id,
            "state": self.state or {"waiting": {"reason": "PodInitializing"}},
            "lastState": self.last_state,
            "ready": self.ready,
            "started": self.started,
            "restartCount": self.restarts,
        }


def load_record(container: Mapping[str, Any], status: Mapping[str, Any] | None, waiting: str) -> ContainerRecord:
    """Return the record that an earlier life of this kubelet reported, or that of a container never started."""
    record = ContainerRecord(name=container["name"], image=container.get("image", ""))
    if status is None:
        record.wait(waiting)
        return record
    record.state, record.last_state = dict(status.get("state") or {}), dict(status.get("lastState") or {})
    record.restarts = status.get("restartCount", 0)
    record.ready, record.started = bool(status.get("ready")), bool(status.get("started"))
    record.container_id, record.image_id = status.get("containerID", ""), status.get("imageID", "")
    return record


def image_id(image: str) -> str:
    """Return a digest for an image, always the same for the same name."""
    name = image.split("@", maxsplit=1)[0].rsplit(":", 1)[0]
    return f"{name}@sha256:{hashlib.sha256(image.encode()).hexdigest()}"


def qos_class(pod: Mapping[str, Any]) -> str:
    """Return Guaranteed, Burstable or BestEffort."""
    spec = pod["spec"]
    resources = [c.get("resources") or {} for c in (*spec["containers"], *(spec.get("initContainers") or ()))]
    asked = [r.get(part) or {} for r in resources for part in ("requests", "limits")]
    if not any({"cpu", "memory"} & set(amounts) for amounts in asked):
        return "BestEffort"
    guaranteed = all(
        set(r.get("limits") or {}) >= {"cpu", "memory"} and (r.get("requests") or r["limits"]) == r["limits"]
        for r in resources
    )
    return "Guaranteed" if guaranteed else "Burstable"


def restarts(policy: str, exit_code: int) -> bool:
    """Tell whether a container that ended is started again."""
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def pod_phase(pod: Mapping[str, Any], inits: Sequence[ContainerRecord], mains: Sequence[ContainerRecord]) -> str:
    """Return the pod's phase."""
    policy = pod["spec"].get("restartPolicy", "Always")
    if policy == "Never" and any(record.exit_code for record in inits):
        return "Failed"
    has_begun = any(record.running or record.exit_code is not None for record in mains)
    if not has_begun and any(record.exit_code != 0 for record in inits):
        return "Pending"
    codes = [record.exit_code for record in mains]
    if any(code is None for code in codes):
        waits = any("waiting" in record.state and not record.last_state for record in mains)
        return "Pending" if waits else "Running"
    failed = any(codes)
    return "Running" if restarts(policy, int(failed)) else "Failed" if failed else "Succeeded"


def pod_conditions(
    pod: Mapping[str, Any], phase: str, inits: Sequence[ContainerRecord], mains: Sequence[ContainerRecord]
) -> list[Object]:
    """Return the pod's conditions; those that others own are kept."""
    old = {c["type"]: c for c in (pod.get("status") or {}).get("conditions") or ()}
    incomplete = [record.name for record in inits if record.exit_code != 0]
    unready = [r.name for r in mains if not r.ready]
    init, ready = ("True", "", ""), ("True", "", "")
    if phase == "Succeeded":
        init, ready = ("True", "PodCompleted", ""), ("False", "PodCompleted", "")
    else:
        if incomplete:
            told = f"containers with incomplete status: [{' '.join(incomplete)}]"
            init = ("False", "ContainersNotInitialized", told)
        if unready:
            told = f"containers with unready status: [{' '.join(unready)}]"
            ready = ("False", "ContainersNotReady", told)
    ours = {"Initialized": init, "Ready": ready, "ContainersReady": ready, "PodScheduled": ("True", "", "")}
    built: list[Object] = []
    for kind, (status, reason, message) in ours.items():
        known = old.get(kind, {})
        since = known.get("lastTransitionTime") if known.get("status") == status else None
        condition = {"type": kind, "status": status, "lastProbeTime": None, "lastTransitionTime": since or timestamp()}
        text = {"reason": reason, "message": message}
        built.append(condition | {key: value for key, value in text.items() if value})
    return built + [condition for kind, condition in old.items() if kind not in ours]


class PodContext:
    """A pod on its machine, as all that runs it knows it.

    Attributes:
        pod: The object as it is now.
        adopted: Whether its containers ran before this process did.
        pod_ip: Its address; empty before its network is there.
        inits: What is known of its init containers, ``mains`` of the others.
    """

    def __init__(self, simulation: Simulation, machine: Machine, pod: Object) -> None:
        """Take over a pod that is bound to the machine, with the containers that its status tells of."""
        self.simulation, self.machine, self.pod = simulation, machine, pod
        self.uid = str(pod["metadata"]["uid"])
        self.name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        spec, status = pod["spec"], pod.get("status") or {}
        self.adopted = bool(status.get("containerStatuses")) and machine.known
        self.pod_ip = str(status.get("podIP", ""))
        self.start_time = str(status.get("startTime", ""))
        waiting = "PodInitializing" if spec.get("initContainers") else "ContainerCreating"
        self.inits, self.mains = (
            [load_record(container, known.get(container["name"]), waiting) for container in containers]
            for containers, known in (
                (spec.get("initContainers") or (), _by_name(status.get("initContainerStatuses"))),
                (spec["containers"], _by_name(status.get("containerStatuses"))),
            )
        )

    def event(self, reason: str, message: str, field: str = "", *, warning: bool = False) -> None:
        """Record an event of the pod."""
        self.simulation.event(self.pod, reason, message, field, warning=warning)


def _by_name(statuses: Sequence[Object] | None) -> dict[str, Object]:
    return {status["name"]: status for status in statuses or ()}


def pod_status(context: PodContext, pod: Object) -> Object:
    """Return the whole status of a pod, whose conditions are at present those of ``pod``."""
    inits, mains = context.inits, context.mains
    phase = pod_phase(pod, inits, mains)
    status: Object = {
        "phase": phase,
        "conditions": pod_conditions(pod, phase, inits, mains),
        "hostIP": context.simulation.kubelet_address or context.machine.address,
        "startTime": context.start_time,
        "qosClass": qos_class(pod),
        "containerStatuses": [record.to_status() for record in mains],
    }
    if context.pod_ip:
        status |= {"podIP": context.pod_ip, "podIPs": [{"ip": context.pod_ip}]}
    if inits:
        status["initContainerStatuses"] = [{**record.to_status(), "ready": record.exit_code == 0} for record in inits]
    return status


class StatusManager:
    """Writes one pod's status; ``task`` is the write in progress."""

    def __init__(self, context: PodContext) -> None:
        """Nothing is written before the first change."""
        self._context = context
        self._write_pending = self._gone = False
        self._written: Object = {}
        self.task: asyncio.Task[None] | None = None
        self._given_up: Object = {}
        self._version = 0

    def schedule_write(self) -> None:
        """Note that the status is another now."""
        self._write_pending = True
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(self._write_all())

    def observe(self, pod: Object) -> None:
        """Correct a pod whose conditions another client changed, as happens to pods of a node that was late."""
        if not self._written or int(pod["metadata"].get("resourceVersion", 0)) <= self._version:
            return
        live = pod.get("status") or {}
        told, ours = (
            {c["type"]: c["status"] for c in status.get("conditions") or () if c["type"] in _OURS}
            for status in (live, self._written)
        )
        if told != ours:
            self._written = {**self._written, "conditions": live.get("conditions") or []}
            self.schedule_write()

    def fail_pod(self, reason: str, message: str) -> None:
        """Report from now on that the pod failed as a whole."""
        self._given_up = {"phase": "Failed", "reason": reason, "message": message}
        self.schedule_write()

    async def reject(self, reason: str, message: str) -> None:
        """Report that the kubelet does not take the pod."""
        await self._write({"phase": "Failed", "reason": reason, "message": message, "startTime": timestamp()})

    async def flush(self) -> None:
        """Return once everything is written."""
        self.schedule_write()
        if self.task is not None:
            await self.task

    async def _write_all(self) -> None:
        context = self._context
        while self._write_pending and not self._gone:
            self._write_pending = False
            context.start_time = context.start_time or timestamp()
            written = {**context.pod, "status": self._written} if self._written else context.pod
            status = pod_status(context, written) | self._given_up
            if status != self._written:
                await self._write(status)

    async def _write(self, status: Object) -> None:
        metadata, api = self._context.pod["metadata"], self._context.simulation.api
        body = {"metadata": {"uid": metadata["uid"]}, "status": status}
        try:
            made = await api.patch(PODS, metadata["name"], body, metadata["namespace"], "status")
            self._version = int(made["metadata"].get("resourceVersion", 0))
            self._written = status
        except ApiError as error:
            self._gone = error.code in {NOT_FOUND, CONFLICT}
            if not self._gone:
                _log.warning("status of pod %s: %s", self._context.name, error)
