"""What the sandbox has beyond tests/contract: first objects, defaults, addresses, and Events in both groups."""

from __future__ import annotations

import pytest

from gpu_provision.sandbox.apiserver.status import StatusError
from tests.sandbox.apiserver.conftest import POD, Cluster

PODS = "api/v1/namespaces/default/pods"


def test_every_cluster_has_its_first_objects(cluster: Cluster) -> None:
    """Namespaces with their furniture, priority classes, the Service of the API server."""
    for name in ("default", "kube-system", "kube-public", "kube-node-lease"):
        assert cluster.get(f"api/v1/namespaces/{name}")["status"]["phase"] == "Active"
        assert cluster.get(f"api/v1/namespaces/{name}/serviceaccounts/default")
        assert cluster.get(f"api/v1/namespaces/{name}/configmaps/kube-root-ca.crt")["data"]
    assert cluster.get("apis/scheduling.k8s.io/v1/priorityclasses/system-node-critical")["value"] == 2000001000
    assert cluster.get("api/v1/namespaces/default/services/kubernetes")["spec"]["clusterIP"] == "10.96.0.1"


def test_a_pod_gets_the_defaults_that_clients_rely_on(cluster: Cluster) -> None:
    """The specification, the priority, the tolerations and the first status."""
    cluster.create(
        PODS, "one", spec={"containers": [{"name": "main", "image": "app", "resources": {"limits": {"cpu": "1"}}}]}
    )
    pod = cluster.get(f"{PODS}/one")
    [container] = pod["spec"]["containers"]
    assert (container["imagePullPolicy"], container["resources"]["requests"]) == ("Always", {"cpu": "1"})
    assert (pod["spec"]["restartPolicy"], pod["spec"]["serviceAccountName"]) == ("Always", "default")
    assert {row["key"] for row in pod["spec"]["tolerations"]} == {
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    }
    assert pod["status"] == {"phase": "Pending", "qosClass": "Burstable"}


def test_a_runtime_class_places_its_pods(cluster: Cluster) -> None:
    """Node selector and tolerations of the class are added to the pod."""
    scheduling = {"nodeSelector": {"gpu": "true"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]}
    cluster.create("apis/node.k8s.io/v1/runtimeclasses", "nvidia", handler="nvidia", scheduling=scheduling)
    pod = cluster.create(PODS, "one", spec={**POD, "runtimeClassName": "nvidia"})
    assert pod["spec"]["nodeSelector"] == {"gpu": "true"}
    assert {"key": "gpu", "operator": "Exists"} in pod["spec"]["tolerations"]


def test_services_get_addresses(cluster: Cluster) -> None:
    """A cluster IP of its own, a node port where asked; a taken node port is refused."""
    path = "api/v1/namespaces/default/services"
    first = cluster.create(path, "a", spec={"ports": [{"port": 80}]})
    second = cluster.create(path, "b", spec={"type": "NodePort", "ports": [{"port": 80, "nodePort": 30001}]})
    assert first["spec"]["clusterIP"] != second["spec"]["clusterIP"]
    assert first["spec"]["ports"] == [{"port": 80, "protocol": "TCP", "targetPort": 80}]
    with pytest.raises(StatusError, match="provided port is already allocated"):
        cluster.create(path, "c", spec={"type": "NodePort", "ports": [{"port": 80, "nodePort": 30001}]})


def test_events_are_the_same_objects_in_both_of_their_groups(cluster: Cluster) -> None:
    """Written through core/v1, read through events.k8s.io/v1 under its field names."""
    about = {"kind": "Pod", "name": "x", "namespace": "default"}
    cluster.create("api/v1/namespaces/default/events", "e1", involvedObject=about, message="hello", count=2)
    event = cluster.get("apis/events.k8s.io/v1/namespaces/default/events/e1")
    assert (event["note"], event["regarding"]["name"], event["deprecatedCount"]) == ("hello", "x", 2)
    assert event["apiVersion"] == "events.k8s.io/v1"
