"""Why a pod is not ready: one short cause from the Pod object and its events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from gpu_provision.model.cluster import Manifest

_HARMLESS = frozenset({"PodInitializing", "ContainerCreating"})
_SIGNALLED = 128  # exit codes from 128 on: a signal ended the container, such as at a reboot, or it never ran
_OUT_OF_MEMORY = "OOMKilled"
_ENDED = frozenset({"Failed", "Succeeded"})


class Crash(NamedTuple):
    """How a container that keeps its pod from being ready ended by itself."""

    container: str
    restarts: int  # how often the container has been started again
    end: str  # ``exit 1`` or ``OOMKilled``
    has_restarted: bool  # whether the container has restarted since, so that the reason is in its previous log

    def __str__(self) -> str:
        """Return ``nvidia-driver-ctr: exit 1``."""
        return f"{self.container}: {self.end}"


def is_ready(pod: Manifest) -> bool:
    """Whether the Ready condition is true and the pod is not being deleted."""
    if pod["metadata"].get("deletionTimestamp"):
        return False
    return any(
        condition["type"] == "Ready" and condition["status"] == "True"
        for condition in pod.get("status", {}).get("conditions", ())
    )


def phase(pod: Manifest) -> str:
    """Return the pod's phase; an empty string if none is set."""
    return str(pod.get("status", {}).get("phase", ""))


def was_rejected(pod: Manifest) -> bool:
    """Whether the node rejected or ended the pod, so that its failure is no result.

    A container that the runtime had no time to start counts, too; one that it could not start does not.
    Source: the kubelet's pod status reasons, such as Evicted, UnexpectedAdmissionError, NodeShutdown, and
    kuberuntime's StartError with the message of containerd 1.6 on an overloaded node.
    """
    ends = (container.get("state", {}).get("terminated", {}) for container in _statuses(pod))
    was_too_slow = any(
        end.get("reason") == "StartError" and "context deadline exceeded" in end.get("message", "") for end in ends
    )
    is_own_failure = pod.get("status", {}).get("reason", "") in {"", "DeadlineExceeded"}
    return phase(pod) == "Failed" and (was_too_slow or not is_own_failure)


def node_of(pod: Manifest) -> str:
    """Return the node that the pod runs on or that its node affinity names; else an empty string."""
    return str(pod.get("spec", {}).get("nodeName") or _pinned_node(pod))


def is_of_deployment(pod: Manifest) -> bool:
    """Whether a ReplicaSet, and so a Deployment, created the pod."""
    return any(owner["kind"] == "ReplicaSet" for owner in pod["metadata"].get("ownerReferences", ()))


def has_started(pod: Manifest) -> bool:
    """Whether any of the pod's containers has run."""
    states = (status.get(key, {}) for status in _statuses(pod) for key in ("state", "lastState"))
    return any("running" in state or "terminated" in state for state in states)


def cause(pod: Manifest) -> str:
    """Return in a few words why the pod is not ready, such as ``ImagePullBackOff: <message>``."""
    if pod["metadata"].get("deletionTimestamp"):
        return "Terminating"
    return next(_causes(pod), "") or phase(pod) or "Pending"


def failing_container(pod: Manifest) -> tuple[str, bool]:
    """Return the name of the container that keeps the pod from being ready, and whether its previous run shows why.

    A restarted container may not have reached its error yet.
    """
    for status in _statuses(pod):
        state, before = status.get("state", {}), status.get("lastState", {}).get("terminated", {})
        if not status.get("ready") and state.get("terminated", {}).get("exitCode") != 0:
            return str(status["name"]), bool(before.get("exitCode")) and "terminated" not in state
    return "", False


def crash(pod: Manifest) -> Crash | None:
    """Return how the first container that is not ready ended; None if it runs, or a signal ended it."""
    if is_ready(pod) or pod["metadata"].get("deletionTimestamp") or phase(pod) in _ENDED:
        return None
    for status in _statuses(pod):
        now = status.get("state", {}).get("terminated", {})
        last = now or status.get("lastState", {}).get("terminated", {})
        is_out_of_memory = last.get("reason") == _OUT_OF_MEMORY
        if not status.get("ready") and (0 < last.get("exitCode", 0) < _SIGNALLED or is_out_of_memory):
            end = _OUT_OF_MEMORY if is_out_of_memory else f"exit {last['exitCode']}"
            return Crash(str(status["name"]), int(status.get("restartCount", 0)), end, not now)
    return None


