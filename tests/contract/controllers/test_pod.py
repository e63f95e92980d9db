"""The life of pods as the simulated kubelets report it, and as either server takes and shows it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.diagnostics import pods as diagnose
from tests import data_file
from tests.contract.client import Event, Object
from tests.contract.controllers.cluster import Cluster, is_ready, phase
from tests.contract.controllers.manifests import IMAGE, MISSING_IMAGE, container, pod_spec

CASES = data_file.document(Path(__file__).with_suffix(".yaml").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_pod_reports_what_became_of_it(cluster: Cluster, case: Object) -> None:
    """And diagnose says how."""
    more = case.get("spec", {})
    more |= {kind: [container() | one for one in more[kind]] for kind in ("initContainers",) if kind in more}
    cluster.create("Pod", "web", spec=pod_spec(*(container() | one for one in case.get("containers", [{}])), **more))
    pod = cluster.await_("Pod", "web", lambda one: is_like(one.get("status"), case["status"]))
    assert is_like(diagnose.cause(pod), case.get("cause", "*"))
    if "failing" in case:
        assert diagnose.failing_container(pod) == tuple(case["failing"])
    assert not diagnose.was_rejected(pod)
    if wanted := case.get("event"):
        cluster.await_event(wanted["reason"], "web", lambda event: is_like(event, wanted))
    if name := case.get("remedy"):
        cluster.create("ConfigMap", name, data={"a": "b"})
        cluster.await_("Pod", "web", is_ready)


def is_like(found: Any, wanted: Any) -> bool:
    """Say whether a value holds what is wanted; * stands for any text, and lists hold their items in order."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(is_like(found.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        rest = iter(found or ())
        return all(any(is_like(one, each) for one in rest) for each in wanted)
    pattern = ".*".join(map(re.escape, str(wanted).split("*")))
    return bool(re.fullmatch(pattern, str(found), re.DOTALL))


def test_a_running_pod_has_addresses_times_and_conditions(cluster: Cluster) -> None:
    """It goes from Pending to Running, and its container says what it is."""
    since = cluster.now("Pod")
    cluster.create("Pod", "web", spec=pod_spec())
    seen = [event.object for event in cluster.history("Pod", since, lambda event: is_ready(event.object))]
    assert [*dict.fromkeys(map(phase, seen))] == ["Pending", "Running"]
    status, found = seen[-1]["status"], main_of(seen[-1])
    true = {one["type"] for one in status["conditions"] if one["status"] == "True"}
    assert true >= {"Initialized", "Ready", "ContainersReady", "PodScheduled"}
    assert status["podIPs"] == [{"ip": status["podIP"]}]
    assert {"hostIP", "startTime", "qosClass"} <= status.keys()
    assert found.items() >= {"name": "main", "image": IMAGE, "ready": True, "started": True, "restartCount": 0}.items()
    assert found["state"].keys() == {"running"}
    assert found["lastState"] == {}
    assert found["containerID"].startswith("containerd://")
    assert "@sha256:" in found["imageID"]


def test_init_containers_run_one_after_the_other(cluster: Cluster) -> None:
    since = cluster.now("Pod")
    inits = [container("first", "true"), container("second", "true")]
    cluster.create("Pod", "web", spec=pod_spec(initContainers=inits))
    seen = cluster.history("Pod", since, lambda event: is_ready(event.object))
    for event in seen:
        states = [one["state"] for one in event.object["status"].get("initContainerStatuses") or ()]
        if states and "waiting" not in states[1]:
            assert states[0]["terminated"]["exitCode"] == 0, "the second starts after the first"
    last = seen[-1].object["status"]["initContainerStatuses"]
    assert [(one["name"], one["ready"], one["state"]["terminated"]["reason"]) for one in last] == [
        ("first", True, "Completed"),
        ("second", True, "Completed"),
    ]


