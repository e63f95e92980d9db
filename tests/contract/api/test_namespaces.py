from __future__ import annotations

import pytest

from tests.contract.api.samples import configmap, core
from tests.contract.client import Server, until

pytestmark = pytest.mark.usefixtures("_controllers")

PATH = "/api/v1/namespaces"


def test_a_namespace_is_active_and_finalized_by_kubernetes(server: Server, namespace: str) -> None:
    found = server.get(f"{PATH}/{namespace}")
    assert found["status"]["phase"] == "Active"
    assert found["spec"]["finalizers"] == ["kubernetes"]


def test_a_namespace_is_labeled_with_its_name_since_1_21(server: Server, namespace: str) -> None:
    labels = server.get(f"{PATH}/{namespace}")["metadata"].get("labels", {})
    assert labels == ({"kubernetes.io/metadata.name": namespace} if server.at_least(1, 21) else {})


def test_a_namespace_gets_a_service_account(server: Server, namespace: str) -> None:
    until(lambda: not server.is_gone(core(namespace, "serviceaccounts", "default")))


def test_a_namespace_gets_the_clusters_certificate(server: Server, namespace: str) -> None:
    path = core(namespace, "configmaps", "kube-root-ca.crt")
    until(lambda: not server.is_gone(path))
    assert "BEGIN CERTIFICATE" in server.get(path)["data"]["ca.crt"]


def test_the_certificate_comes_back_when_it_is_deleted(server: Server, namespace: str) -> None:
    path = core(namespace, "configmaps", "kube-root-ca.crt")
    until(lambda: not server.is_gone(path))
    server.delete(path)
    until(lambda: not server.is_gone(path))


def test_the_service_account_comes_back_when_it_is_deleted(server: Server, namespace: str) -> None:
    path = core(namespace, "serviceaccounts", "default")
    server.delete(path)
    until(lambda: not server.is_gone(path))


def test_a_namespace_that_terminates_takes_nothing_new(server: Server, namespace: str) -> None:
    path = core(namespace, "configmaps", "one")
    server.make(core(namespace, "configmaps"), configmap("one", finalizers=["contract.example.org/hold"]))
    answer = server.ask("DELETE", f"{PATH}/{namespace}")
    assert answer.code in (200, 202)
    assert server.get(f"{PATH}/{namespace}")["status"]["phase"] == "Terminating"
    refused = server.ask("POST", core(namespace, "configmaps"), configmap("two"))
    assert (refused.code, refused.reason) == (403, "Forbidden")
    text = f"unable to create new content in namespace {namespace} because it is being terminated"
    assert refused.message == f'configmaps "two" is forbidden: {text}'
    assert refused.causes[0]["reason"] == "NamespaceTerminating"
    server.patch(path, {"metadata": {"finalizers": None}})
    until(lambda: server.is_gone(f"{PATH}/{namespace}"))


def test_a_namespace_goes_with_all_that_is_in_it(server: Server, namespace: str) -> None:
    server.make(core(namespace, "configmaps"), configmap("one"))
    server.delete(f"{PATH}/{namespace}")
    until(lambda: server.is_gone(f"{PATH}/{namespace}"))
    assert server.is_gone(core(namespace, "configmaps", "one"))


def test_the_namespaces_of_the_cluster_cannot_be_deleted(server: Server) -> None:
    for name in ("default", "kube-system", "kube-public"):
        answer = server.ask("DELETE", f"{PATH}/{name}")
        assert (answer.code, answer.reason) == (403, "Forbidden")
        assert answer.message == f'namespaces "{name}" is forbidden: this namespace may not be deleted'


def test_a_namespace_is_named_like_a_host(server: Server) -> None:
    answer = server.ask("POST", PATH, {"metadata": {"name": "Bad_Name"}})
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert "RFC 1123 label" in answer.message or "DNS-1123 label" in answer.message


def test_a_namespace_can_be_applied(server: Server, namespace: str) -> None:
    """The tool labels a namespace that it did not make."""
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": {"a": "b"}}}
    answer = server.apply(f"{PATH}/{namespace}", body, manager="me")
    assert (answer.code, answer.body["metadata"]["labels"]["a"]) == (200, "b")


def test_namespaces_are_selected_by_phase(server: Server, namespace: str) -> None:
    found = server.get(f"{PATH}?fieldSelector=status.phase%3DActive,metadata.name%3D{namespace}")
    assert len(found["items"]) == 1
