"""The life of pods as the simulated kubelets report it, and as either server takes and shows it."""

from __future__ import annotations

import pytest

from gpu_provision.diagnostics import pods as diagnose
from tests.contract.client import Object
from tests.contract.controllers.cluster import Cluster, condition, is_ready, phase
from tests.contract.controllers.manifests import IMAGE, MISSING_IMAGE, PROBE, container, pod_spec, unready


def main_of(pod: Object, kind: str = "container") -> Object:
    """Return the status of a pod's first container, or init container."""
    field = "initContainerStatuses" if kind == "init" else "containerStatuses"
    return next(iter(pod.get("status", {}).get(field) or ()), {})


def waiting(pod: Object, kind: str = "container") -> str:
    """Return why the first container, or init container, waits."""
    return str(main_of(pod, kind).get("state", {}).get("waiting", {}).get("reason", ""))


def task(*command: str, **more: object) -> Object:
    """Return the spec of a pod that runs one command once."""
    return pod_spec(container("main", *command), restartPolicy="Never", **more)


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


def test_a_task_that_ends_well_succeeded(cluster: Cluster) -> None:
    cluster.create("Pod", "task", spec=task("true"))
    pod = cluster.await_("Pod", "task", lambda one: phase(one) == "Succeeded")
    ended = main_of(pod)["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (0, "Completed")
    assert ended["startedAt"] <= ended["finishedAt"]
    for kind, status in (("Initialized", "True"), ("Ready", "False"), ("ContainersReady", "False")):
        assert (condition(pod, kind)["status"], condition(pod, kind).get("reason")) == (status, "PodCompleted")


def test_a_task_that_ends_badly_failed_and_diagnose_says_how(cluster: Cluster) -> None:
    cluster.create("Pod", "task", spec=task("sh", "-c", "exit 3"))
    pod = cluster.await_("Pod", "task", lambda one: phase(one) == "Failed")
    ended = main_of(pod)["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (3, "Error")
    assert diagnose.cause(pod) == "main: exit 3"
    assert diagnose.failing_container(pod) == ("main", False)
    assert not diagnose.was_rejected(pod)


def test_a_pod_that_takes_too_long_failed(cluster: Cluster) -> None:
    cluster.create("Pod", "task", spec=task("sleep", "infinity", activeDeadlineSeconds=1))
    pod = cluster.await_("Pod", "task", lambda one: phase(one) == "Failed")
    assert pod["status"]["reason"] == "DeadlineExceeded"
    assert pod["status"]["message"] == "Pod was active on the node longer than the specified deadline"
    assert diagnose.cause(pod).startswith("DeadlineExceeded: Pod was active")
    assert not diagnose.was_rejected(pod)


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


def test_while_an_init_container_runs_the_others_wait(cluster: Cluster) -> None:
    cluster.create("Pod", "web", spec=pod_spec(initContainers=[container("gate")]))
    pod = cluster.await_("Pod", "web", lambda one: "running" in main_of(one, "init").get("state", {}))
    assert (phase(pod), waiting(pod)) == ("Pending", "PodInitializing")
    found = condition(pod, "Initialized")
    assert (found["status"], found["reason"]) == ("False", "ContainersNotInitialized")
    assert found["message"] == "containers with incomplete status: [gate]"
    assert diagnose.cause(pod) == "init container gate runs"
    assert diagnose.failing_container(pod) == ("gate", False)


def test_a_failed_init_container_is_tried_again_alone(cluster: Cluster) -> None:
    cluster.create("Pod", "web", spec=pod_spec(initContainers=[container("gate", "false")]))
    pod = cluster.await_("Pod", "web", lambda one: waiting(one, "init") == "CrashLoopBackOff")
    assert (phase(pod), waiting(pod)) == ("Pending", "PodInitializing")
    assert diagnose.cause(pod).startswith("gate: CrashLoopBackOff: back-off ")
    assert diagnose.cause(pod).endswith(", last exit 1")
    assert diagnose.failing_container(pod) == ("gate", True)


def test_an_init_container_that_fails_for_good_fails_the_pod(cluster: Cluster) -> None:
    cluster.create("Pod", "task", spec=task("true", initContainers=[container("gate", "sh", "-c", "exit 4")]))
    pod = cluster.await_("Pod", "task", lambda one: phase(one) == "Failed")
    assert diagnose.cause(pod) == "gate: exit 4"
    assert waiting(pod) == "PodInitializing"


def test_a_crash_loop_shows_the_last_exit(cluster: Cluster) -> None:
    """Restarts count upwards."""
    since = cluster.now("Pod")
    cluster.create("Pod", "web", spec=pod_spec(container("main", "sh", "-c", "exit 5")))
    seen = cluster.history(
        "Pod", since, lambda one: main_of(one.object).get("restartCount") == 3 and waiting(one.object)
    )
    counts, pod = [main_of(event.object).get("restartCount", 0) for event in seen], seen[-1].object
    assert counts == sorted(counts)
    found = main_of(pod)
    assert found["lastState"]["terminated"]["exitCode"] == 5
    assert waiting(pod) == "CrashLoopBackOff"
    assert found["state"]["waiting"]["message"].startswith("back-off ")
    assert f"restarting failed container=main pod=web_{cluster.namespace}(" in found["state"]["waiting"]["message"]
    assert phase(pod) == "Running"
    assert condition(pod, "Ready")["reason"] == "ContainersNotReady"
    assert diagnose.cause(pod).startswith("main: CrashLoopBackOff: back-off ")
    assert diagnose.failing_container(pod) == ("main", True)
    event = cluster.await_event("BackOff", "web")
    assert (event["type"], event["source"]["component"]) == ("Warning", "kubelet")


def test_an_image_that_is_not_there_is_named(cluster: Cluster) -> None:
    since = cluster.now("Pod")
    cluster.create("Pod", "web", spec=pod_spec(container(image=MISSING_IMAGE)))
    seen = cluster.history("Pod", since, lambda event: waiting(event.object) == "ImagePullBackOff")
    assert "ErrImagePull" in map(waiting, (event.object for event in seen))
    pod = seen[-1].object
    assert f'Back-off pulling image "{MISSING_IMAGE}"' in main_of(pod)["state"]["waiting"]["message"]
    assert phase(pod) == "Pending"
    assert diagnose.cause(pod).startswith("main: ImagePullBackOff: Back-off pulling image")
    event = cluster.await_event("Failed", "web", "Failed to pull image")
    assert MISSING_IMAGE in event["message"]


def test_what_its_environment_needs_and_is_not_there_is_named(cluster: Cluster) -> None:
    env = [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "missing", "key": "a"}}}]
    cluster.create("Pod", "web", spec=pod_spec(container(env=env)))
    pod = cluster.await_("Pod", "web", lambda one: waiting(one) == "CreateContainerConfigError")
    assert main_of(pod)["state"]["waiting"]["message"] == 'configmap "missing" not found'
    assert diagnose.cause(pod) == 'main: CreateContainerConfigError: configmap "missing" not found'
    cluster.create("ConfigMap", "missing", data={"a": "b"})
    cluster.await_("Pod", "web", is_ready)


