from __future__ import annotations

import pytest

from tests.contract.api.samples import apps, configmap, core, workload
from tests.contract.client import APPLY, Object, Server

STRICT = (1, 25)
"""Before this version a server drops what it does not know, whatever it is asked."""


def odd() -> Object:
    body = workload("DaemonSet", "ds")
    body["spec"]["unknownField"] = 1
    body["spec"]["template"]["spec"]["containers"] = [{"name": "main", "image": "example.org/a:1", "imagee": "b"}]
    return body


def test_unknown_fields_are_dropped_by_default(server: Server, namespace: str) -> None:
    made = server.make(apps(namespace, "daemonsets"), odd())
    assert "unknownField" not in made["spec"]
    assert "imagee" not in made["spec"]["template"]["spec"]["containers"][0]


@pytest.mark.parametrize("mode", ["Ignore", "Warn", "Strict"])
def test_a_body_without_unknown_fields_passes_in_every_mode(server: Server, namespace: str, mode: str) -> None:
    """Older servers do not know the parameter and take it."""
    answer = server.ask("POST", core(namespace, "configmaps") + f"?fieldValidation={mode}", configmap("one"))
    assert answer.code == 201
    assert "Warning" not in answer.headers


def test_a_strict_write_of_unknown_fields_is_refused(server: Server, namespace: str) -> None:
    answer = server.ask("POST", apps(namespace, "daemonsets") + "?fieldValidation=Strict", odd())
    if not server.at_least(*STRICT):
        assert answer.code == 201
        return
    assert (answer.code, answer.reason) == (400, "BadRequest")
    assert 'unknown field "spec.unknownField"' in answer.message
    assert 'unknown field "spec.template.spec.containers[0].imagee"' in answer.message


def test_a_write_of_unknown_fields_is_warned(server: Server, namespace: str) -> None:
    answer = server.ask("POST", apps(namespace, "daemonsets") + "?fieldValidation=Warn", odd())
    assert answer.code == 201
    warned = "unknown field" in answer.headers.get("Warning", "")
    assert warned == server.at_least(*STRICT)


def test_an_apply_of_unknown_fields_is_refused(server: Server, namespace: str) -> None:
    """By the type of the object, whatever is asked for; a real server calls it an error of its own, also 1.36."""
    path = apps(namespace, "daemonsets", "ds") + "?fieldManager=me&fieldValidation=Strict"
    answer = server.ask("PATCH", path, odd(), APPLY)
    assert answer.code in (400, 500), answer
    assert "unknownField" in answer.message


@pytest.mark.since(*STRICT)
def test_an_unknown_mode_is_refused(server: Server, namespace: str) -> None:
    answer = server.ask("POST", core(namespace, "configmaps") + "?fieldValidation=Maybe", configmap("one"))
    assert answer.code in (400, 422)
    assert "fieldValidation" in answer.message


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"data": {"k": 1}}, "cannot be handled as a ConfigMap"),
        ({"metadata": {"name": "one", "labels": {"a": True}}}, "cannot be handled as a ConfigMap"),
        ({"data": ["k"]}, "cannot be handled as a ConfigMap"),
    ],
)
def test_a_value_of_another_type_is_a_bad_request(server: Server, namespace: str, body: Object, text: str) -> None:
    answer = server.ask("POST", core(namespace, "configmaps"), {**configmap("one"), **body})
    assert (answer.code, answer.reason) == (400, "BadRequest")
    assert text in answer.message


def test_text_for_a_number_is_a_bad_request(server: Server, namespace: str) -> None:
    body = workload("Deployment", "d", replicas="2")
    answer = server.ask("POST", apps(namespace, "deployments"), body)
    assert (answer.code, answer.reason) == (400, "BadRequest")


@pytest.mark.parametrize("labels", [{"a": "-"}, {"-": "a"}, {"a b": "c"}, {"a": "x" * 64}])
def test_labels_have_to_be_well_formed(server: Server, namespace: str, labels: dict[str, str]) -> None:
    answer = server.ask("POST", core(namespace, "configmaps"), configmap("one", labels=labels))
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert answer.causes[0]["field"] == "metadata.labels"


def test_a_workload_selects_its_own_pods(server: Server, namespace: str) -> None:
    body = workload("DaemonSet", "ds", selector={"matchLabels": {"app": "other"}})
    answer = server.ask("POST", apps(namespace, "daemonsets"), body)
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert "`selector` does not match template `labels`" in answer.message


def test_a_workload_needs_containers(server: Server, namespace: str) -> None:
    body = workload("DaemonSet", "ds")
    del body["spec"]["template"]["spec"]
    answer = server.ask("POST", apps(namespace, "daemonsets"), body)
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert "spec.template.spec.containers" in [cause["field"] for cause in answer.causes]


def test_a_workload_restarts_its_pods_always(server: Server, namespace: str) -> None:
    body = workload("DaemonSet", "ds")
    body["spec"]["template"]["spec"]["restartPolicy"] = "Never"
    answer = server.ask("POST", apps(namespace, "daemonsets"), body)
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert "spec.template.spec.restartPolicy" in [cause["field"] for cause in answer.causes]
