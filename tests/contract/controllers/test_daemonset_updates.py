"""How a DaemonSet goes from one template to the next, by either strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from tests.contract.client import Object, until
from tests.contract.controllers.cluster import NODES, Cluster, is_ready, names, nodes_of
from tests.contract.controllers.manifests import image_change, unready, workload
from tests.contract.controllers.test_daemonset import await_counts, counts

OLD = "registry.example/tools/busybox:1.36"
NEW = "registry.example/tools/busybox:1.37"
ON_DELETE = {"type": "OnDelete"}


def rolling(allowed: int | str) -> Object:
    return {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": allowed}}


def images(pods: Iterable[Object]) -> set[str]:
    return {pod["spec"]["containers"][0]["image"] for pod in pods}


def revision_of(obj: Object) -> str:
    return str(obj["metadata"]["labels"]["controller-revision-hash"])


def test_with_on_delete_a_new_template_restarts_nothing(cluster: Cluster) -> None:
    """The new revision is there at once."""
    cluster.create("DaemonSet", "agent", spec=workload("agent", updateStrategy=ON_DELETE))
    before = cluster.await_pods(3)
    cluster.patch("DaemonSet", "agent", image_change(NEW))
    daemonset = await_counts(cluster, "agent", desired=3, ready=3, available=3, updated=0)
    assert daemonset["status"]["observedGeneration"] == 2
    assert "updatedNumberScheduled" not in daemonset["status"]
    assert names(cluster.pods()) == names(before)
    revisions = until(lambda: (found := cluster.every("ControllerRevision"))[1:] and found)
    assert sorted(revision["revision"] for revision in revisions) == [1, 2]


def test_on_delete_recreates_a_pod_with_the_new_template(cluster: Cluster) -> None:
    cluster.create("DaemonSet", "agent", spec=workload("agent", updateStrategy=ON_DELETE))
    before = cluster.await_pods(3)
    cluster.patch("DaemonSet", "agent", image_change(NEW))
    await_counts(cluster, "agent", updated=0)
    cluster.delete("Pod", before[0]["metadata"]["name"])
    await_counts(cluster, "agent", updated=1, ready=3)
    (new,) = (pod for pod in cluster.await_pods(3) if pod["metadata"]["name"] not in names(before))
    assert images([new]) == {NEW}
    assert new["metadata"]["labels"]["pod-template-generation"] == "2"
    assert new["spec"]["nodeName"] == before[0]["spec"]["nodeName"]
    assert revision_of(new) != revision_of(before[0])


@pytest.mark.parametrize(("allowed", "most"), [(1, 1), (2, 2), ("34%", 2), ("100%", 3)])
def test_a_rolling_update_never_misses_more_than_it_may(cluster: Cluster, allowed: int | str, most: int) -> None:
    """Every state is looked at; a percentage is rounded up."""
    cluster.create("DaemonSet", "agent", spec=workload("agent", updateStrategy=rolling(allowed)))
    before = names(cluster.await_pods(3))
    await_counts(cluster, "agent", available=3, updated=3)
    since = cluster.now("Pod")
    cluster.patch("DaemonSet", "agent", image_change(NEW))
    assert min(cluster.count_pods(since, before, is_ready)) == 3 - most
    await_counts(cluster, "agent", updated=3, available=3)
    assert images(cluster.pods()) == {NEW}


def test_a_rolling_update_stops_at_pods_that_do_not_get_ready(cluster: Cluster) -> None:
    """Those count as unavailable, and are replaced first and at once, whatever may be missed."""
    cluster.create("DaemonSet", "agent", spec=workload("agent", updateStrategy=rolling(1)))
    before = cluster.await_pods(3)
    await_counts(cluster, "agent", available=3)
    broken = {"spec": {"template": {"spec": {"containers": [unready()]}}}}
    cluster.patch("DaemonSet", "agent", broken)
    await_counts(cluster, "agent", updated=1, available=2, unavailable=1)
    assert len(names(cluster.pods()) & names(before)) == 2
    broken["spec"]["updateStrategy"] = rolling(3)
    cluster.patch("DaemonSet", "agent", broken)
    status = await_counts(cluster, "agent", desired=3, current=3, unavailable=3)["status"]
    assert (status["numberReady"], status.get("numberAvailable")) == (0, None)
    cluster.patch("DaemonSet", "agent", image_change(NEW))
    await_counts(cluster, "agent", updated=3)


def test_going_back_uses_the_old_revision_again(cluster: Cluster) -> None:
    """Old revisions go beyond the limit."""
    cluster.create("DaemonSet", "agent", spec=workload("agent", revisionHistoryLimit=1))
    (first, *_) = cluster.await_pods(3)
    for image in (NEW, OLD):
        cluster.patch("DaemonSet", "agent", image_change(image))
        await_counts(cluster, "agent", updated=3, available=3)
    numbers = {revision_of(one): one["revision"] for one in cluster.every("ControllerRevision")}
    assert sorted(numbers.values()) == [2, 3]
    assert numbers[revision_of(first)] == 3
    assert {revision_of(pod) for pod in cluster.pods()} == {revision_of(first)}
    cluster.patch("DaemonSet", "agent", image_change("registry.example/tools/busybox:3"))
    until(lambda: sorted(one["revision"] for one in cluster.every("ControllerRevision")) == [3, 4])


def test_a_change_outside_the_template_replaces_no_pod(cluster: Cluster) -> None:
    """A rolling update that misses one pod is the default."""
    made = cluster.create("DaemonSet", "agent", spec=workload("agent"))
    strategy = made["spec"]["updateStrategy"]
    assert (strategy["type"], strategy["rollingUpdate"]["maxUnavailable"]) == ("RollingUpdate", 1)
    assert made["spec"]["revisionHistoryLimit"] == 10
    before = cluster.await_pods(3)
    cluster.patch("DaemonSet", "agent", {"spec": {"updateStrategy": ON_DELETE | {"rollingUpdate": None}}})
    await_counts(cluster, "agent", updated=3, ready=3)
    assert names(cluster.pods()) == names(before)
    assert len(cluster.every("ControllerRevision")) == 1


def test_the_status_says_which_generation_it_is_of(cluster: Cluster) -> None:
    """A reader who sees observedGeneration below generation must not trust the numbers yet."""
    cluster.create("DaemonSet", "agent", spec=workload("agent", updateStrategy=ON_DELETE))
    cluster.await_pods(3)
    await_counts(cluster, "agent", updated=3, ready=3, available=3)
    since = cluster.now("DaemonSet")
    cluster.patch("DaemonSet", "agent", image_change(NEW))
    seen = cluster.history("DaemonSet", since, lambda event: event.object["status"]["observedGeneration"] == 2)
    first, last = seen[0].object, seen[-1].object
    assert (first["metadata"]["generation"], first["status"]["observedGeneration"]) == (2, 1)
    assert counts(first)["updated"] == 3, "the numbers of the template before"
    assert counts(last)["updated"] == 0


def test_a_rolling_update_ends_pods_that_only_stay(cluster: Cluster, change_node: Callable[..., None]) -> None:
    """A pod stays on a node with a NoSchedule taint until the template changes, and does not return."""
    cluster.create("DaemonSet", "agent", spec=workload("agent"))
    cluster.await_pods(3)
    change_node("sim-2", taints=({"key": "contract.example/late", "effect": "NoSchedule"},))
    await_counts(cluster, "agent", desired=2, available=2, misscheduled=1)
    assert nodes_of(cluster.pods()) == sorted(NODES), "such a taint evicts no pod"
    cluster.patch("DaemonSet", "agent", image_change(NEW))
    await_counts(cluster, "agent", desired=2, updated=2, available=2)
    until(lambda: images(cluster.pods()) == {NEW})
    assert nodes_of(cluster.pods()) == ["sim-1", "sim-3"]


def test_a_template_that_selects_other_nodes_moves_the_pods(cluster: Cluster, on_nodes: Callable[..., Object]) -> None:
    cluster.create("DaemonSet", "agent", spec=workload("agent"))
    cluster.await_pods(3)
    change = {"spec": {"template": {"spec": {"nodeSelector": on_nodes("sim-2")}}}}
    cluster.patch("DaemonSet", "agent", change)
    await_counts(cluster, "agent", desired=1, updated=1, available=1, misscheduled=0)
    until(lambda: nodes_of(cluster.every("Pod")) == ["sim-2"])
