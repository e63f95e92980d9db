"""Which events of a pod tell why it is not ready."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_provision.diagnostics.pods import cause, crash, failing_container, is_ready, node_of, relevant_events
from gpu_provision.diagnostics.remedies import find_remedy

WAITING = {"name": "a", "state": {"waiting": {"reason": "PodInitializing"}}}
RUNNING = {"name": "a", "state": {"running": {}}}
NOT_A_FILE = 'MountVolume.SetUp failed for volume "v" : hostPath type check failed: /run/nvidia is not a file'


def pod_in(*containers: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "status": {"initContainerStatuses": list(containers)}}


def event(reason: str, message: str, time: str = "") -> dict[str, Any]:
    return {"reason": reason, "message": message, **({"lastTimestamp": time} if time else {})}


def test_a_waiting_pod_is_described_by_what_keeps_it() -> None:
    events = [event("Scheduled", "assigned"), event("FailedMount", NOT_A_FILE), event("Unhealthy", "of another life")]
    assert relevant_events(pod_in(WAITING), events) == (f"FailedMount: {NOT_A_FILE}",)


def test_a_started_pod_is_not_described_by_earlier_events() -> None:
    events = [event("FailedCreatePodSandBox", "no runtime"), event("Unhealthy", "Startup probe failed: no module")]
    assert relevant_events(pod_in(RUNNING), events) == ("Unhealthy: Startup probe failed: no module",)
    crashed = {**WAITING, "lastState": {"terminated": {"exitCode": 1}}}
    assert relevant_events(pod_in(crashed), events[:1]) == ()


def test_a_terminating_pod_names_what_keeps_it() -> None:
    """Its probes fail since it goes."""
    events = [event("Unhealthy", "Liveness probe failed: i/o timeout"), event("FailedKillPod", "no such task")]
    going = {**pod_in(RUNNING), "metadata": {"name": "p", "deletionTimestamp": "2026-11-21T04:00:01Z"}}
    assert relevant_events(going, events) == ("FailedKillPod: no such task",)


def test_the_latest_event_is_last_and_repeats_are_merged() -> None:
    late = event("Unhealthy", "late", "2026-11-21T04:00:02Z")
    of_new_kind = {"reason": "Unhealthy", "message": "first\nof two", "eventTime": "2026-11-21T04:00:01.5Z"}
    assert relevant_events(pod_in(RUNNING), [late, of_new_kind, late]) == ("Unhealthy: first of two", "Unhealthy: late")


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
    assert cause in find_remedy(line).cause


def pod(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "spec": {"nodeName": "t4-1"}, "status": status}


def container(name: str, **state: Any) -> dict[str, Any]:
    return {"name": name, "ready": False, "state": state}


READY = {"type": "Ready", "status": "True"}
PULL = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "driver:1"'}

CASES = [
    ("image pull", pod(containerStatuses=[container("a", waiting=PULL)]), f"a: ImagePullBackOff: {PULL['message']}"),
    (
        "unscheduled",
        pod(
            conditions=[
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/5 nodes fit"}
            ]
        ),
        "Unschedulable: 0/5 nodes fit",
    ),
    (
        "crash loop with the last exit",
        pod(
            containerStatuses=[
                {
                    **container("a", waiting={"reason": "CrashLoopBackOff"}),
                    "lastState": {"terminated": {"exitCode": 1, "message": "one\nno headers"}},
                }
            ]
        ),
        "a: CrashLoopBackOff, last exit 1 (no headers)",
    ),
    ("init container", pod(initContainerStatuses=[container("wait", running={})]), "init container wait runs"),
    ("failed", pod(phase="Failed", containerStatuses=[container("a", terminated={"exitCode": 2})]), "a: exit 2"),
    ("evicted", pod(phase="Failed", reason="Evicted", message="low on disk"), "Evicted: low on disk"),
    ("running", pod(containerStatuses=[container("a", running={})]), "a runs, but is not ready yet"),
    ("nothing known", pod(phase="Pending"), "Pending"),
]


@pytest.mark.parametrize(("live", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_the_cause_is_one_short_sentence(live: dict[str, Any], expected: str) -> None:
    assert cause(live) == expected


def test_a_pod_on_its_way_out_is_not_ready() -> None:
    live = pod(conditions=[READY])
    assert is_ready(live)
    live["metadata"]["deletionTimestamp"] = "2026-11-21T00:00:00Z"
    assert not is_ready(live)
    assert cause(live) == "Terminating"


def test_a_pod_pinned_by_affinity_belongs_to_its_node() -> None:
    fields = [{"key": "metadata.name", "operator": "In", "values": ["h100-1"]}]
    required = {"nodeSelectorTerms": [{"matchFields": fields}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    assert node_of({"metadata": {"name": "p"}, "spec": {"affinity": affinity}}) == "h100-1"


FAILED, PASSED = {"terminated": {"exitCode": 1}}, {"terminated": {"exitCode": 0}}


@pytest.mark.parametrize(
    ("state", "before", "previous"),
    [
        pytest.param({"waiting": {"reason": "CrashLoopBackOff"}}, FAILED, True, id="waits to be started again"),
        pytest.param({"running": {}}, FAILED, True, id="runs again and may not have got to its error yet"),
        pytest.param({"running": {}}, PASSED, False, id="runs again after a success"),
        pytest.param(FAILED, {}, False, id="has just failed for the first time: there is no previous run"),
        pytest.param(FAILED, FAILED, False, id="has just failed again"),
        pytest.param({"running": {}}, {}, False, id="runs"),
    ],
)
def test_the_failing_container_is_the_first_that_is_not_done(state: Any, before: Any, *, previous: bool) -> None:
    """Its previous run is asked for where the present one cannot tell yet."""
    done = {"name": "init", "ready": True, "state": PASSED}
    live = pod(initContainerStatuses=[done], containerStatuses=[{**container("driver", **state), "lastState": before}])
    assert failing_container(live) == ("driver", previous)


@pytest.mark.parametrize(
    ("state", "before", "told"),
    [
        pytest.param({"waiting": {"reason": "CrashLoopBackOff"}}, FAILED, "driver: exit 1", id="waits to be restarted"),
        pytest.param({"running": {}}, FAILED, "driver: exit 1", id="was restarted"),
        pytest.param(FAILED, {}, "driver: exit 1", id="has just failed"),
        pytest.param(
            {"running": {}}, {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}, "driver: OOMKilled", id="memory"
        ),
        pytest.param({"running": {}}, {"terminated": {"exitCode": 255, "reason": "Unknown"}}, "None", id="a reboot"),
        pytest.param({"running": {}}, {"terminated": {"exitCode": 143}}, "None", id="was told to end"),
        pytest.param({"waiting": PULL}, {}, "None", id="has not started"),
        pytest.param({"running": {}}, PASSED, "None", id="had done its work"),
    ],
)
def test_a_crash_is_an_end_of_the_containers_own_making(state: Any, before: Any, told: str) -> None:
    """What a reboot ended says nothing of why it does not get ready."""
    status = {**container("driver", **state), "lastState": before, "restartCount": 3}
    assert str(crash(pod(containerStatuses=[status]))) == told
    assert crash(pod(containerStatuses=[{**status, "ready": True}])) is None
    assert crash(pod(containerStatuses=[status], conditions=[READY])) is None
    assert crash(pod(containerStatuses=[status], phase="Failed")) is None