@pytest.mark.parametrize(
    ("wrong", "ways"),
    [({"command": ["false"]}, {"CrashLoopBackOff"}), ({"image": MISSING_IMAGE}, {"ErrImagePull", "ImagePullBackOff"})],
    ids=["crashes", "no image"],
)
def test_tries_count_upwards_and_tell_each_time(cluster: Cluster, wrong: Object, ways: set[str]) -> None:
    """Restarts do not go down, and a pull that failed is an error before it is a pause."""
    since = cluster.now("Pod")
    cluster.create("Pod", "web", spec=pod_spec(container() | wrong))
    seen: set[str] = set()
    counts: list[int] = []

    def is_enough(event: Event) -> bool:
        found = main_of(event.object)
        counts.append(found.get("restartCount", 0))
        seen.add(found.get("state", {}).get("waiting", {}).get("reason", ""))
        return seen >= ways and (counts[-1] >= 3 or "image" in wrong)  # a busy kubelet may skip a count

    cluster.history("Pod", since, is_enough)
    assert counts == sorted(counts)


def main_of(pod: Object) -> Object:
    return next(iter(pod.get("status", {}).get("containerStatuses") or ()), {})


def test_a_deleted_pod_is_there_until_it_has_ended(cluster: Cluster) -> None:
    cluster.create("Pod", "web", spec=pod_spec() | {"terminationGracePeriodSeconds": 9})
    cluster.await_("Pod", "web", is_ready)
    since = cluster.now("Pod")
    answer = cluster.delete("Pod", "web").body
    assert answer["metadata"]["deletionTimestamp"]
    assert answer["metadata"]["deletionGracePeriodSeconds"] == 9
    assert diagnose.cause(answer) == "Terminating"
    assert not diagnose.is_ready(answer)
    seen = cluster.history("Pod", since, lambda event: event.type == "DELETED")
    assert "terminated" in main_of(seen[-1].object)["state"]


def test_a_pod_deleted_without_grace_is_gone_at_once(cluster: Cluster) -> None:
    """And one that no node has."""
    spec = pod_spec(terminationGracePeriodSeconds=9)
    cluster.create("Pod", "nowhere", spec=spec | {"nodeSelector": {cluster.mark: "nowhere"}})
    cluster.delete("Pod", "nowhere")
    assert cluster.gone("Pod", "nowhere")
    cluster.create("Pod", "web", spec=spec)
    cluster.await_("Pod", "web", is_ready)
    cluster.delete("Pod", "web", gracePeriodSeconds=0)
    assert cluster.gone("Pod", "web")


def test_events_tell_a_containers_way(cluster: Cluster) -> None:
    """They are found by what they are about, as kubectl describe asks."""
    cluster.create("Pod", "web", spec=pod_spec())
    pod = cluster.await_("Pod", "web", is_ready)
    for reason in ("Scheduled", "Pulled", "Created", "Started"):
        assert cluster.await_event(reason, "web")["type"] == "Normal"
    event, uid = cluster.await_event("Started", "web"), pod["metadata"]["uid"]
    about = {"apiVersion": "v1", "kind": "Pod", "name": "web", "namespace": cluster.namespace, "uid": uid}
    assert event["involvedObject"].items() >= {**about, "fieldPath": "spec.containers{main}"}.items()
    assert event["source"] == {"component": "kubelet", "host": pod["spec"]["nodeName"]}
    assert event["message"] == "Started container main"
    assert (event["count"], event["firstTimestamp"]) == (1, event["lastTimestamp"])
    assert event["metadata"]["name"].startswith("web.")
    for field, names in ((f"uid%3D{uid},involvedObject.kind%3DPod", {"web"}), ("name%3Dnobody", set())):
        found = cluster.server.get(f"{cluster.path('Event')}?fieldSelector=involvedObject.{field}")["items"]
        assert {one["involvedObject"]["name"] for one in found} == names
    cluster.delete("Pod", "web")
    assert cluster.await_event("Killing", "web")["message"] == "Stopping container main"
