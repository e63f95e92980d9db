"""The status of a pod from the states of its containers, as a kubelet reports it (pure)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.objects import format_time


def now() -> str:
    """Return the time as the API writes it."""
    return format_time(objects.now())


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
        started = self.state.get("running", {}).get("startedAt", now())
        self.state = {
            "terminated": {
                "exitCode": exit_code,
                "reason": reason or ("Completed" if exit_code == 0 else "Error"),
                **({"message": message} if message else {}),
                "startedAt": started,
                "finishedAt": max(started, now()),
                "containerID": self.container_id,
            }
        }

    def restart(self) -> None:
        """Note that the container will be started once more."""
        self.last_state, self.restarts = self.state, self.restarts + 1

    def begin_again(self) -> None:
        """Note that the container, if it ever ran, has to run again because its machine was away."""
        if self.running or self.exit_code is not None:
            self.restart()
        self.wait("PodInitializing")

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


def fresh_record(container: Mapping[str, Any], waiting: str) -> ContainerRecord:
    """Return the record of a container that was never started."""
    record = ContainerRecord(name=container["name"], image=container.get("image", ""))
    record.wait(waiting)
    return record


def remembered_record(container: Mapping[str, Any], status: Mapping[str, Any]) -> ContainerRecord:
    """Return the record of a container that an earlier life of this kubelet reported."""
    return ContainerRecord(
        name=container["name"],
        image=container.get("image", ""),
        state=dict(status.get("state") or {}),
        last_state=dict(status.get("lastState") or {}),
        restarts=status.get("restartCount", 0),
        ready=bool(status.get("ready")),
        started=bool(status.get("started")),
        container_id=status.get("containerID", ""),
        image_id=status.get("imageID", ""),
    )


def image_id(image: str) -> str:
    """Return a digest for an image, always the same for the same name."""
    name = image.split("@", maxsplit=1)[0].rsplit(":", 1)[0]
    return f"{name}@sha256:{hashlib.sha256(image.encode()).hexdigest()}"


def qos_class(pod: Mapping[str, Any]) -> str:
    """Return Guaranteed, Burstable or BestEffort."""
    spec = pod["spec"]
    resources = [c.get("resources") or {} for c in (*spec["containers"], *(spec.get("initContainers") or ()))]
    asked = [
        {k: v for k, v in (r.get(part) or {}).items() if k in {"cpu", "memory"}}
        for r in resources
        for part in ("requests", "limits")
    ]
    if not any(asked):
        return "BestEffort"
    guaranteed = all(
        set(r.get("limits") or {}) >= {"cpu", "memory"} and (r.get("requests") or r["limits"]) == r["limits"]
        for r in resources
    )
    return "Guaranteed" if guaranteed else "Burstable"


def initialized(inits: Sequence[ContainerRecord]) -> bool:
    """Tell whether every init container has done its part."""
    return all(record.exit_code == 0 for record in inits)


def pod_phase(pod: Mapping[str, Any], inits: Sequence[ContainerRecord], mains: Sequence[ContainerRecord]) -> str:
    """Return the pod's phase."""
    policy = pod["spec"].get("restartPolicy", "Always")
    if policy == "Never" and any((r.exit_code or 0) != 0 for r in inits if not r.running):
        return "Failed"
    if not initialized(inits) and not any(r.running or r.exit_code is not None for r in mains):
        return "Pending"
    codes = [record.exit_code for record in mains]
    if all(code is not None for code in codes):
        return _ended(codes, policy)
    waits = any("waiting" in r.state and not r.last_state for r in mains)
    return "Pending" if waits else "Running"


def _ended(codes: Sequence[int | None], policy: str) -> str:
    failed = any(codes)
    if policy == "Always" or (policy == "OnFailure" and failed):
        return "Running"
    return "Failed" if failed else "Succeeded"


def _condition(kind: str, old: Mapping[str, Any], reason: str, message: str) -> Object:
    status = "False" if message or (reason and kind in {"Ready", "ContainersReady"}) else "True"
    since = old.get("lastTransitionTime") if old.get("status") == status else None
    return {
        "type": kind,
        "status": status,
        "lastProbeTime": None,
        "lastTransitionTime": since or now(),
        **({"reason": reason} if reason else {}),
        **({"message": message} if message else {}),
    }


def pod_conditions(
    pod: Mapping[str, Any], phase: str, inits: Sequence[ContainerRecord], mains: Sequence[ContainerRecord]
) -> list[Object]:
    """Return the pod's conditions; those that others own are kept."""
    old = {c["type"]: c for c in (pod.get("status") or {}).get("conditions") or ()}
    incomplete = [record.name for record in inits if record.exit_code != 0]
    unready = [r.name for r in mains if not r.ready]
    completed = "PodCompleted" if phase == "Succeeded" else ""
    init = ("ContainersNotInitialized", f"containers with incomplete status: [{' '.join(incomplete)}]")
    not_ready = ("ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]")
    ours = {
        "Initialized": (completed, "") if completed else init if incomplete else ("", ""),
        "Ready": (completed, "") if completed else not_ready if unready else ("", ""),
        "ContainersReady": (completed, "") if completed else not_ready if unready else ("", ""),
        "PodScheduled": ("", ""),
    }
    built = [_condition(kind, old.get(kind, {}), reason, text) for kind, (reason, text) in ours.items()]
    return built + [condition for kind, condition in old.items() if kind not in ours]


def pod_status(  # noqa: PLR0913 - a status is made of exactly these
    pod: Mapping[str, Any],
    inits: Sequence[ContainerRecord],
    mains: Sequence[ContainerRecord],
    *,
    host_ip: str,
    pod_ip: str,
    start_time: str,
) -> Object:
    """Return the whole status of a pod. An empty ``pod_ip`` means that the pod has no network yet."""
    phase = pod_phase(pod, inits, mains)
    status: Object = {
        "phase": phase,
        "conditions": pod_conditions(pod, phase, inits, mains),
        "hostIP": host_ip,
        "startTime": start_time,
        "qosClass": qos_class(pod),
        "containerStatuses": [record.to_status() for record in mains],
    }
    if pod_ip:
        status |= {"podIP": pod_ip, "podIPs": [{"ip": pod_ip}]}
    if inits:
        status["initContainerStatuses"] = [{**record.to_status(), "ready": record.exit_code == 0} for record in inits]
    return status


def rejected_status(reason: str, message: str) -> Object:
    """Return the status of a pod that a kubelet does not admit or gave up as a whole."""
    return {"phase": "Failed", "reason": reason, "message": message, "startTime": now()}
