"""Which events of a pod tell why it is not ready."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_provision.diagnostics.pods import telling
from gpu_provision.diagnostics.remedies import remedy

WAITING = {"name": "a", "state": {"waiting": {"reason": "PodInitializing"}}}
RUNNING = {"name": "a", "state": {"running": {}}}
NOT_A_FILE = 'MountVolume.SetUp failed for volume "v" : hostPath type check failed: /run/nvidia is not a file'


def pod(*containers: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "status": {"initContainerStatuses": list(containers)}}


def event(reason: str, message: str, time: str = "") -> dict[str, Any]:
    return {"reason": reason, "message": message, **({"lastTimestamp": time} if time else {})}


def test_a_pod_that_has_not_started_is_told_by_what_keeps_it_from_starting() -> None:
    events = [event("Scheduled", "assigned"), event("FailedMount", NOT_A_FILE), event("Unhealthy", "of another life")]
    assert telling(pod(WAITING), events) == (f"FailedMount: {NOT_A_FILE}",)


def test_what_kept_a_pod_from_starting_is_history_once_it_has_started() -> None:
    events = [event("FailedCreatePodSandBox", "no runtime"), event("Unhealthy", "Startup probe failed: no module")]
    assert telling(pod(RUNNING), events) == ("Unhealthy: Startup probe failed: no module",)
    crashed = {**WAITING, "lastState": {"terminated": {"exitCode": 1}}}
    assert telling(pod(crashed), events[:1]) == ()


def test_a_pod_that_is_to_go_is_told_by_what_keeps_it() -> None:
    """Its probes fail since it goes."""
    events = [event("Unhealthy", "Liveness probe failed: i/o timeout"), event("FailedKillPod", "no such task")]
    going = {**pod(RUNNING), "metadata": {"name": "p", "deletionTimestamp": "2026-11-21T04:00:01Z"}}
    assert telling(going, events) == ("FailedKillPod: no such task",)


def test_the_latest_is_the_last_and_a_repeated_one_is_told_once() -> None:
    late = event("Unhealthy", "late", "2026-11-21T04:00:02Z")
    of_new_kind = {"reason": "Unhealthy", "message": "first\nof two", "eventTime": "2026-11-21T04:00:01.5Z"}
    assert telling(pod(RUNNING), [late, of_new_kind, late]) == ("Unhealthy: first of two", "Unhealthy: late")


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (f"FailedMount: {NOT_A_FILE}", "a path of the node is missing, or is not what the pod mounts"),
        ('path "/run/nvidia" is mounted on "/run" but it is not a shared mount', "the node does not share its mounts"),
        ('MountVolume.SetUp failed for volume "c" : configmap "c" not found', "a volume of the pod cannot be mounted"),
        ("container has runAsNonRoot and image will run as root", "the image runs as root"),
        ("container's runAsUser breaks non-root policy", "the image runs as root"),
        ("Unhealthy: Readiness probe failed: HTTP probe failed with statuscode: 404", "its probe fails"),
        ("the previous pod is still terminating (not ready after 25 s)", "the previous pod does not end"),
    ],
)
def test_what_the_kubelet_says_has_a_remedy(line: str, cause: str) -> None:
    assert cause in remedy(line).cause
