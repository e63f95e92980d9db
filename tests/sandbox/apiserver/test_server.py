"""The running server: TLS, tokens, restarts, the request log, forms of bodies and answers."""

from __future__ import annotations

import json
import ssl
import stat
from collections.abc import Callable

import pytest
import yaml

from gpu_provision.sandbox.apiserver.auth import Rule
from gpu_provision.sandbox.apiserver.requestlog import requests, writes
from tests.sandbox.apiserver.conftest import POD, Running, workload

CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"


def test_only_the_private_authority_vouches_for_the_server(server: Running) -> None:
    """A client that does not know it refuses to talk."""
    connection = server.connection()
    connection._context = ssl.create_default_context()  # type: ignore[attr-defined]
    with pytest.raises(ssl.SSLCertVerificationError):
        connection.request("GET", "/version")


def test_the_kubeconfig_is_for_its_owner_only(server: Running) -> None:
    """It holds a token."""
    path = server.server.kubeconfig
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    config = yaml.safe_load(path.read_text())
    assert config["current-context"] == "sandbox"
    assert config["clusters"][0]["cluster"]["server"] == f"https://127.0.0.1:{server.server.port}"


def test_a_second_user_can_be_forbidden_things(start: Callable[..., Running]) -> None:
    """403 names user, verb, resource and scope; also to somebody whom RBAC allows everything."""
    running = start([Rule("bob", verbs=("create",), resources=("pods",))])
    token = running.server.tokens.add("bob")
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    bob = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "bob"}
    binding = {"metadata": {"name": "bob"}, "roleRef": role, "subjects": [bob]}
    running.ask("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)
    answer = running.ask("POST", PODS, {"metadata": {"name": "x"}, "spec": POD}, token=token)
    assert (answer.code, answer.body["message"]) == (
        403,
        'pods is forbidden: User "bob" cannot create resource "pods" in API group "" in the namespace "default"',
    )
    assert running.ask("GET", PODS, token=token).code == 200
    assert running.ask("POST", PODS, {"metadata": {"name": "x"}, "spec": POD}).code == 201


def test_a_restart_keeps_port_token_and_objects(start: Callable[..., Running]) -> None:
    """The same kubeconfig goes on working."""
    first = start()
    port, text = first.server.port, first.server.kubeconfig.read_text()
    assert first.ask("POST", CONFIGMAPS, {"metadata": {"name": "kept"}, "data": {"a": "b"}}).code == 201
    first.stop()
    second = start()
    assert (second.server.port, second.server.kubeconfig.read_text()) == (port, text)
    assert second.ask("GET", f"{CONFIGMAPS}/kept").body["data"] == {"a": "b"}


def test_watches_that_nobody_ends_do_not_hold_up_the_end(
    start: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests under way are waited for; a watch would go on for half an hour."""
    monkeypatch.setattr("gpu_provision.sandbox.apiserver.server._CLOSING_SECONDS", 3600)
    running = start()
    connection = running.connection()
    headers = {"Authorization": f"Bearer {running.server.tokens.token()}"}
    connection.request("GET", f"{CONFIGMAPS}?watch=1", headers=headers)
    assert connection.getresponse().status == 200
    running.stop()
    connection.close()


def test_the_request_log_tells_writes_from_reads_and_dry_runs(server: Running) -> None:
    """Questions, such as access reviews, are no writes either."""
    path = server.server.request_log
    before = len(writes(path))
    server.ask("POST", f"{CONFIGMAPS}?dryRun=All", {"metadata": {"name": "dry"}})
    server.ask("GET", CONFIGMAPS, agent="reader/1.0")
    server.ask("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", {"spec": {}})
    assert len(writes(path)) == before
    server.ask("POST", CONFIGMAPS, {"metadata": {"name": "wet"}})
    [write] = writes(path)[before:]
    assert (write.verb, write.path, write.code, write.user) == ("POST", CONFIGMAPS, 201, "sandbox-admin")
    assert any(request.agent == "reader/1.0" and request.code == 200 for request in requests(path))
    assert writes(path, since="9999") == []


def test_yaml_bodies_are_read(server: Running) -> None:
    """Timestamps stay text."""
    body = b"metadata: {name: from-yaml, annotations: {when: 2026-01-01T00:00:00Z}}\ndata: {a: b}\n"
    answer = server.ask("POST", CONFIGMAPS, body, kind="application/yaml")
    assert (answer.code, answer.body["metadata"]["annotations"]) == (201, {"when": "2026-01-01T00:00:00Z"})


@pytest.mark.parametrize(
    ("method", "path", "body", "kind", "code"),
    [
        ("POST", CONFIGMAPS, b"{", "application/json", 400),
        ("POST", CONFIGMAPS, b"[]", "application/json", 400),
        ("POST", CONFIGMAPS, b"a=b", "text/plain", 415),
        ("POST", CONFIGMAPS, b"nothing", "application/vnd.kubernetes.protobuf", 400),
        ("PATCH", f"{CONFIGMAPS}/kube-root-ca.crt", b"{}", "application/json", 415),
        ("PATCH", f"{CONFIGMAPS}/kube-root-ca.crt", b"x", "application/apply-patch+cbor", 415),
        ("PATCH", f"{CONFIGMAPS}/kube-root-ca.crt", b"{}", "application/apply-patch+yaml", 422),
        ("PUT", CONFIGMAPS, b"{}", "application/json", 405),
        ("GET", "/apis/apps/v1/nothing", None, "", 404),
        ("GET", f"{CONFIGMAPS}/none", None, "", 404),
        ("GET", f"{CONFIGMAPS}?labelSelector=a+b", None, "", 400),
        ("GET", f"{CONFIGMAPS}?resourceVersion=99999999", None, "", 504),
        ("GET", f"{CONFIGMAPS}?continue=nonsense", None, "", 400),
        ("POST", f"{CONFIGMAPS}?dryRun=Some", b'{"metadata":{"name":"x"}}', "application/json", 422),
        ("DELETE", f"{CONFIGMAPS}/kube-root-ca.crt?propagationPolicy=Maybe", None, "", 422),
    ],
)
def test_what_makes_no_sense_is_refused(  # noqa: PLR0913, PLR0917 - the columns of the table
    server: Running, method: str, path: str, body: bytes | None, kind: str, code: int
) -> None:
    """Every refusal is a Status object."""
    answer = server.ask(method, path, body, kind=kind)
    assert (answer.code, answer.body["kind"], answer.body["code"]) == (code, "Status", code)


def test_a_path_outside_of_the_api_is_plainly_not_found(server: Running) -> None:
    """As a real server says it, without a Status."""
    for path in ("/nothing", "/apis/none.example.org/v1"):
        answer = server.ask("GET", path)
        assert (answer.code, answer.body) == (404, "404 page not found\n")


def test_curl_gets_json_that_people_can_read(server: Running) -> None:
    """Other clients get it compact."""
    assert "\n  " in server.ask("GET", "/version", agent="curl/8.0").body


def test_scale_is_a_small_object_of_its_own(server: Running) -> None:
    """Reading and writing it, with the version checked."""
    path = "/apis/apps/v1/namespaces/default/deployments"
    assert server.ask("POST", path, {"metadata": {"name": "scaled"}, "spec": workload()}).code == 201
    scale = server.ask("GET", f"{path}/scaled/scale").body
    assert (scale["kind"], scale["spec"]["replicas"], scale["status"]["selector"]) == ("Scale", 1, "app=demo")
    changed = server.ask("PUT", f"{path}/scaled/scale", {**scale, "spec": {"replicas": 3}})
    assert (changed.code, changed.body["spec"]["replicas"]) == (200, 3)
    assert server.ask("PUT", f"{path}/scaled/scale", {**scale, "spec": {"replicas": 4}}).code == 409
    kind = "application/merge-patch+json"
    assert server.ask("PATCH", f"{path}/scaled/scale", {"spec": {"replicas": -1}}, kind=kind).code == 422
    assert server.ask("GET", f"{path}/scaled").body["spec"]["replicas"] == 3


def test_binding_a_pod_twice_is_a_conflict(server: Running) -> None:
    """The condition PodScheduled says that it is bound."""
    server.ask("POST", PODS, {"metadata": {"name": "bind"}, "spec": POD})
    body = {"metadata": {"name": "bind"}, "target": {"kind": "Node", "name": "n1"}}
    assert server.ask("POST", f"{PODS}/bind/binding", body).code == 201
    pod = server.ask("GET", f"{PODS}/bind").body
    assert (pod["spec"]["nodeName"], pod["status"]["conditions"][0]["type"]) == ("n1", "PodScheduled")
    assert server.ask("POST", "/api/v1/namespaces/default/bindings", body).code == 409


def test_a_pod_without_processes_says_so(server: Running) -> None:
    """Exec, attach and portforward are refused with a reason."""
    server.ask("POST", PODS, {"metadata": {"name": "empty"}, "spec": POD})
    for what in ("exec", "attach", "portforward"):
        answer = server.ask("POST", f"{PODS}/empty/{what}")
        assert (answer.code, f"{what} is not possible" in answer.body["message"]) == (501, True)


def test_the_request_log_holds_no_secrets(server: Running) -> None:
    """Neither tokens nor secrets stand in the request log."""
    body = {"metadata": {"name": "hidden"}, "stringData": {"key": "tr0ub4dor"}}
    answer = server.ask("POST", "/api/v1/namespaces/default/secrets", body)
    assert answer.body["data"]["key"] == "dHIwdWI0ZG9y"
    text = server.server.request_log.read_text()
    assert "tr0ub4dor" not in text
    assert server.server.tokens.token() not in text
    assert json.loads(text.splitlines()[-1])["path"].endswith("/secrets")
