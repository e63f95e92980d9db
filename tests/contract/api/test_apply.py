from __future__ import annotations

from typing import Any

import pytest

from tests.contract.api.samples import apps, configmap, core, workload
from tests.contract.client import APPLY, MERGE, Object, Server


@pytest.fixture
def path(server: Server, namespace: str) -> str:
    """The path of a ConfigMap that `first` applied."""
    made = core(namespace, "configmaps", "one")
    assert server.apply(made, configmap("one", {"a": "1", "b": "2"}), manager="first").code == 201
    return made


def entries(obj: Object) -> dict[tuple[str, str], Any]:
    return {(row["manager"], row["operation"]): row["fieldsV1"] for row in obj["metadata"]["managedFields"]}


def daemonset(**container: Any) -> Object:
    body = workload("DaemonSet", "ds")
    main = {"name": "main", "image": "example.org/app:1", **container}
    body["spec"]["template"]["spec"]["containers"] = [main]
    return body


def test_an_apply_creates_what_is_not_there(server: Server, namespace: str) -> None:
    answer = server.apply(core(namespace, "configmaps", "one"), configmap("one", {"a": "1"}), manager="first")
    assert (answer.code, answer.body["data"]) == (201, {"a": "1"})


def test_an_apply_of_a_name_alone_owns_nothing(server: Server, namespace: str) -> None:
    answer = server.apply(core(namespace, "configmaps", "one"), configmap("one"), manager="first")
    assert answer.code == 201
    assert "managedFields" not in answer.body["metadata"]


def test_a_second_apply_of_the_same_changes_nothing(server: Server, path: str) -> None:
    before = server.get(path)
    answer = server.apply(path, configmap("one", {"a": "1", "b": "2"}), manager="first")
    assert answer.code == 200
    assert answer.body == before
    assert server.get(path) == before


def test_an_apply_needs_a_field_manager(server: Server, path: str) -> None:
    answer = server.ask("PATCH", path, configmap("one"), APPLY)
    assert (answer.code, answer.reason) in {(422, "Invalid"), (400, "BadRequest")}
    assert "fieldManager" in answer.message


def test_an_apply_needs_kind_and_version(server: Server, path: str) -> None:
    answer = server.ask("PATCH", f"{path}?fieldManager=first", {"metadata": {"name": "one"}}, APPLY)
    assert answer.code >= 400


def test_an_apply_may_be_yaml(server: Server, path: str) -> None:
    body = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: one}\ndata: {a: '3'}\n"
    answer = server.ask("PATCH", f"{path}?fieldManager=first", body, APPLY)
    assert answer.body["data"] == {"a": "3"}


def test_what_the_manager_no_longer_sends_is_removed(server: Server, path: str) -> None:
    answer = server.apply(path, configmap("one", {"a": "1"}), manager="first")
    assert answer.body["data"] == {"a": "1"}


def test_what_another_manager_sends_is_added(server: Server, path: str) -> None:
    answer = server.apply(path, configmap("one", {"c": "3"}), manager="second")
    assert answer.body["data"] == {"a": "1", "b": "2", "c": "3"}


def test_what_two_managers_want_alike_belongs_to_both(server: Server, path: str) -> None:
    """A field goes only when its last owner no longer sends it."""
    assert server.apply(path, configmap("one", {"a": "1"}), manager="second").code == 200
    assert server.apply(path, configmap("one"), manager="first").body["data"] == {"a": "1"}
    assert "data" not in server.apply(path, configmap("one"), manager="second").body


def test_a_field_of_another_manager_is_a_conflict_that_names_it(server: Server, path: str) -> None:
    answer = server.apply(path, configmap("one", {"a": "9"}), manager="second")
    assert (answer.code, answer.reason) == (409, "Conflict")
    assert answer.message == 'Apply failed with 1 conflict: conflict with "first": .data.a'
    cause = {"reason": "FieldManagerConflict", "message": 'conflict with "first"', "field": ".data.a"}
    assert answer.causes == [cause]
    assert server.get(path)["data"]["a"] == "1"


def test_several_conflicts_are_reported_at_once(server: Server, path: str) -> None:
    answer = server.apply(path, configmap("one", {"a": "9", "b": "9"}), manager="second")
    assert {cause["field"] for cause in answer.causes} == {".data.a", ".data.b"}
    assert answer.message.startswith('Apply failed with 2 conflicts: conflicts with "first":')


def test_the_owner_of_an_update_is_named_with_its_version(server: Server, path: str) -> None:
    server.ask("PATCH", f"{path}?fieldManager=kubectl-edit", {"data": {"a": "5"}}, MERGE)
    answer = server.apply(path, configmap("one", {"a": "1", "b": "2"}), manager="first")
    (cause,) = answer.causes
    assert cause["field"] == ".data.a"
    assert cause["message"].startswith('conflict with "kubectl-edit"')
    assert "using v1" in cause["message"]


