"""PodDisruptionBudgets and the evictions that they allow or forbid."""

from __future__ import annotations

import pytest

from tests.contract.client import Answer, Object, until
from tests.contract.controllers.cluster import Cluster, condition, names
from tests.contract.controllers.manifests import container, pod_spec, unready, workload


def evict(cluster: Cluster, pod: str, **more: object) -> Answer:
    """Ask for the eviction of a pod as kubectl drain does, in the version that the server has."""
    version = "policy/v1" if cluster.server.at_least(1, 22) else "policy/v1beta1"
    body = {"apiVersion": version, "kind": "Eviction", "metadata": {"name": pod, "namespace": cluster.namespace}}
    return cluster.server.ask("POST", cluster.path("Pod", pod, "eviction"), body | more)


def budget(cluster: Cluster, name: str = "budget", **spec: object) -> Object:
    cluster.create("PodDisruptionBudget", name, spec={"selector": {"matchLabels": {"app": "web"}}, **spec})
    return cluster.await_("PodDisruptionBudget", name, lambda one: one.get("status", {}).get("observedGeneration"))


def await_budget(cluster: Cluster, name: str = "budget", **wanted: int) -> Object:
    return cluster.await_("PodDisruptionBudget", name, lambda one: wanted.items() <= one.get("status", {}).items())


def web(cluster: Cluster, replicas: int) -> list[str]:
    cluster.create("Deployment", "web", spec=workload("web", replicas=replicas))
    return sorted(names(cluster.await_pods(replicas, "app=web")))


def bare_pod(cluster: Cluster, name: str = "alone", spec: Object | None = None) -> None:
    cluster.create("Pod", name, metadata={"labels": {"app": "web"}}, spec=spec or pod_spec())
    cluster.await_("Pod", name, lambda one: one["status"]["phase"] == "Running")


def test_without_a_budget_an_eviction_deletes_the_pod(cluster: Cluster) -> None:
    """With its grace; a dry run evicts no pod, and an absent one is not found."""
    bare_pod(cluster, spec=pod_spec() | {"terminationGracePeriodSeconds": 7})
    assert evict(cluster, "alone", deleteOptions={"dryRun": ["All"]}).code == 201
    assert not cluster.get("Pod", "alone")["metadata"].get("deletionTimestamp")
    since = cluster.now("Pod")
    answer = evict(cluster, "alone")
    assert (answer.code, answer.body["status"]) == (201, "Success")
    seen = cluster.history("Pod", since, lambda event: event.type == "DELETED")
    assert any(event.object["metadata"].get("deletionGracePeriodSeconds") == 7 for event in seen)
    answer = evict(cluster, "alone")
    assert (answer.code, answer.reason, answer.message) == (404, "NotFound", 'pods "alone" not found')


def test_an_eviction_takes_delete_options(cluster: Cluster) -> None:
    bare_pod(cluster, spec=pod_spec() | {"terminationGracePeriodSeconds": 7})
    uid = cluster.get("Pod", "alone")["metadata"]["uid"]
    wrong = evict(cluster, "alone", deleteOptions={"preconditions": {"uid": "another"}})
    assert (wrong.code, wrong.reason) == (409, "Conflict")
    since = cluster.now("Pod")
    options = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
    assert evict(cluster, "alone", deleteOptions=options).code == 201
    cluster.history("Pod", since, lambda event: event.type == "DELETED")


@pytest.mark.parametrize(
    ("spec", "healthy", "allowed"),
    [
        ({"minAvailable": 2}, 2, 1),
        ({"minAvailable": "50%"}, 2, 1),
        ({"minAvailable": "100%"}, 3, 0),
        ({"maxUnavailable": 1}, 2, 1),
        ({"maxUnavailable": "34%"}, 1, 2),
        ({"maxUnavailable": 0}, 3, 0),
    ],
    ids=lambda value: "=".join(map(str, *value.items())) if isinstance(value, dict) else "",
)
def test_numbers_and_percentages_of_three_pods(cluster: Cluster, spec: Object, healthy: int, allowed: int) -> None:
    """Percentages are rounded up, of what must be there and of what may be missing."""
    web(cluster, 3)
    budget(cluster, **spec)
    await_budget(cluster, desiredHealthy=healthy, disruptionsAllowed=allowed, expectedPods=3, currentHealthy=3)


@pytest.mark.since(1, 21)
def test_a_condition_says_whether_disruptions_are_allowed(cluster: Cluster) -> None:
    web(cluster, 2)
    budget(cluster, minAvailable=1)
    found = condition(await_budget(cluster, disruptionsAllowed=1), "DisruptionAllowed")
    assert (found["status"], found["reason"]) == ("True", "SufficientPods")


def test_what_a_budget_allows_is_evicted_and_counted(cluster: Cluster) -> None:
    first, second = web(cluster, 2)
    budget(cluster, minAvailable=1)
    await_budget(cluster, disruptionsAllowed=1)
    since = cluster.now("PodDisruptionBudget")
    assert evict(cluster, first).code == 201
    path = cluster.path("PodDisruptionBudget")
    with cluster.server.watch(f"{path}?resourceVersion={since}") as watch:
        taken = watch.next().object["status"]
    assert taken["disruptionsAllowed"] == 0
    assert taken["disruptedPods"].keys() == {first}
    until(lambda: first not in names(cluster.every("Pod")))
    assert second in names(cluster.await_pods(2, "app=web"))
    status = await_budget(cluster, disruptionsAllowed=1, currentHealthy=2)["status"]
    assert not status.get("disruptedPods")


