"""The end of a namespace: its contents first, and its conditions say what holds it back."""

from __future__ import annotations

from tests.contract.client import Object, until
from tests.contract.controllers.cluster import Cluster, condition
from tests.contract.controllers.manifests import container, pod_spec, workload

HELD = "contract.example/held"


def test_a_namespace_takes_its_contents_with_it(cluster: Cluster) -> None:
    """Its pods are ended as by any deletion, with their grace."""
    spec = pod_spec(container()) | {"terminationGracePeriodSeconds": 5}
    cluster.create("DaemonSet", "agent", spec=workload("agent", spec))
    cluster.create("ConfigMap", "notes", data={"a": "b"})
    cluster.await_pods(3)
    since = cluster.now("Pod")
    cluster.delete("Namespace", cluster.namespace)
    seen = cluster.history("Pod", since, lambda event: event.type == "DELETED")
    assert any(event.object["metadata"].get("deletionGracePeriodSeconds") == 5 for event in seen)
    cluster.await_gone("Namespace", cluster.namespace)
    assert not cluster.every("Pod")
    assert not cluster.every("DaemonSet")


def test_a_finalizer_inside_holds_it_and_is_named(cluster: Cluster) -> None:
    """Nothing new is made in it any more, and resources of a group are named with it."""
    cluster.create("ConfigMap", "notes", metadata={"finalizers": [HELD]})
    cluster.create("DaemonSet", "agent", metadata={"finalizers": [HELD]}, spec=workload("agent"))
    cluster.await_pods(3)
    cluster.delete("Namespace", cluster.namespace)
    until(lambda: not cluster.every("Pod"))
    told = {
        "NamespaceContentRemaining": ("SomeResourcesRemain", ("configmaps. has 1 ", "daemonsets.apps has 1 ")),
        "NamespaceFinalizersRemaining": ("SomeFinalizersRemain", (f"{HELD} in 2 resource instances",)),
    }

    def names_both(namespace: Object) -> bool:
        found = [(condition(namespace, kind), reason, texts) for kind, (reason, texts) in told.items()]
        return all(
            one.get("status") == "True" and one["reason"] == reason and all(text in one["message"] for text in texts)
            for one, reason, texts in found
        )

    namespace = cluster.await_("Namespace", cluster.namespace, names_both)
    assert namespace["status"]["phase"] == "Terminating"
    assert namespace["spec"]["finalizers"] == ["kubernetes"]
    answer = cluster.server.ask("POST", cluster.path("ConfigMap"), {"metadata": {"name": "late"}})
    assert (answer.code, answer.reason) == (403, "Forbidden")
    assert answer.causes[0]["reason"] == "NamespaceTerminating"
    for kind, name in (("ConfigMap", "notes"), ("DaemonSet", "agent")):
        cluster.patch(kind, name, {"metadata": {"finalizers": None}})
    cluster.await_gone("Namespace", cluster.namespace)
