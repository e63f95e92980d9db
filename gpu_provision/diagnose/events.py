"""What a pod's events tell beyond its status: why it does not start, and why it does not get ready."""

from __future__ import annotations

from collections.abc import Iterable

from gpu_provision.diagnose import pods
from gpu_provision.model.cluster import Manifest

# What the kubelet says in events alone; other reasons, such as BackOff, stand in the pod's status as well.
_BEFORE_START = frozenset({
    "FailedAttachVolume", "FailedCreatePodSandBox", "FailedMapVolume", "FailedMount", "InspectFailed",
    "NetworkNotReady",
})  # fmt: skip
_AFTER_START = frozenset({"FailedPostStartHook", "Unhealthy"})
_AT_ITS_END = frozenset({"FailedKillPod", "FailedPreStopHook"})


def telling(pod: Manifest, events: Iterable[Manifest]) -> tuple[str, ...]:
    """Return the events that say why a pod is not ready, as ``<reason>: <message>``; the latest is the last.

    Once a container has started, what had kept the pod from starting is history. The probes of a pod that is to go fail
    because it goes: what counts is what keeps it.
    """
    reasons = _reasons(pod)
    found = sorted((event for event in events if event.get("reason") in reasons), key=_time)
    lines = (f"{event['reason']}: {' '.join(event.get('message', '').split())}" for event in found)
    return tuple(dict.fromkeys(lines))


def _reasons(pod: Manifest) -> frozenset[str]:
    if pod["metadata"].get("deletionTimestamp"):
        return _AT_ITS_END
    return _AFTER_START if pods.has_started(pod) else _BEFORE_START


def _time(event: Manifest) -> str:
    """Events of old and new kinds keep their time in different fields."""
    series = (event.get("series") or {}).get("lastObservedTime")
    return str(event.get("lastTimestamp") or series or event.get("eventTime") or "")
