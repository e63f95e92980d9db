"""Why a pod is not ready, and which of its events tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu_provision.diagnostics.pods import (
    cause,
    crash,
    creation_failure,
    failing_container,
    is_ready,
    node_of,
    relevant_events,
    replica_failure,
)
from tests import data_file

CASES: dict[str, dict[str, Any]] = data_file.document(Path(__file__).with_suffix(".yaml").read_text())
READY = {"type": "Ready", "status": "True"}
WAITING = {"name": "a", "state": {"waiting": {"reason": "PodInitializing"}}}
RUNNING = {"name": "a", "state": {"running": {}}}
NOT_A_FILE = 'MountVolume.SetUp failed for volume "v" : hostPath type check failed: /run/nvidia is not a file'


def pod(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "spec": {"nodeName": "t4-1"}, "status": status}


def event(reason: str, message: str, time: str = "") -> dict[str, Any]:
    return {"reason": reason, "message": message, **({"lastTimestamp": time} if time else {})}


def test_a_waiting_pod_is_described_by_what_keeps_it() -> None:
    events = [event("Scheduled", "assigned"), event("FailedMount", NOT_A_FILE), event("Unhealthy", "of another life")]
    assert relevant_events(pod(initContainerStatuses=[WAITING]), events) == (f"FailedMount: {NOT_A_FILE}",)


def test_a_started_pod_is_not_described_by_earlier_events() -> None:
    events = [event("FailedCreatePodSandBox", "no runtime"), event("Unhealthy", "Startup probe failed: no module")]
    result = relevant_events(pod(initContainerStatuses=[RUNNING]), events)
    assert result == ("Unhealthy: Startup probe failed: no module",)
    crashed = {**WAITING, "lastState": {"terminated": {"exitCode": 1}}}
    assert relevant_events(pod(initContainerStatuses=[crashed]), events[:1]) == ()


def test_a_terminating_pod_names_what_keeps_it() -> None:
    """Its probes fail since it goes."""
    events = [event("Unhealthy", "Liveness probe failed: i/o timeout"), event("FailedKillPod", "no such task")]
    live = pod(initContainerStatuses=[RUNNING], conditions=[READY])
    assert is_ready(live)
    live["metadata"]["deletionTimestamp"] = "2026-11-21T04:00:01Z"
    assert not is_ready(live)
    assert cause(live) == "Terminating"
    assert relevant_events(live, events) == ("FailedKillPod: no such task",)


def test_the_latest_event_is_last_and_repeats_are_merged() -> None:
    late = event("Unhealthy", "late", "2026-11-21T04:00:02Z")
    of_new_kind = {"reason": "Unhealthy", "message": "first\nof two", "eventTime": "2026-11-21T04:00:01.5Z"}
    result = relevant_events(pod(initContainerStatuses=[RUNNING]), [late, of_new_kind, late])
    assert result == ("Unhealthy: first of two", "Unhealthy: late")


def test_a_controller_that_creates_no_pod_says_why() -> None:
    """Unless it has created one since; of two events within one second, the failure counts."""
    refused = event("FailedCreate", "Error creating: pods is\nforbidden", "2026-11-21T04:00:02Z")
    words = "FailedCreate: Error creating: pods is forbidden"
    for time, expected in (("01", words), ("02", words), ("03", "")):
        created = event("SuccessfulCreate", "Created pod: p", f"2026-11-21T04:00:{time}Z")
        assert creation_failure([refused, created]) == creation_failure([created, refused]) == expected
    assert creation_failure([event("SuccessfulDelete", "Deleted pod: p")]) == ""


def test_a_deployment_says_why_its_replica_set_creates_no_pod() -> None:
    failure = {"type": "ReplicaFailure", "reason": "FailedCreate", "message": "pods is\nforbidden"}
    for status, expected in (("True", "FailedCreate: pods is forbidden"), ("False", "")):
        conditions = [{"type": "Available", "status": "True"}, {**failure, "status": status}]
        assert replica_failure({"status": {"conditions": conditions}}) == expected
    assert replica_failure({"status": {"conditions": None}}) == replica_failure({}) == ""


@pytest.mark.parametrize("case", CASES["causes"])
def test_the_cause_is_one_short_sentence(case: str) -> None:
    status, expected = CASES["causes"][case]
    assert cause(pod(**status)) == expected


def test_a_pod_pinned_by_affinity_belongs_to_its_node() -> None:
    fields = [{"key": "metadata.name", "operator": "In", "values": ["h100-1"]}]
    required = {"nodeSelectorTerms": [{"matchFields": fields}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    assert node_of({"metadata": {"name": "p"}, "spec": {"affinity": affinity}}) == "h100-1"


@pytest.mark.parametrize("case", CASES["ends"])
def test_the_run_that_knows_tells_how_a_container_ended(case: str) -> None:
    """Of the first that is not done; what a reboot ended says nothing of why it does not get ready."""
    state, expected = CASES["ends"][case]
    status = {"name": "driver", "ready": False, "restartCount": 3, **state}
    done = {"name": "init", "ready": True, "state": {"terminated": {"exitCode": 0}}}
    live = pod(initContainerStatuses=[done], containerStatuses=[status])
    assert failing_container(live) == ("driver", expected["previous"])
    assert str(crash(live)) == expected["crash"]
    assert crash(pod(containerStatuses=[{**status, "ready": True}])) is None
    assert crash(pod(containerStatuses=[status], conditions=[READY])) is None
    assert crash(pod(containerStatuses=[status], phase="Failed")) is None
