"""What containers print: stored by the sandbox, fetched from the nodes' kubelet endpoint by a real server."""

from __future__ import annotations

import pytest

from tests.contract.client import Answer, until
from tests.contract.controllers.cluster import Cluster, is_ready, phase
from tests.contract.controllers.manifests import MISSING_IMAGE, container, pod_spec

PRINTS = ("sh", "-c", "echo one; echo two; echo three")
PRINTS_AND_SERVES = ("sh", "-c", "echo one; echo two; echo three; sleep infinity")
PRINTS_AND_FAILS = ("sh", "-c", "echo broken; exit 1")


def log(cluster: Cluster, pod: str, query: str = "") -> Answer:
    return cluster.server.ask("GET", f"{cluster.path('Pod', pod, 'log')}?{query}", accept="*/*")


def printed(cluster: Cluster, pod: str = "web", *command: str) -> None:
    """Run a pod that prints three lines and goes on; return when they are there."""
    cluster.create("Pod", pod, spec=pod_spec(container("main", *(command or PRINTS_AND_SERVES))))
    cluster.await_("Pod", pod, is_ready)
    until(lambda: "three" in log(cluster, pod).body)


def test_a_log_is_plain_text(cluster: Cluster) -> None:
    printed(cluster)
    answer = log(cluster, "web")
    assert (answer.code, answer.body) == (200, "one\ntwo\nthree\n")
    assert answer.headers["Content-Type"].startswith("text/plain")


@pytest.mark.parametrize(
    ("query", "body"),
    [
        ("tailLines=2", "two\nthree\n"),
        ("tailLines=0", ""),
        ("sinceSeconds=600", "one\ntwo\nthree\n"),
        ("limitBytes=5", "one\nt"),
    ],
)
def test_a_part_of_a_log(cluster: Cluster, query: str, body: str) -> None:
    printed(cluster)
    assert log(cluster, "web", query).body == body


def test_lines_with_their_times(cluster: Cluster) -> None:
    printed(cluster)
    lines = log(cluster, "web", "timestamps=true").body.splitlines()
    assert [line.split(" ", 1)[1] for line in lines] == ["one", "two", "three"]
    assert all(line.split(" ", 1)[0].endswith("Z") for line in lines)


def test_the_log_of_a_pod_that_has_ended_stays(cluster: Cluster) -> None:
    """What proves a validation; following ends with the container."""
    cluster.create("Pod", "task", spec=pod_spec(container("main", *PRINTS), restartPolicy="Never"))
    cluster.await_("Pod", "task", lambda pod: phase(pod) == "Succeeded")
    until(lambda: log(cluster, "task").body == "one\ntwo\nthree\n")
    assert log(cluster, "task", "follow=true").body == "one\ntwo\nthree\n"


def test_the_life_before_is_asked_for_with_previous(cluster: Cluster) -> None:
    cluster.create("Pod", "web", spec=pod_spec(container("main", *PRINTS_AND_FAILS)))
    until(lambda: log(cluster, "web", "previous=true").code == 200)
    until(lambda: log(cluster, "web", "previous=true").body == "broken\n")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("previous=true&container=a", 'previous terminated container "a" in pod "web" not found'),
        ("", "a container name must be specified for pod web, choose one of: [a b]"),
        ("container=other", "container other is not valid for pod web"),
    ],
    ids=["no life before", "one of two", "unknown container"],
)
def test_a_log_that_is_not_there_is_refused(cluster: Cluster, query: str, message: str) -> None:
    cluster.create("Pod", "web", spec=pod_spec(container("a"), container("b")))
    cluster.await_("Pod", "web", is_ready)
    answer = log(cluster, "web", query)
    assert (answer.code, answer.reason, answer.message) == (400, "BadRequest", message)


def test_a_container_that_waits_for_its_image_has_no_log(cluster: Cluster) -> None:
    cluster.create("Pod", "web", spec=pod_spec(container(image=MISSING_IMAGE)))

    def bad_request_message() -> str:
        answer = log(cluster, "web")
        return answer.message if answer.code == 400 else ""

    wanted = 'container "main" in pod "web" is waiting to start: '
    assert until(bad_request_message).startswith(wanted)
    until(lambda: bad_request_message() == f"{wanted}trying and failing to pull image")


def test_an_init_container_has_a_log_of_its_own(cluster: Cluster) -> None:
    """And a container that waits for it has none."""
    printing = container("gate", *PRINTS_AND_SERVES)
    cluster.create("Pod", "web", spec=pod_spec(initContainers=[printing]))
    until(lambda: log(cluster, "web", "container=gate").body == "one\ntwo\nthree\n")
    wanted = 'container "main" in pod "web" is waiting to start: PodInitializing'
    until(lambda: log(cluster, "web", "container=main").message == wanted)
