"""Services: the endpoints of pods that are ready, in both forms."""

from __future__ import annotations

from tests.contract.client import Object, until
from tests.contract.controllers.cluster import Cluster, is_ready
from tests.contract.controllers.manifests import container, pod_spec, unready


def service(cluster: Cluster, **spec: object) -> None:
    """Create a Service of the pods ``app=web``."""
    ports = [{"name": "metrics", "port": 9400, "targetPort": "http"}]
    cluster.create("Service", "web", spec={"selector": {"app": "web"}, "ports": ports, **spec})


def serving(cluster: Cluster, name: str, *containers: Object) -> Object:
    """Create a pod that serves, and return it once it has an address."""
    ports = [{"name": "http", "containerPort": 8080}]
    parts = [{**one, "ports": ports} for one in containers or (container(),)]
    cluster.create("Pod", name, metadata={"labels": {"app": "web"}}, spec=pod_spec(*parts))
    return cluster.await_("Pod", name, lambda pod: pod["status"].get("podIP") and pod["status"]["phase"] == "Running")


def subsets(cluster: Cluster) -> list[Object]:
    """Return the subsets of the Service's Endpoints."""
    return list(cluster.find("Endpoints", "web").get("subsets") or ())


def test_a_ready_pod_is_an_endpoint_at_its_named_port(cluster: Cluster) -> None:
    service(cluster)
    pod = serving(cluster, "one")
    cluster.await_("Pod", "one", is_ready)
    (found,) = until(lambda: [one for one in subsets(cluster) if one.get("addresses")])
    assert found["ports"] == [{"name": "metrics", "port": 8080, "protocol": "TCP"}]
    (address,) = found["addresses"]
    assert (address["ip"], address["nodeName"]) == (pod["status"]["podIP"], pod["spec"]["nodeName"])
    target = {"kind": "Pod", "name": "one", "namespace": cluster.namespace, "uid": pod["metadata"]["uid"]}
    assert address["targetRef"].items() >= target.items()


def test_a_pod_that_is_not_ready_is_listed_apart(cluster: Cluster) -> None:
    service(cluster)
    pod = serving(cluster, "one", unready())
    (found,) = until(lambda: subsets(cluster))
    assert "addresses" not in found
    assert [one["ip"] for one in found["notReadyAddresses"]] == [pod["status"]["podIP"]]


def test_slices_say_the_same(cluster: Cluster) -> None:
    service(cluster)
    pod = serving(cluster, "one")
    ready = until(lambda: [one for one in _endpoints(cluster) if one["conditions"]["ready"]])
    assert [one["addresses"] for one in ready] == [[pod["status"]["podIP"]]]
    (slice_,) = cluster.every("EndpointSlice", "kubernetes.io/service-name=web")
    assert slice_["addressType"] == "IPv4"
    assert slice_["ports"] == [{"name": "metrics", "port": 8080, "protocol": "TCP"}]
    assert slice_["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"] == "endpointslice-controller.k8s.io"
    assert slice_["metadata"]["ownerReferences"][0]["kind"] == "Service"


def _endpoints(cluster: Cluster) -> list[Object]:
    slices = cluster.every("EndpointSlice", "kubernetes.io/service-name=web")
    return [one for found in slices for one in found.get("endpoints") or ()]


def test_a_pod_that_goes_is_no_endpoint(cluster: Cluster) -> None:
    service(cluster)
    serving(cluster, "one")
    until(lambda: subsets(cluster))
    cluster.delete("Pod", "one")
    until(lambda: not subsets(cluster) and not _endpoints(cluster))


def test_a_label_decides_who_belongs(cluster: Cluster) -> None:
    service(cluster)
    serving(cluster, "one")
    until(lambda: subsets(cluster))
    cluster.patch("Pod", "one", {"metadata": {"labels": {"app": "other"}}})
    until(lambda: not subsets(cluster))


def test_the_endpoints_go_with_the_service(cluster: Cluster) -> None:
    service(cluster)
    until(lambda: not cluster.gone("Endpoints", "web"))
    cluster.delete("Service", "web")
    cluster.await_gone("Endpoints", "web")
    until(lambda: not cluster.every("EndpointSlice"))