def test_a_missing_volume_keeps_containers_from_starting(cluster: Cluster) -> None:
    volumes = [{"name": "files", "configMap": {"name": "missing"}}]
    cluster.create("Pod", "web", spec=pod_spec(volumes=volumes))
    event = cluster.await_event("FailedMount", "web")
    assert event["message"] == 'MountVolume.SetUp failed for volume "files" : configmap "missing" not found'
    pod = cluster.await_("Pod", "web", waiting)
    assert waiting(pod) == "ContainerCreating"
    assert diagnose.cause(pod) == "main: ContainerCreating"
    cluster.create("ConfigMap", "missing", data={"a": "b"})
    cluster.await_("Pod", "web", is_ready)


def test_a_container_that_is_not_ready_runs(cluster: Cluster) -> None:
    """A pod is ready when all its containers are."""
    cluster.create("Pod", "web", spec=pod_spec(container("one"), unready("two")))
    pod = cluster.await_("Pod", "web", lambda one: phase(one) == "Running" and main_of(one).get("ready"))
    found = condition(pod, "Ready")
    assert (found["status"], found["reason"]) == ("False", "ContainersNotReady")
    assert found["message"] == "containers with unready status: [two]"
    assert diagnose.cause(pod) == "two runs, but is not ready yet"
    assert not diagnose.is_ready(pod)


def test_a_startup_probe_that_has_not_passed_is_an_event(cluster: Cluster) -> None:
    spec = pod_spec(unready() | {"startupProbe": PROBE, "readinessProbe": None})
    cluster.create("Pod", "web", spec=spec)
    pod = cluster.await_("Pod", "web", lambda one: "running" in main_of(one).get("state", {}))
    assert (main_of(pod)["ready"], main_of(pod)["started"]) == (False, False)


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


@pytest.mark.parametrize(
    ("resources", "quality"),
    [
        ({}, "BestEffort"),
        ({"requests": {"cpu": "100m"}}, "Burstable"),
        ({"limits": {"cpu": "100m", "memory": "64Mi"}}, "Guaranteed"),
    ],
    ids=["nothing", "a request", "limits"],
)
def test_what_it_asks_for_is_its_quality_of_service(cluster: Cluster, resources: Object, quality: str) -> None:
    cluster.create("Pod", "web", spec=pod_spec(container(resources=resources)))
    assert cluster.await_("Pod", "web", is_ready)["status"]["qosClass"] == quality


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
    selectors = {
        f"involvedObject.uid%3D{uid},involvedObject.kind%3DPod": {"web"},
        "involvedObject.name%3Dnobody": set(),
    }
    for selector, names in selectors.items():
        found = cluster.server.get(f"{cluster.path('Event')}?fieldSelector={selector}")["items"]
        assert {one["involvedObject"]["name"] for one in found} == names
    cluster.delete("Pod", "web")
    assert cluster.await_event("Killing", "web")["message"] == "Stopping container main"
