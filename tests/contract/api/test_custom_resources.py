from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.api.definitions import DEFINITIONS, GROUP, definition, establish, is_established
from tests.contract.api.samples import names
from tests.contract.client import APPLY, MERGE, Object, Server, until

TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1"


@pytest.fixture(scope="module")
def plural(server: Server) -> Iterator[str]:
    """A custom resource in force."""
    yield establish(server, definition("widgets"))
    server.delete(f"{DEFINITIONS}/widgets.{GROUP}")
    until(lambda: server.is_gone(f"{DEFINITIONS}/widgets.{GROUP}"))


@pytest.fixture
def path(namespace: str, plural: str) -> str:
    """The collection in the test's namespace."""
    return f"/apis/{GROUP}/v1/namespaces/{namespace}/{plural}"


def widget(name: str = "one", *, status: Object | None = None, **spec: Any) -> Object:
    head = {"apiVersion": f"{GROUP}/v1", "kind": "Widget", "metadata": {"name": name}}
    return {**head, "spec": {"size": 3, **spec}, **({"status": status} if status else {})}


def test_a_definition_says_when_it_is_in_force(server: Server, plural: str) -> None:
    status = server.get(f"{DEFINITIONS}/{plural}.{GROUP}")["status"]
    conditions = {one["type"]: (one["status"], one["reason"]) for one in status["conditions"]}
    assert conditions["NamesAccepted"] == ("True", "NoConflicts")
    assert conditions["Established"] == ("True", "InitialNamesAccepted")
    assert status["storedVersions"] == ["v1"]
    assert status["acceptedNames"]["kind"] == "Widget"
    assert status["acceptedNames"]["listKind"] == "WidgetList"


def test_a_new_resource_is_discovered(server: Server, plural: str) -> None:
    until(lambda: GROUP in {group["name"] for group in server.get("/apis")["groups"]})  # after its own path
    rows = {row["name"]: row for row in server.get(f"/apis/{GROUP}/v1")["resources"]}
    assert rows[plural]["kind"] == "Widget"
    assert rows[plural]["shortNames"] == ["wid"]
    assert f"{plural}/status" in rows


def test_an_object_is_created_read_and_listed(server: Server, path: str) -> None:
    made = server.make(path, widget())
    assert (made["apiVersion"], made["kind"]) == (f"{GROUP}/v1", "Widget")
    assert made["metadata"]["generation"] == 1
    assert server.get(f"{path}/one") == made
    found = server.get(path)
    assert (found["kind"], names(found)) == ("WidgetList", ["one"])


def test_items_of_a_list_of_custom_objects_name_their_kind(server: Server, path: str) -> None:
    server.make(path, widget())
    (item,) = server.get(path)["items"]
    assert item["kind"] == "Widget"


def test_defaults_are_filled_in_at_every_depth(server: Server, path: str) -> None:
    made = server.make(path, widget(inner={}, parts=[{"id": "a"}]))
    assert made["spec"]["color"] == "red"
    assert made["spec"]["inner"] == {"deep": "down"}
    assert made["spec"]["parts"] == [{"id": "a", "n": 7}]


def test_fields_that_the_schema_does_not_name_are_dropped(server: Server, path: str) -> None:
    made = server.make(path, {**widget(unknown=1, any={"kept": {"too": 1}}), "other": 1})
    assert "unknown" not in made["spec"]
    assert "other" not in made
    assert made["spec"]["any"] == {"kept": {"too": 1}}


@pytest.mark.parametrize("value", [1, "10%"])
def test_a_value_may_be_a_number_or_text(server: Server, path: str, value: Any) -> None:
    assert server.make(path, widget(either=value))["spec"]["either"] == value


def test_null_stays_where_allowed_and_gives_way_to_defaults(server: Server, path: str) -> None:
    made = server.make(path, widget(nothing=None, color=None))
    assert made["spec"]["nothing"] is None
    assert made["spec"]["color"] == "red"


