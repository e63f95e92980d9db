from __future__ import annotations

import pytest

from tests.contract.api.samples import apps, configmap, core, workload
from tests.contract.client import JSON_PATCH, MERGE, STRATEGIC, Object, Server


@pytest.fixture
def path(server: Server, namespace: str) -> str:
    """A ConfigMap."""
    server.make(core(namespace, "configmaps"), configmap("one", {"a": "1", "b": "2"}, labels={"x": "y"}))
    return core(namespace, "configmaps", "one")


@pytest.fixture
def daemonset(server: Server, namespace: str) -> str:
    """A DaemonSet of two containers."""
    made = workload("DaemonSet", "ds")
    env = [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]
    containers = [{"name": "main", "image": "a:1", "env": env, "args": ["x"]}, {"name": "side", "image": "b:1"}]
    made["spec"]["template"]["spec"]["containers"] = containers
    made["spec"]["template"]["spec"]["tolerations"] = [{"key": "a", "operator": "Exists"}]
    server.make(apps(namespace, "daemonsets"), made)
    return apps(namespace, "daemonsets", "ds")


def containers(obj: Object) -> dict[str, Object]:
    return {one["name"]: one for one in obj["spec"]["template"]["spec"]["containers"]}


def test_a_merge_patch_merges_objects_and_null_removes(server: Server, path: str) -> None:
    found = server.patch(path, {"data": {"a": None, "b": "3", "c": "4"}})
    assert found["data"] == {"b": "3", "c": "4"}
    assert found["metadata"]["labels"] == {"x": "y"}


def test_a_merge_patch_replaces_lists(server: Server, daemonset: str) -> None:
    patch = {"spec": {"template": {"spec": {"containers": [{"name": "only", "image": "c:1"}]}}}}
    assert [*containers(server.patch(daemonset, patch))] == ["only"]


def test_a_strategic_patch_merges_lists_by_their_keys(server: Server, daemonset: str) -> None:
    change = {"name": "main", "image": "a:2", "env": [{"name": "A", "value": "9"}, {"name": "C", "value": "3"}]}
    patch = {"spec": {"template": {"spec": {"containers": [change]}}}}
    found = containers(server.patch(daemonset, patch, STRATEGIC))
    assert {*found} == {"main", "side"}
    assert found["main"]["image"] == "a:2"
    assert {row["name"]: row["value"] for row in found["main"]["env"]} == {"A": "9", "B": "2", "C": "3"}


def test_a_strategic_patch_replaces_lists_of_plain_values(server: Server, daemonset: str) -> None:
    patch = {"spec": {"template": {"spec": {"containers": [{"name": "main", "args": ["y", "z"]}]}}}}
    assert containers(server.patch(daemonset, patch, STRATEGIC))["main"]["args"] == ["y", "z"]


def test_a_strategic_patch_replaces_lists_that_have_no_key(server: Server, daemonset: str) -> None:
    patch = {"spec": {"template": {"spec": {"tolerations": [{"key": "b", "operator": "Exists"}]}}}}
    found = server.patch(daemonset, patch, STRATEGIC)["spec"]["template"]["spec"]["tolerations"]
    assert [row["key"] for row in found] == ["b"]


def test_a_strategic_patch_can_delete_an_item(server: Server, daemonset: str) -> None:
    patch = {"spec": {"template": {"spec": {"containers": [{"name": "side", "$patch": "delete"}]}}}}
    assert [*containers(server.patch(daemonset, patch, STRATEGIC))] == ["main"]


def test_a_strategic_patch_can_replace_a_whole_list(server: Server, daemonset: str) -> None:
    patch = {"spec": {"template": {"spec": {"containers": [{"$patch": "replace"}, {"name": "new", "image": "c:1"}]}}}}
    assert [*containers(server.patch(daemonset, patch, STRATEGIC))] == ["new"]


def test_a_json_patch_does_its_operations_in_order(server: Server, path: str) -> None:
    patch = [
        {"op": "test", "path": "/data/a", "value": "1"},
        {"op": "remove", "path": "/data/a"},
        {"op": "add", "path": "/data/c", "value": "3"},
        {"op": "replace", "path": "/data/b", "value": "4"},
        {"op": "copy", "from": "/data/c", "path": "/data/d"},
        {"op": "move", "from": "/data/c", "path": "/data/e"},
    ]
    assert server.patch(path, patch, JSON_PATCH)["data"] == {"b": "4", "d": "3", "e": "3"}


def test_a_json_patch_whose_test_fails_changes_nothing(server: Server, path: str) -> None:
    patch = [{"op": "remove", "path": "/data/a"}, {"op": "test", "path": "/data/b", "value": "other"}]
    answer = server.ask("PATCH", path, patch, JSON_PATCH)
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert server.get(path)["data"] == {"a": "1", "b": "2"}


def test_a_json_patch_of_what_is_not_there_is_invalid(server: Server, path: str) -> None:
    answer = server.ask("PATCH", path, [{"op": "remove", "path": "/data/none"}], JSON_PATCH)
    assert (answer.code, answer.reason) == (422, "Invalid")


def test_a_json_patch_escapes_slashes(server: Server, path: str) -> None:
    patch = [{"op": "add", "path": "/metadata/labels/example.org~1x", "value": "z"}]
    assert server.patch(path, patch, JSON_PATCH)["metadata"]["labels"] == {"x": "y", "example.org/x": "z"}


def test_a_patch_of_what_is_not_there_is_not_found(server: Server, namespace: str) -> None:
    answer = server.ask("PATCH", core(namespace, "configmaps", "none"), {"data": {}}, MERGE)
    assert (answer.code, answer.reason) == (404, "NotFound")


@pytest.mark.parametrize("kind", ["text/plain", "application/json"])
def test_a_patch_of_an_unknown_type_is_refused(server: Server, path: str, kind: str) -> None:
    answer = server.ask("PATCH", path, {}, kind)
    assert (answer.code, answer.reason) == (415, "UnsupportedMediaType")


def test_a_patch_that_is_no_patch_is_a_bad_request(server: Server, path: str) -> None:
    torn = server.ask("PATCH", path, "{", MERGE)
    assert torn.code == (400 if server.at_least(1, 22) else 500)
    assert server.ask("PATCH", path, {"op": "add"}, JSON_PATCH).code == 400


def test_an_empty_patch_changes_nothing(server: Server, path: str) -> None:
    before = server.get(path)
    assert server.patch(path, {}) == before


def test_a_patch_cannot_rename(server: Server, path: str) -> None:
    answer = server.ask("PATCH", path, {"metadata": {"name": "other"}}, MERGE)
    assert answer.code in (400, 422)


def test_a_patch_is_checked_like_an_update(server: Server, daemonset: str) -> None:
    patch = {"spec": {"selector": {"matchLabels": {"app": "other"}}}}
    answer = server.ask("PATCH", daemonset, patch, MERGE)
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert "spec.selector" in answer.message or "spec.template.metadata.labels" in answer.message


def test_labels_are_removed_by_null(server: Server, path: str) -> None:
    """This is how labels of nodes are taken back."""
    found = server.patch(path, {"metadata": {"labels": {"x": None, "z": "1"}}})
    assert found["metadata"]["labels"] == {"z": "1"}


def test_a_key_that_is_not_there_can_be_removed(server: Server, path: str) -> None:
    assert server.patch(path, {"metadata": {"labels": {"none": None}}})["metadata"]["labels"] == {"x": "y"}