def test_what_a_budget_forbids_is_refused_with_its_numbers(cluster: Cluster) -> None:
    """What drain and the driver manager wait for, and what people read."""
    first, _ = web(cluster, 2)
    budget(cluster, minAvailable=2)
    await_budget(cluster, currentHealthy=2, disruptionsAllowed=0)
    answer = evict(cluster, first)
    assert (answer.code, answer.reason) == (429, "TooManyRequests")
    assert answer.message == "Cannot evict pod as it would violate the pod's disruption budget."
    message = "The disruption budget budget needs 2 healthy pods and has 2 currently"
    assert answer.causes == [{"reason": "DisruptionBudget", "message": message}]
    assert not cluster.get("Pod", first)["metadata"].get("deletionTimestamp")


def test_a_pod_under_two_budgets_cannot_be_evicted(cluster: Cluster) -> None:
    first, _ = web(cluster, 2)
    budget(cluster, "one", minAvailable=1)
    budget(cluster, "two", minAvailable=1)
    await_budget(cluster, "two", disruptionsAllowed=1)
    answer = evict(cluster, first)
    assert (answer.code, answer.reason) == (500, "")
    assert answer.message == (
        "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
    )


def test_a_pod_that_serves_nothing_is_evicted_against_any_budget(cluster: Cluster) -> None:
    """One that has not started, and one that has ended."""
    labels = {"labels": {"app": "web"}}
    cluster.create("Pod", "waits", metadata=labels, spec=pod_spec(nodeSelector={cluster.mark: "nowhere"}))
    cluster.create("Pod", "done", metadata=labels, spec=pod_spec(container("main", "true"), restartPolicy="Never"))
    cluster.await_("Pod", "done", lambda one: one["status"]["phase"] == "Succeeded")
    budget(cluster, minAvailable=1)
    for name in ("waits", "done"):
        assert evict(cluster, name).code == 201
        cluster.await_gone("Pod", name)


def test_an_unready_pod_counts_while_the_budget_is_not_met(cluster: Cluster) -> None:
    """Once it is met, as of 1.23, such a pod may go."""
    bare_pod(cluster, spec=pod_spec(unready()))
    budget(cluster, minAvailable=1)
    await_budget(cluster, expectedPods=1, currentHealthy=0, desiredHealthy=1, disruptionsAllowed=0)
    answer = evict(cluster, "alone")
    assert answer.code == 429
    assert answer.causes[0]["message"] == "The disruption budget budget needs 1 healthy pods and has 0 currently"
    cluster.create("Deployment", "web", spec=workload("web", replicas=1))
    await_budget(cluster, currentHealthy=1, desiredHealthy=1, disruptionsAllowed=0)
    if cluster.server.at_least(1, 23):
        assert evict(cluster, "alone").code == 201


def test_a_budget_follows_the_replicas_of_its_deployment(cluster: Cluster) -> None:
    """Without pods it allows nothing."""
    budget(cluster, maxUnavailable=1)
    await_budget(cluster, expectedPods=0, currentHealthy=0, disruptionsAllowed=0)
    web(cluster, 2)
    await_budget(cluster, expectedPods=2, desiredHealthy=1)
    cluster.patch("Deployment", "web", {"spec": {"replicas": 3}})
    await_budget(cluster, expectedPods=3, desiredHealthy=2, currentHealthy=3, disruptionsAllowed=1)


def test_a_budget_counts_a_deployment_once_while_it_rolls(cluster: Cluster) -> None:
    """Two ReplicaSets have pods then, and only the Deployment knows how many there should be."""
    web(cluster, 2)
    change = {"spec": {"template": {"spec": {"containers": [unready()]}}}}
    cluster.patch("Deployment", "web", change)
    cluster.await_pods(3, condition=lambda pod: pod["status"]["phase"] == "Running")
    budget(cluster, maxUnavailable=1)
    await_budget(cluster, expectedPods=2, desiredHealthy=1, currentHealthy=2, disruptionsAllowed=1)


def test_a_share_of_a_daemonset_is_never_allowed(cluster: Cluster) -> None:
    """It has no replicas to count; an event says so. A number that must be there is fine."""
    cluster.create("DaemonSet", "web", spec=workload("web"))
    pods = cluster.await_pods(3)
    spec = {"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 1}
    cluster.create("PodDisruptionBudget", "share", spec=spec)
    event = cluster.await_event("CalculateExpectedPodCountFailed", "share")
    assert event["type"] == "Warning"
    assert event["message"].startswith("Failed to calculate the number of expected pods: ")
    answer = evict(cluster, pods[0]["metadata"]["name"])
    assert (answer.code, answer.reason) == (429, "TooManyRequests")
    cluster.delete("PodDisruptionBudget", "share")
    budget(cluster, minAvailable=2)
    await_budget(cluster, expectedPods=3, currentHealthy=3, disruptionsAllowed=1)
    assert evict(cluster, pods[0]["metadata"]["name"]).code == 201