WRONG: dict[str, tuple[Object, str | tuple[str, ...]]] = {
    "a required field is missing": ({"size": None}, "spec.size: Required value"),
    "a number is too small": ({"size": 0}, "spec.size: Invalid value: 0: spec.size in body should be greater than"),
    "a number is too large": ({"size": 10}, "spec.size: Invalid value: 10: spec.size in body should be less than"),
    "text for a number": (
        {"size": "3"},
        'spec.size: Invalid value: "string": spec.size in body must be of type integer',
    ),
    "a fraction for an integer": ({"size": 1.5}, "spec.size: Invalid value: "),
    "a number for text": ({"word": 3}, 'spec.word: Invalid value: "integer": spec.word in body must be of type string'),
    "none of the values": (
        {"color": "green"},
        'spec.color: Unsupported value: "green": supported values: "red", "blue"',
    ),
    "the pattern does not match": ({"word": "A"}, 'spec.word: Invalid value: "A": spec.word in body should match'),
    "a newline after what the pattern matches": (
        {"word": "a\n"},
        'spec.word: Invalid value: "a\\n": spec.word in body',
    ),
    "the text is too long": ({"word": "abcdef"}, "spec.word: "),
    "an item lacks its key": (
        {"parts": [{"n": 1}]},
        ("spec.parts[0].id: Required value", "spec.parts.id: Required value"),
    ),
    "two items of a set": ({"tags": ["a", "a"]}, 'spec.tags[1]: Duplicate value: "a"'),
    "two items with the same key": ({"parts": [{"id": "a"}, {"id": "a"}]}, "spec.parts[1]: Duplicate value"),
    "an object for a list": (
        {"tags": {}},
        'spec.tags: Invalid value: "object": spec.tags in body must be of type array',
    ),
}


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_what_breaks_the_schema_is_invalid(server: Server, path: str, wrong: str) -> None:
    spec, message = WRONG[wrong]
    body = widget(**spec)
    body["spec"] = {key: value for key, value in body["spec"].items() if value is not None}
    answer = server.ask("POST", path, body)
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert answer.message.startswith(f'Widget.{GROUP} "one" is invalid: ')
    assert any(text in answer.message for text in ([message] if isinstance(message, str) else message)), answer.message


def test_an_update_is_checked_like_a_new_object(server: Server, path: str) -> None:
    server.make(path, widget())
    answer = server.ask("PATCH", f"{path}/one", {"spec": {"size": 99}}, MERGE)
    assert (answer.code, answer.reason) == (422, "Invalid")


def test_the_status_subresource_leaves_the_spec_alone(server: Server, path: str) -> None:
    server.make(path, widget())
    found = server.patch(f"{path}/one/status", {"spec": {"size": 9}, "status": {"phase": "Done", "unknown": 1}})
    assert found["spec"]["size"] == 3
    assert found["status"] == {"phase": "Done"}
    assert found["metadata"]["generation"] == 1


def test_the_object_leaves_its_status_alone(server: Server, path: str) -> None:
    made = server.make(path, widget(status={"phase": "Early"}))
    assert "status" not in made
    server.patch(f"{path}/one/status", {"status": {"phase": "Done"}})
    found = server.patch(f"{path}/one", {"spec": {"size": 4}, "status": {"phase": "Other"}})
    assert (found["spec"]["size"], found["status"]["phase"]) == (4, "Done")
    assert found["metadata"]["generation"] == 2


def test_custom_objects_take_no_strategic_patch(server: Server, path: str) -> None:
    server.make(path, widget())
    answer = server.ask("PATCH", f"{path}/one", {"spec": {"size": 4}}, "application/strategic-merge-patch+json")
    assert (answer.code, answer.reason) == (415, "UnsupportedMediaType")


def test_lists_of_custom_objects_are_merged_by_their_keys(server: Server, path: str) -> None:
    """Servers before 1.21 take such a list for one value."""
    first = widget(parts=[{"id": "a", "n": 1}], tags=["x"])
    assert server.apply(f"{path}/one", first, manager="first").code == 201
    second = widget(parts=[{"id": "b", "n": 2}], tags=["y"])
    answer = server.apply(f"{path}/one", second, manager="second")
    if not server.at_least(1, 21):
        assert [cause["field"] for cause in answer.causes] == [".spec.parts", ".spec.tags"]
        return
    assert answer.body["spec"]["parts"] == [{"id": "a", "n": 1}, {"id": "b", "n": 2}]
    assert answer.body["spec"]["tags"] == ["x", "y"]
    conflict = server.apply(f"{path}/one", widget(parts=[{"id": "b", "n": 9}]), manager="first")
    assert [cause["field"] for cause in conflict.causes] == ['.spec.parts[id="b"].n']


def test_fields_of_custom_objects_have_owners(server: Server, path: str) -> None:
    server.apply(f"{path}/one", widget(color="red"), manager="first")
    answer = server.apply(f"{path}/one", widget(color="blue"), manager="second")
    assert [cause["field"] for cause in answer.causes] == [".spec.color"]
    found = server.apply(f"{path}/one", widget(inner={"deep": "x"}), manager="second").body["spec"]
    assert (found["color"], found["inner"]) == ("red", {"deep": "x"})


def test_custom_objects_are_watched(server: Server, path: str) -> None:
    version = server.get(path)["metadata"]["resourceVersion"]
    with server.watch(f"{path}?resourceVersion={version}&labelSelector=in") as events:
        server.make(path, widget("out"))
        server.make(path, {**widget(), "metadata": {"name": "one", "labels": {"in": ""}}})
        server.patch(f"{path}/one", {"spec": {"size": 4}})
        server.delete(f"{path}/one")
        found = events.until(lambda event: event.type == "DELETED")
    assert [(event.type, event.name) for event in found] == [("ADDED", "one"), ("MODIFIED", "one"), ("DELETED", "one")]