def test_force_takes_a_field_over(server: Server, path: str) -> None:
    answer = server.apply(path, configmap("one", {"a": "9"}), manager="second", force=True)
    assert answer.body["data"] == {"a": "9", "b": "2"}
    owned = entries(answer.body)
    assert owned["first", "Apply"] == {"f:data": {"f:b": {}}}
    assert owned["second", "Apply"] == {"f:data": {"f:a": {}}}


def test_a_field_taken_over_stays_without_its_former_owner(server: Server, path: str) -> None:
    server.apply(path, configmap("one", {"a": "9"}), manager="second", force=True)
    assert server.apply(path, configmap("one"), manager="first").body["data"] == {"a": "9"}


def test_managed_fields_say_who_owns_what_since_when(server: Server, path: str) -> None:
    (entry,) = server.get(path)["metadata"]["managedFields"]
    assert entry.pop("time").endswith("Z")
    assert entry == {
        "manager": "first",
        "operation": "Apply",
        "apiVersion": "v1",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:data": {"f:a": {}, "f:b": {}}},
    }


def test_every_writer_is_a_manager(server: Server, namespace: str) -> None:
    made = server.ask("POST", core(namespace, "configmaps") + "?fieldManager=maker", configmap("one", {"a": "1"})).body
    assert entries(made) == {("maker", "Update"): {"f:data": {".": {}, "f:a": {}}}}


def test_a_writer_without_a_name_is_named_after_its_user_agent(server: Server, namespace: str) -> None:
    made = server.make(core(namespace, "configmaps"), configmap("one", {"a": "1"}))
    assert ("contract", "Update") in entries(made)


def test_an_update_takes_fields_over_without_a_conflict(server: Server, path: str) -> None:
    found = server.ask("PATCH", f"{path}?fieldManager=editor", {"data": {"a": "5"}}, MERGE).body
    assert entries(found)["first", "Apply"] == {"f:data": {"f:b": {}}}
    assert entries(found)["editor", "Update"] == {"f:data": {"f:a": {}}}


@pytest.mark.since(1, 21)
def test_a_writer_of_the_status_has_an_entry_of_its_own(server: Server, namespace: str) -> None:
    server.make(apps(namespace, "deployments"), workload("Deployment", "d", paused=True, replicas=0))
    path = apps(namespace, "deployments", "d")
    found = server.ask("PATCH", f"{path}/status?fieldManager=me", {"status": {"collisionCount": 4}}, MERGE).body
    (entry,) = (row for row in found["metadata"]["managedFields"] if row["manager"] == "me")
    assert entry["subresource"] == "status"


def test_lists_are_merged_by_their_keys(server: Server, namespace: str) -> None:
    path = apps(namespace, "daemonsets", "ds")
    server.apply(path, daemonset(env=[{"name": "A", "value": "1"}]), manager="first")
    body = daemonset(env=[{"name": "B", "value": "2"}])
    found = server.apply(path, body, manager="second").body["spec"]["template"]["spec"]["containers"]
    assert len(found) == 1
    assert {row["name"] for row in found[0]["env"]} == {"A", "B"}


