from __future__ import annotations

import json

import pytest

from tests.contract.client import JSON, YAML, Server


def test_the_version_names_release_and_platform(server: Server) -> None:
    told = server.get("/version")
    assert told["gitVersion"].startswith("v1.")
    assert {"major", "minor", "gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler", "platform"} <= {*told}


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz"])
def test_health_is_the_word_ok(server: Server, path: str) -> None:
    answer = server.ask("GET", path)
    assert (answer.code, answer.body) == (200, "ok")
    assert answer.headers["Content-Type"].startswith("text/plain")


def test_the_openapi_document_of_version_2_describes_kinds(server: Server) -> None:
    answer = server.ask("GET", "/openapi/v2")
    found = json.loads(answer.body) if isinstance(answer.body, str) else answer.body
    assert found["swagger"] == "2.0"
    assert "/api/v1/namespaces/{namespace}/pods" in found["paths"]


@pytest.mark.since(1, 27)
def test_the_openapi_document_of_version_3_comes_group_by_group(server: Server) -> None:
    """Newer servers call it text."""
    found, of_apps = (server.get(f"/openapi/v3{path}") for path in ("", "/apis/apps/v1"))
    assert "apis/apps/v1" in (json.loads(found) if isinstance(found, str) else found)["paths"]
    assert "components" in of_apps


def test_answers_are_json_by_default(server: Server) -> None:
    answer = server.ask("GET", "/api/v1/namespaces/default", accept="*/*")
    assert answer.headers["Content-Type"] == JSON
    assert answer.body["kind"] == "Namespace"


def test_an_unknown_form_of_an_answer_is_not_acceptable(server: Server) -> None:
    answer = server.ask("GET", "/api/v1/namespaces/default", accept="text/html")
    assert (answer.code, answer.reason) == (406, "NotAcceptable")


def test_the_first_form_that_the_server_knows_is_taken(server: Server) -> None:
    answer = server.ask("GET", "/api/v1/namespaces/default", accept="text/html, application/json;q=0.5")
    assert answer.headers["Content-Type"] == JSON


def test_bodies_may_be_yaml(server: Server, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    body = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: one\ndata:\n  when: '2026-01-01'\n"
    answer = server.ask("POST", path, body, YAML)
    assert (answer.code, answer.body["data"]) == (201, {"when": "2026-01-01"})


def test_a_body_of_an_unknown_type_is_refused(server: Server, namespace: str) -> None:
    answer = server.ask("POST", f"/api/v1/namespaces/{namespace}/configmaps", "hello", "text/plain")
    assert (answer.code, answer.reason) == (415, "UnsupportedMediaType")
    accepted = "the body of the request was in an unknown format - accepted media types include: application/json"
    assert answer.message.startswith(accepted)


@pytest.mark.parametrize("body", ["{", "[]", '"text"'])
def test_a_body_that_is_no_object_is_a_bad_request(server: Server, namespace: str, body: str) -> None:
    answer = server.ask("POST", f"/api/v1/namespaces/{namespace}/configmaps", body)
    assert (answer.code, answer.reason) == (400, "BadRequest")


def test_no_body_is_an_object_without_anything(server: Server, namespace: str) -> None:
    answer = server.ask("POST", f"/api/v1/namespaces/{namespace}/configmaps", "null")
    assert (answer.code, answer.reason) == (422, "Invalid")


def test_a_body_that_is_too_large_is_refused(server: Server, namespace: str) -> None:
    big = {"metadata": {"name": "big"}, "data": {"k": "x" * 4 * 1024 * 1024}}
    answer = server.ask("POST", f"/api/v1/namespaces/{namespace}/configmaps", big)
    assert (answer.code, answer.reason) == (413, "RequestEntityTooLarge")


def test_a_configmap_of_more_than_a_megabyte_is_invalid(server: Server, namespace: str) -> None:
    big = {"metadata": {"name": "big"}, "data": {"k": "x" * (1024 * 1024 + 1)}}
    answer = server.ask("POST", f"/api/v1/namespaces/{namespace}/configmaps", big)
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert all(text in answer.message for text in ("Too long: ", "1048576"))


@pytest.mark.parametrize(
    ("verb", "path"),
    [
        ("POST", "/api/v1/namespaces/default"),
        ("PUT", "/api/v1/namespaces/default/configmaps"),
        ("PATCH", "/api/v1/namespaces/default/configmaps"),
        ("DELETE", "/api/v1/namespaces/default/pods/x/log"),
    ],
)
def test_a_verb_that_a_resource_has_not_is_not_allowed(server: Server, verb: str, path: str) -> None:
    answer = server.ask(verb, path, {})
    assert (answer.code, answer.reason) == (405, "MethodNotAllowed")
    assert answer.message == "the server does not allow this method on the requested resource"