def test_printer_columns_are_the_table(server: Server, path: str) -> None:
    server.make(path, widget())
    table = server.ask("GET", path, accept=TABLE).body
    columns = [(column["name"], column["type"], column["priority"]) for column in table["columnDefinitions"]]
    assert columns == [("Name", "string", 0), ("Size", "integer", 0), ("Color", "string", 1), ("Age", "date", 0)]
    (row,) = table["rows"]
    assert row["cells"][:3] == ["one", 3, "red"]


def test_a_dry_run_of_a_custom_object_keeps_nothing(server: Server, path: str) -> None:
    answer = server.ask("POST", f"{path}?dryRun=All", widget())
    assert (answer.code, answer.body["spec"]["color"]) == (201, "red")
    assert server.is_gone(f"{path}/one")


def test_a_definition_without_a_schema_is_invalid(server: Server) -> None:
    body = definition("bares")
    del body["spec"]["versions"][0]["schema"]
    answer = server.ask("POST", DEFINITIONS, body)
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert "spec.versions[0].schema.openAPIV3Schema: Required value" in answer.message


def test_a_definition_is_named_after_plural_and_group(server: Server) -> None:
    body = definition("wrongs")
    body["metadata"]["name"] = f"other.{GROUP}"
    answer = server.ask("POST", DEFINITIONS, body)
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert "spec.names.plural+" in answer.message


def test_a_definition_has_one_stored_version(server: Server) -> None:
    answer = server.ask("POST", DEFINITIONS, definition("nones", storage=False))
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert "must have exactly one version marked as storage version" in answer.message


def test_a_schema_is_structural(server: Server) -> None:
    schema = {"type": "object", "properties": {"spec": {"properties": {"a": {"type": "string"}}}}}
    answer = server.ask("POST", DEFINITIONS, definition("looses", schema={"openAPIV3Schema": schema}))
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert "properties[spec].type: Required value: must not be empty for specified object fields" in answer.message


def test_a_definition_is_applied_twice_without_a_change(server: Server, plural: str) -> None:
    """The tool applies NFD's definitions: what the server fills in must not look like a difference."""
    path = f"{DEFINITIONS}/gadgets.{GROUP}"
    made = server.apply(path, definition("gadgets"), manager="first")
    assert made.code == 201, plural
    until(lambda: is_established(server, f"gadgets.{GROUP}"))
    before = server.get(path)["metadata"]
    again = server.apply(path, definition("gadgets"), manager="first").body["metadata"]
    assert (again["resourceVersion"], again["generation"]) == (before["resourceVersion"], before["generation"])
    server.delete(path)
    until(lambda: server.is_gone(path))


def test_a_deleted_definition_takes_its_objects_along(server: Server, namespace: str) -> None:
    establish(server, definition("passings"))
    path = f"/apis/{GROUP}/v1/namespaces/{namespace}/passings"
    server.make(
        path, {"apiVersion": f"{GROUP}/v1", "kind": "Passing", "metadata": {"name": "one"}, "spec": {"size": 1}}
    )
    server.delete(f"{DEFINITIONS}/passings.{GROUP}")
    until(lambda: server.is_gone(f"{DEFINITIONS}/passings.{GROUP}"))
    until(lambda: server.ask("GET", path).code == 404)
    establish(server, definition("passings"))
    assert server.get(path)["items"] == []
    server.delete(f"{DEFINITIONS}/passings.{GROUP}")


def test_a_definition_waits_for_objects_with_finalizers(server: Server, namespace: str) -> None:
    establish(server, definition("holders"))
    path = f"/apis/{GROUP}/v1/namespaces/{namespace}/holders"
    metadata = {"name": "one", "finalizers": ["contract.example.org/hold"]}
    server.make(path, {"apiVersion": f"{GROUP}/v1", "kind": "Holder", "metadata": metadata, "spec": {"size": 1}})
    name = f"{DEFINITIONS}/holders.{GROUP}"
    server.delete(name)
    until(lambda: "deletionTimestamp" in server.get(f"{path}/one")["metadata"])
    assert "customresourcecleanup.apiextensions.k8s.io" in server.get(name)["metadata"]["finalizers"]
    refused = server.ask(
        "POST", path, {"apiVersion": f"{GROUP}/v1", "kind": "Holder", "metadata": {"name": "two"}, "spec": {"size": 1}}
    )
    assert refused.code in (403, 405), "no new objects while the definition goes"
    server.patch(f"{path}/one", {"metadata": {"finalizers": None}})
    until(lambda: server.is_gone(name))


def test_apply_creates_in_a_resource_that_was_just_defined(server: Server, namespace: str) -> None:
    establish(server, definition("freshs"))
    path = f"/apis/{GROUP}/v1/namespaces/{namespace}/freshs/one"
    body = {"apiVersion": f"{GROUP}/v1", "kind": "Fresh", "metadata": {"name": "one"}, "spec": {"size": 1}}
    answer = server.ask("PATCH", f"{path}?fieldManager=me", body, APPLY)
    assert answer.code == 201
    server.delete(f"{DEFINITIONS}/freshs.{GROUP}")