def test_an_item_no_longer_sent_is_removed_and_others_stay(server: Server, namespace: str) -> None:
    path = apps(namespace, "daemonsets", "ds")
    env = [{"name": name, "value": "1"} for name in ("A", "B")]
    server.apply(path, daemonset(env=env), manager="first")
    server.apply(path, daemonset(env=[{"name": "C", "value": "1"}]), manager="second")
    found = server.apply(path, daemonset(env=env[:1]), manager="first").body
    env = found["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {row["name"] for row in env} == {"A", "C"}


def test_a_list_of_plain_values_is_one_value(server: Server, namespace: str) -> None:
    path = apps(namespace, "daemonsets", "ds")
    server.apply(path, daemonset(args=["a", "b"]), manager="first")
    answer = server.apply(path, daemonset(args=["a", "c"]), manager="second")
    (cause,) = answer.causes
    assert cause["field"] == '.spec.template.spec.containers[name="main"].args'
    found = server.apply(path, daemonset(args=["a", "c"]), manager="second", force=True).body
    assert found["spec"]["template"]["spec"]["containers"][0]["args"] == ["a", "c"]


def test_defaults_of_the_server_belong_to_no_applier(server: Server, namespace: str) -> None:
    made = server.apply(apps(namespace, "daemonsets", "ds"), daemonset(), manager="first").body
    assert made["spec"]["updateStrategy"]["type"] == "RollingUpdate"
    assert "f:updateStrategy" not in entries(made)["first", "Apply"]["f:spec"]


def test_a_dry_run_of_a_new_object_returns_it_and_keeps_nothing(server: Server, namespace: str) -> None:
    path = core(namespace, "configmaps", "one")
    answer = server.apply(path, configmap("one", {"a": "1"}), manager="first", dry_run=True)
    assert (answer.code, answer.body["data"]) == (201, {"a": "1"})
    assert answer.body["metadata"]["uid"]
    assert server.is_gone(path)


def test_a_dry_run_of_a_change_returns_it_and_keeps_nothing(server: Server, path: str) -> None:
    before = server.get(path)
    answer = server.apply(path, configmap("one", {"a": "7"}), manager="first", dry_run=True)
    assert (answer.code, answer.body["data"]) == (200, {"a": "7"})
    assert server.get(path) == before


def test_a_dry_run_finds_conflicts(server: Server, path: str) -> None:
    answer = server.apply(path, configmap("one", {"a": "9"}), manager="second", dry_run=True)
    assert answer.reason == "Conflict"


def test_managed_fields_may_not_be_applied(server: Server, path: str) -> None:
    body = configmap("one", {"a": "1"}, managedFields=[{"manager": "x"}])
    answer = server.apply(path, body, manager="first")
    assert (answer.code, answer.reason) == (400, "BadRequest")
    assert "metadata.managedFields must be nil" in answer.message


def test_empty_managed_fields_take_all_ownership_away(server: Server, path: str) -> None:
    found = server.patch(path, {"metadata": {"managedFields": [{}]}})
    assert "managedFields" not in found["metadata"]


def test_a_patch_may_hand_fields_over_to_another_manager(server: Server, path: str) -> None:
    rows = server.get(path)["metadata"]["managedFields"]
    handed = [{**row, "manager": "second"} for row in rows if row["operation"] == "Apply"]
    found = server.patch(path, {"metadata": {"managedFields": handed}})
    assert entries(found).keys() == {("second", "Apply")}
    assert server.apply(path, configmap("one", {"a": "3"}), manager="second").body["data"] == {"a": "3"}


def test_unknown_managed_fields_change_nothing(server: Server, path: str) -> None:
    before = server.get(path)["metadata"]["managedFields"]
    odd = [{"manager": "second", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV9", "fieldsV1": {}}]
    code = server.ask("PATCH", path, {"metadata": {"managedFields": odd}}, MERGE).code
    assert code in {200, 422}
    assert server.get(path)["metadata"]["managedFields"] == before


def test_the_first_apply_names_who_created_the_object(server: Server, namespace: str) -> None:
    path = core(namespace, "configmaps", "one")
    server.make(core(namespace, "configmaps"), configmap("one", {"a": "1"}))
    answer = server.apply(path, configmap("one", {"a": "2"}), manager="first")
    assert answer.causes[0]["message"].startswith('conflict with "contract" using v1')


def test_labels_and_annotations_are_owned_key_by_key(server: Server, path: str) -> None:
    mine = configmap("one", {"a": "1", "b": "2"}, labels={"x": "1"}, annotations={"y": "1"})
    server.apply(path, mine, manager="first")
    theirs = configmap("one", labels={"z": "1"})
    found = server.apply(path, theirs, manager="second").body["metadata"]
    assert found["labels"] == {"x": "1", "z": "1"}
    rest = server.apply(path, configmap("one", {"a": "1", "b": "2"}), manager="first").body["metadata"]
    assert rest["labels"] == {"z": "1"}
    assert "annotations" not in rest


def test_apply_works_on_the_status_alone(server: Server, namespace: str) -> None:
    server.make(apps(namespace, "deployments"), workload("Deployment", "d", paused=True, replicas=0))
    path = apps(namespace, "deployments", "d")
    head = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}}
    body = {**head, "spec": {"replicas": 7}, "status": {"collisionCount": 6}}
    found = server.ask("PATCH", f"{path}/status?fieldManager=me&force=true", {**body}, APPLY)
    assert found.body["status"]["collisionCount"] == 6
    assert found.body["spec"]["replicas"] == 0


def test_a_service_keeps_the_address_that_it_was_given(server: Server, namespace: str) -> None:
    path = core(namespace, "services", "s")
    ports = [{"port": 80, "protocol": "TCP", "targetPort": 8080}]
    head = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}
    body = {**head, "spec": {"ports": ports, "selector": {"a": "b"}}}
    made = server.apply(path, body, manager="first").body
    again = server.apply(path, body, manager="first").body
    assert made["spec"]["clusterIP"] == again["spec"]["clusterIP"] != ""
    assert made["metadata"]["resourceVersion"] == again["metadata"]["resourceVersion"]


@pytest.mark.since(1, 23)
def test_a_service_keeps_an_address_that_it_names_no_more(server: Server, namespace: str) -> None:
    """Earlier servers refuse that: kubernetes/kubernetes#103532."""
    path = core(namespace, "services", "s")
    body = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}}
    address = server.apply(path, body, manager="first").body["spec"]["clusterIP"]
    named = {**body, "spec": {**body["spec"], "clusterIP": address}}
    assert server.apply(path, named, manager="first").code == 200
    assert server.apply(path, body, manager="first").body["spec"]["clusterIP"] == address
