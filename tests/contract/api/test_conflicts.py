from __future__ import annotations

import pytest

from tests.contract.api.samples import configmap, core
from tests.contract.client import APPLY, MERGE, Object, Server


@pytest.fixture
def made(server: Server, namespace: str) -> Object:
    """A ConfigMap that was changed after it was read."""
    before = server.make(core(namespace, "configmaps"), configmap("one", {"k": "v"}))
    server.patch(core(namespace, "configmaps", "one"), {"data": {"k": "w"}})
    return before


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def test_an_update_from_an_old_version_is_a_conflict(server: Server, namespace: str, made: Object) -> None:
    answer = server.ask("PUT", core(namespace, "configmaps", "one"), {**made, "data": {"k": "x"}})
    assert (answer.code, answer.reason) == (409, "Conflict")
    assert answer.message == f'Operation cannot be fulfilled on configmaps "one": {MODIFIED}'
    assert answer.body["details"] == {"name": "one", "kind": "configmaps"}


def test_an_update_without_a_version_wins(server: Server, namespace: str, made: Object) -> None:
    answer = server.ask("PUT", core(namespace, "configmaps", "one"), configmap("one", {"k": "x"}))
    assert (answer.code, answer.body["data"]) == (200, {"k": "x"})
    assert answer.body["metadata"]["uid"] == made["metadata"]["uid"]


def test_a_patch_with_an_old_version_is_a_conflict(server: Server, namespace: str, made: Object) -> None:
    body = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}, "data": {"k": "x"}}
    answer = server.ask("PATCH", core(namespace, "configmaps", "one"), body, MERGE)
    assert (answer.code, answer.reason) == (409, "Conflict")


def test_a_patch_with_the_present_version_passes(server: Server, namespace: str, made: Object) -> None:
    version = server.get(core(namespace, "configmaps", "one"))["metadata"]["resourceVersion"]
    assert version != made["metadata"]["resourceVersion"]
    body = {"metadata": {"resourceVersion": version}, "data": {"k": "x"}}
    assert server.ask("PATCH", core(namespace, "configmaps", "one"), body, MERGE).code == 200


def test_an_apply_with_an_old_version_is_a_conflict(server: Server, namespace: str, made: Object) -> None:
    """The tool undoes an edit by hand only at exactly the version it looked at."""
    old = made["metadata"]["resourceVersion"]
    body = configmap("one", {"k": "x"}, resourceVersion=old)
    query = "?fieldManager=me&force=true"
    answer = server.ask("PATCH", core(namespace, "configmaps", "one") + query, body, APPLY)
    assert (answer.code, answer.reason) == (409, "Conflict")
    assert MODIFIED in answer.message
    assert not answer.causes


def test_an_apply_with_the_version_of_a_gone_object_creates_it(server: Server, namespace: str) -> None:
    """Only a uid protects from that."""
    body = configmap("gone", {"k": "x"}, resourceVersion="1")
    answer = server.ask("PATCH", core(namespace, "configmaps", "gone") + "?fieldManager=me", body, APPLY)
    assert (answer.code, answer.body["data"]) == (201, {"k": "x"})


def test_an_apply_with_the_uid_of_a_gone_object_is_a_conflict(server: Server, namespace: str) -> None:
    body = configmap("gone", {"k": "x"}, uid="0e7a2e4e-5d6e-4c5e-8a53-2a4fb1e8d0a1")
    answer = server.ask("PATCH", core(namespace, "configmaps", "gone") + "?fieldManager=me", body, APPLY)
    assert (answer.code, answer.reason) == (409, "Conflict")
    assert "uid mismatch" in answer.message
    assert server.is_gone(core(namespace, "configmaps", "gone"))


def test_a_patch_for_another_uid_is_refused(server: Server, namespace: str, made: Object) -> None:
    """Labels of a node are patched with its uid in the body, so that a namesake is not labeled."""
    other = "0e7a2e4e-5d6e-4c5e-8a53-2a4fb1e8d0a1"
    body = {"metadata": {"uid": other, "labels": {"a": "b"}}}
    answer = server.ask("PATCH", core(namespace, "configmaps", "one"), body, MERGE)
    assert (answer.code, answer.reason) in {(409, "Conflict"), (422, "Invalid")}
    assert "labels" not in server.get(core(namespace, "configmaps", "one"))["metadata"]
    assert made["metadata"]["uid"] != other


def test_a_patch_for_the_right_uid_passes(server: Server, namespace: str, made: Object) -> None:
    body = {"metadata": {"uid": made["metadata"]["uid"], "labels": {"a": "b"}}}
    assert server.patch(core(namespace, "configmaps", "one"), body)["metadata"]["labels"] == {"a": "b"}


def test_an_update_for_another_uid_is_a_conflict(server: Server, namespace: str, made: Object) -> None:
    body = configmap("one", uid="other")
    answer = server.ask("PUT", core(namespace, "configmaps", "one"), body)
    assert (answer.code, answer.reason) == (409, "Conflict")
    assert f"UID in precondition: other, UID in object meta: {made['metadata']['uid']}" in answer.message


def test_a_deletion_may_name_the_uid(server: Server, namespace: str, made: Object) -> None:
    path = core(namespace, "configmaps", "one")
    answer = server.ask("DELETE", path, {"preconditions": {"uid": "other"}})
    assert (answer.code, answer.reason) == (409, "Conflict")
    assert "the UID in the precondition (other) does not match the UID in record" in answer.message
    assert answer.body["details"] == {"name": "one", "kind": "ConfigMap"}
    assert server.ask("DELETE", path, {"preconditions": {"uid": made["metadata"]["uid"]}}).code == 200


def test_a_deletion_may_name_the_version(server: Server, namespace: str, made: Object) -> None:
    path = core(namespace, "configmaps", "one")
    old = made["metadata"]["resourceVersion"]
    answer = server.ask("DELETE", path, {"preconditions": {"resourceVersion": old}})
    assert (answer.code, answer.reason) == (409, "Conflict")
    assert f"the ResourceVersion in the precondition ({old}) does not match" in answer.message
    new = server.get(path)["metadata"]["resourceVersion"]
    assert server.ask("DELETE", path, {"preconditions": {"resourceVersion": new}}).code == 200
