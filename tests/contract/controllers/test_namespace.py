"""The end of a namespace: its contents first, and its conditions say what holds it back."""

from __future__ import annotations

from tests.contract.client import Object, until
from tests.contract.controllers.cluster import Cluster, condition, status_of
from tests.contract.controllers.manifests import container, pod_spec, workload

HELD = "contract.example/held"


def remaining(cluster: Cluster) -> Object:
    """Return the namespace once its conditions say that something is left."""
    return cluster.await_(
        "Namespace", cluster.namespace, lambda one: status_of(one, "NamespaceContentRemaining") == "True"
    )


def test_a_namespace_takes_its_contents_with_it(cluster: Cluster) -> None:
    cluster.create("DaemonSet", "agent", spec=workload("agent"))
    cluster.create("ConfigMap", "notes", data={"a": "b"})
    cluster.await_pods(3)
    cluster.delete("Namespace", cluster.namespace)
    cluster.await_gone("Namespace", cluster.namespace)
    assert not cluster.every("Pod")
    assert not cluster.every("DaemonSet")


def test_a_finalizer_inside_holds_it_and_is_named(cluster: Cluster) -> None:
    cluster.create("ConfigMap", "notes", metadata={"finalizers": [HELD]})
    cluster.delete("Namespace", cluster.namespace)
    namespace = remaining(cluster)
    assert namespace["status"]["phase"] == "Terminating"
    assert namespace["spec"]["finalizers"] == ["kubernetes"]
    assert (
        condition(namespace, "NamespaceContentRemaining").items()
        >= {
            "reason": "SomeResourcesRemain",
            "message": "Some resources are remaining: configmaps. has 1 resource instances",
        }.items()
    )
    assert (
        condition(namespace, "NamespaceFinalizersRemaining").items()
        >= {
            "status": "True",
            "reason": "SomeFinalizersRemain",
            "message": f"Some content in the namespace has finalizers remaining: {HELD} in 1 resource instances",
        }.items()
    )
    cluster.patch("ConfigMap", "notes", {"metadata": {"finalizers": None}})
    cluster.await_gone("Namespace", cluster.namespace)


def test_resources_of_a_group_are_named_with_it(cluster: Cluster) -> None:
    cluster.create("DaemonSet", "agent", metadata={"finalizers": [HELD]}, spec=workload("agent"))
    cluster.delete("Namespace", cluster.namespace)
    until(lambda: "daemonsets.apps has 1 resource instances" in _told(cluster))
    cluster.patch("DaemonSet", "agent", {"metadata": {"finalizers": None}})
    cluster.await_gone("Namespace", cluster.namespace)


def _told(cluster: Cluster) -> str:
    namespace = cluster.find("Namespace", cluster.namespace)
    return str(condition(namespace, "NamespaceContentRemaining").get("message", ""))


def test_pods_get_their_grace(cluster: Cluster) -> None:
    """They are ended as by any deletion, so a namespace waits for its pods."""
    spec = pod_spec(container()) | {"terminationGracePeriodSeconds": 5}
    cluster.create("Pod", "server", spec=spec)
    cluster.await_pods(1)
    since = cluster.now("Pod")
    cluster.delete("Namespace", cluster.namespace)
    seen = cluster.history("Pod", since, lambda event: event.type == "DELETED")
    assert any(event.object["metadata"].get("deletionGracePeriodSeconds") == 5 for event in seen)
    cluster.await_gone("Namespace", cluster.namespace)


def test_nothing_new_is_made_in_it_any_more(cluster: Cluster) -> None:
    """Not by controllers either: a DaemonSet that is held back makes no pods."""
    cluster.create("DaemonSet", "agent", metadata={"finalizers": [HELD]}, spec=workload("agent"))
    cluster.await_pods(3)
    cluster.delete("Namespace", cluster.namespace)
    until(lambda: not cluster.every("Pod"))
    answer = cluster.server.ask("POST", cluster.path("ConfigMap"), {"metadata": {"name": "late"}})
    assert (answer.code, answer.reason) == (403, "Forbidden")
    assert answer.causes[0]["reason"] == "NamespaceTerminating"
    cluster.patch("DaemonSet", "agent", {"metadata": {"finalizers": None}})
    cluster.await_gone("Namespace", cluster.namespace)


def test_a_new_namespace_is_furnished(cluster: Cluster) -> None:
    """A service account, and the authority of the API server for its pods."""
    assert cluster.get("ServiceAccount", "default")["metadata"]["name"] == "default"
    until(lambda: not cluster.gone("ConfigMap", "kube-root-ca.crt"))
    authority = cluster.get("ConfigMap", "kube-root-ca.crt")["data"]["ca.crt"]
    assert authority.startswith("-----BEGIN CERTIFICATE-----")