def _causes(pod: Manifest) -> Iterator[str]:
    status = pod.get("status", {})
    if status.get("reason"):
        yield _join(status["reason"], status.get("message", ""))
    for condition in status.get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            yield _join(condition.get("reason", "Unschedulable"), condition.get("message", ""))
    for container in _statuses(pod):
        yield from _container_cause(container)
    for container in status.get("containerStatuses", ()):
        if "running" in container.get("state", {}) and not container.get("ready"):
            yield f"{container['name']} runs, but is not ready yet"


def _container_cause(container: dict[str, Any]) -> Iterator[str]:
    state, name = container.get("state", {}), container["name"]
    waiting = state.get("waiting", {})
    if waiting.get("reason") and waiting["reason"] not in _HARMLESS:
        last = container.get("lastState", {}).get("terminated", {})
        before = f", last exit {last['exitCode']}{_message(last)}" if last else ""
        yield f"{name}: {_join(waiting['reason'], waiting.get('message', ''))}{before}"
    ended = state.get("terminated", {})
    if ended and ended.get("exitCode") != 0:
        yield f"{name}: exit {ended.get('exitCode')}{_message(ended)}"
    if "running" in state and container.get("init"):
        yield f"init container {name} runs"
    if waiting.get("reason") == "ContainerCreating":
        yield f"{name}: ContainerCreating{_message(waiting)}"


def _message(state: dict[str, Any]) -> str:
    return f" ({state['message'].strip().splitlines()[-1]})" if state.get("message", "").strip() else ""


def _join(reason: str, message: str) -> str:
    return f"{reason}: {message}" if message else reason


def _statuses(pod: Manifest) -> Iterator[dict[str, Any]]:
    status = pod.get("status", {})
    for container in status.get("initContainerStatuses", ()):
        yield {**container, "init": True}
    yield from status.get("containerStatuses", ())


def _pinned_node(pod: Manifest) -> str:
    affinity = pod.get("spec", {}).get("affinity", {}).get("nodeAffinity", {})
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {})
    for term in required.get("nodeSelectorTerms", ()):
        for field in term.get("matchFields", ()):
            if field["key"] == "metadata.name":
                return str(field["values"][0])
    return ""


# Reasons that only events have; others, such as BackOff, are in the pod's status as well.
_BEFORE_START = frozenset({
    "FailedAttachVolume", "FailedCreatePodSandBox", "FailedMapVolume", "FailedMount", "InspectFailed",
    "NetworkNotReady",
})  # fmt: skip
_NOT_CREATED = "FailedCreate"
_AFTER_START = frozenset({"FailedPostStartHook", "Unhealthy"})
_AT_END = frozenset({"FailedKillPod", "FailedPreStopHook"})


def relevant_events(pod: Manifest, events: Iterable[Manifest]) -> tuple[str, ...]:
    """Return the events that say why a pod is not ready, as ``<reason>: <message>``; the latest is the last.

    Events before the start of a container are outdated after it. Of a terminating pod, only events that delay its end
    count: its probes fail because it ends.
    """
    reasons = _AFTER_START if has_started(pod) else _BEFORE_START
    if pod["metadata"].get("deletionTimestamp"):
        reasons = _AT_END
    matches = sorted((event for event in events if event.get("reason") in reasons), key=_time)
    lines = (f"{event['reason']}: {' '.join(event.get('message', '').split())}" for event in matches)
    return tuple(dict.fromkeys(lines))


def creation_failure(events: Iterable[Manifest]) -> str:
    """Return why a controller could create no pod, from its events; empty if it has created one since."""
    about = [event for event in events if event.get("reason") in {_NOT_CREATED, "SuccessfulCreate"}]
    last = max(about, key=lambda event: (_time(event), event["reason"] == _NOT_CREATED), default={})
    return f"{_NOT_CREATED}: {' '.join(last.get('message', '').split())}" if last.get("reason") == _NOT_CREATED else ""


def replica_failure(deployment: Manifest) -> str:
    """Return why a Deployment's ReplicaSet could create no pod, in the form of `creation_failure`; empty if it could.

    The event is on the ReplicaSet; its condition is on both.
    """
    conditions = (deployment.get("status") or {}).get("conditions") or ()
    failed = (each for each in conditions if each["type"] == "ReplicaFailure" and each["status"] == "True")
    return next((_join(each["reason"], " ".join(each.get("message", "").split())) for each in failed), "")


def _time(event: Manifest) -> str:
    """Events of old and new kinds keep their time in different fields."""
    series = (event.get("series") or {}).get("lastObservedTime")
    return str(event.get("lastTimestamp") or series or event.get("eventTime") or "")
