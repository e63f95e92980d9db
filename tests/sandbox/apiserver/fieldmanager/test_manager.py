"""Server-side apply and ownership, case by case (cases/*.yaml) and as laws that hold for all of them."""

from __future__ import annotations

import random
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.sandbox.apiserver.fieldmanager import (
    ApplyConflict,
    InvalidConfig,
    ListTypes,
    applied,
    same_but_for_times,
    updated,
)
from gpu_provision.sandbox.apiserver.fieldmanager.entries import MAX_UPDATERS
from gpu_provision.sandbox.apiserver.fieldmanager.fields import paths
from tests import data_file

Object = dict[str, Any]
Case = dict[str, Any]

CASES: list[Case] = [
    {**case, "file": file.stem}
    for file in sorted(Path(__file__).with_name("cases").glob("*.yaml"))
    for case in data_file.document(file.read_text("utf-8"))
]
APPLIES = [case for case in CASES if "apply" in case["when"] and "object" in case["then"]]
NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
DAEMON_SET: Object = data_file.document("""
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: d, namespace: default, labels: {app: d}}
spec:
  selector: {matchLabels: {app: d}}
  template:
    metadata: {labels: {app: d}}
    spec:
      containers:
      - {name: x, image: "x:1", env: [{name: A, value: a}], ports: [{containerPort: 80}], args: [a]}
      - {name: y, image: "y:1", volumeMounts: [{name: v, mountPath: /v}]}
      volumes: [{name: v, hostPath: {path: /v}}]
""")


def name_of(case: Case) -> str:
    return f"{case['file']}: {case['name']}"


def done(live: Object | None, step: Case, now: str = NOW) -> Object:
    manager, subresource = step["manager"], step.get("subresource", "")
    if "update" in step:
        return updated(live, step["update"], manager=manager, subresource=subresource, now=now)
    force = step.get("force", False)
    return applied(live, step["apply"], manager=manager, force=force, subresource=subresource, now=now)


def prepared(case: Case) -> Object | None:
    live: Object | None = case.get("live")
    for step in case.get("given", ()):
        live = done(live, step)
    return live


def bare(obj: Object) -> Object:
    return {
        **obj,
        "metadata": {name: value for name, value in obj["metadata"].items() if name != "managedFields"},
    }


def owners(obj: Object) -> dict[str, list[str]]:
    return {
        " ".join(filter(None, (entry["manager"], entry["operation"], entry.get("subresource")))): sorted(
            paths(entry["fieldsV1"])
        )
        for entry in obj["metadata"].get("managedFields", ())
    }


@pytest.mark.parametrize("case", [case for case in CASES if "conflicts" not in case["then"]], ids=name_of)
def test_a_write_gives_the_object_and_the_owners_of_the_case(case: Case) -> None:
    """The result is what a Kubernetes API server stores."""
    result = done(prepared(case), case["when"])
    expected = case["then"]
    assert bare(result) == expected.get("object", bare(result))
    if "owners" in expected:
        assert owners(result) == {who: sorted(fields) for who, fields in expected["owners"].items()}


@pytest.mark.parametrize("case", [case for case in CASES if "conflicts" in case["then"]], ids=name_of)
def test_a_conflicting_apply_is_refused_with_the_conflicts_of_the_case(case: Case) -> None:
    """Every field that another manager owns and the apply would change is named, in the server's words."""
    with pytest.raises(ApplyConflict) as refusal:
        done(prepared(case), case["when"])
    assert [list(conflict) for conflict in refusal.value.conflicts] == case["then"]["conflicts"]
    assert refusal.value.message() == case["then"].get("message", refusal.value.message())


@pytest.mark.parametrize("case", [case for case in CASES if "conflicts" in case["then"]], ids=name_of)
def test_force_settles_every_conflict(case: Case) -> None:
    """With force, the fields change hands and a second apply has nothing to do."""
    forced = done(prepared(case), {**case["when"], "force": True})
    assert done(forced, case["when"], LATER) == forced


@pytest.mark.parametrize("case", APPLIES, ids=name_of)
def test_applying_again_changes_nothing(case: Case) -> None:
    """An apply is idempotent: the object stays equal, the times of its managedFields included."""
    once = done(prepared(case), case["when"])
    assert done(once, case["when"], LATER) == once


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_write_leaves_its_arguments_as_they_were(case: Case) -> None:
    """The functions are pure: the live object and the request are not changed."""
    live = prepared(case)
    before, step = deepcopy(live), deepcopy(case["when"])
    with suppress(ApplyConflict):
        done(live, case["when"])
    assert (live, case["when"]) == (before, step)


@pytest.mark.parametrize("case", [case for case in CASES if prepared(case)], ids=name_of)
def test_a_newcomer_that_applies_nothing_again_takes_away_only_its_own(case: Case) -> None:
    """An apply and then an apply of nothing gives back what was there, the other owners included."""
    live = prepared(case)
    assert live is not None
    nothing = {"apiVersion": live["apiVersion"], "kind": live["kind"], "metadata": {"name": live["metadata"]["name"]}}
    note = {**nothing, "metadata": {**nothing["metadata"], "annotations": {"x.io/note": "new"}}}
    tracked = done(live, {"apply": nothing, "manager": "newcomer"})
    extended = done(tracked, {"apply": note, "manager": "newcomer"})
    assert extended["metadata"]["annotations"] == {"x.io/note": "new"}
    assert done(extended, {"apply": nothing, "manager": "newcomer"}, LATER) == tracked


def test_appliers_of_disjoint_fields_do_not_depend_on_their_order() -> None:
    """Both keep what they applied, whoever came first."""
    for chance in map(random.Random, range(100)):
        names = chance.sample("abcdefgh", 8)
        first, second = (config_map(part, chance) for part in (names[:4], names[4:]))
        one = applied_in_turn(("first", first), ("second", second))
        other = applied_in_turn(("second", second), ("first", first))
        assert (bare(one), owners(one)) == (bare(other), owners(other))
        assert one["data"] == {**first["data"], **second["data"]}


def config_map(names: list[str], chance: random.Random) -> Object:
    data = {name: chance.choice("123") for name in names}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": data}


def applied_in_turn(*configs: tuple[str, Object]) -> Object:
    live: Object | None = None
    for manager, config in configs:
        live = applied(live, config, manager=manager, force=False, now=NOW)
    assert live is not None
    return live


def test_an_apply_takes_over_the_time_only_if_it_changes_the_object() -> None:
    """Who shares a field without changing the object gets an entry without a time, as in the server."""
    first = applied(None, DAEMON_SET, manager="first", force=False, now=NOW)
    second = applied(first, DAEMON_SET, manager="second", force=False, now=LATER)
    assert [entry.get("time") for entry in second["metadata"]["managedFields"]] == [None, NOW]
    assert bare(second) == bare(first)
    assert not same_but_for_times(first, second)


def test_objects_that_differ_in_times_only_are_told() -> None:
    """A caller can see that a write would change nothing but the times."""
    obj = applied(None, DAEMON_SET, manager="first", force=False, now=NOW)
    later = applied(None, DAEMON_SET, manager="first", force=False, now=LATER)
    assert obj != later
    assert same_but_for_times(obj, later)
    assert not same_but_for_times(obj, {**later, "spec": {}})


def test_a_new_api_version_replaces_the_appliers_entry() -> None:
    """A manager that applies in another version keeps one entry, in that version."""
    old = applied(None, {**DAEMON_SET, "apiVersion": "apps/v1beta2"}, manager="first", force=False, now=NOW)
    new = applied({**old, "apiVersion": "apps/v1"}, DAEMON_SET, manager="first", force=False, now=LATER)
    assert [entry["apiVersion"] for entry in new["metadata"]["managedFields"]] == ["apps/v1"]


def test_the_servers_metadata_in_a_configuration_is_not_taken_over() -> None:
    """What the server makes (uid, generation ...) stays as it is stored."""
    live = {**DAEMON_SET, "metadata": {**DAEMON_SET["metadata"], "uid": "u", "generation": 3}}
    config = {**DAEMON_SET, "metadata": {"name": "d", "uid": "other", "generation": 9}}
    result = applied(live, config, manager="first", force=False, now=NOW)
    assert (result["metadata"]["uid"], result["metadata"]["generation"]) == ("u", 3)


def test_the_entries_of_updates_are_limited() -> None:
    """Beyond the limit the oldest entries become one, so an object that many write does not grow for ever."""
    obj: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"k": "v"}}
    live = None
    for number in range(MAX_UPDATERS + 5):
        changed = {**obj, "data": {**(live or obj)["data"], f"k{number}": "v"}}
        live = updated(live, changed, manager=f"m{number:02}", now=f"2026-01-01T00:00:{number:02}Z")
    assert live is not None
    names = [entry["manager"] for entry in live["metadata"]["managedFields"]]
    assert len(names) == MAX_UPDATERS
    assert names[0] == "ancient-changes"
    assert {path for fields in owners(live).values() for path in fields} >= {".data.k0", ".data.k14"}


def test_an_object_whose_owners_were_forgotten_is_not_tracked_until_the_next_apply() -> None:
    """An update of an object without entries makes none."""
    live = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "uid": "u"}, "data": {"a": "1"}}
    result = updated(live, {**live, "data": {"a": "2"}}, manager="editor", now=NOW)
    assert "managedFields" not in result["metadata"]


def test_an_update_with_items_that_cannot_be_told_apart_keeps_the_owners() -> None:
    """Bookkeeping never fails a write that was accepted."""
    account: Object = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "s"}}
    live = applied(None, {**account, "secrets": [{"name": "a"}]}, manager="first", force=False, now=NOW)
    result = updated(live, {**live, "secrets": [{}]}, manager="editor", now=LATER)
    assert result == {**live, "secrets": [{}]}


def test_an_apply_without_a_name_leaves_the_objects_identity() -> None:
    """Removing the last thing that its applier set in the metadata does not remove the metadata."""
    config: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "labels": {"a": "b"}}}
    live = applied(None, config, manager="first", force=False, now=NOW)
    live["metadata"]["uid"] = "u"
    result = applied(live, {**config, "metadata": {}}, manager="first", force=False, now=LATER)
    assert result["metadata"] == {"name": "c", "uid": "u"}


def test_entries_that_a_client_edited_count() -> None:
    """A client may take a manager out of the list; what is left is where the update starts from."""
    obj: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "1"}}
    live = applied(None, obj, manager="first", force=False, now=NOW)
    live = applied(live, obj, manager="second", force=False, now=NOW)
    kept = [entry for entry in live["metadata"]["managedFields"] if entry["manager"] == "second"]
    edited = {**live, "metadata": {**live["metadata"], "managedFields": kept}}
    assert list(owners(updated(live, edited, manager="editor", now=LATER))) == ["second Apply"]


def test_a_merge_of_an_unknown_kind_treats_lists_as_one_value() -> None:
    """Without a schema, objects are merged and lists are atomic."""
    config: Object = {
        "apiVersion": "x.io/v1",
        "kind": "Thing",
        "metadata": {"name": "t"},
        "spec": {"l": [1], "o": {"a": 1}},
    }
    live = applied(None, config, manager="first", force=False, now=NOW)
    other = {**config, "spec": {"o": {"b": 2}}}
    merged = applied(live, other, manager="second", force=False, now=NOW)
    assert merged["spec"] == {"l": [1], "o": {"a": 1, "b": 2}}
    assert owners(merged)["second Apply"] == [".spec", ".spec.o", ".spec.o.b"]
    with pytest.raises(ApplyConflict, match=r"\.spec\.l$"):
        applied(live, {**config, "spec": {"l": [1, 2]}}, manager="second", force=False, now=NOW)


def test_a_crds_schema_says_how_its_lists_are_merged() -> None:
    """List types, their keys with defaults and atomic maps come from the structural schema."""
    spec = data_file.document("""
    type: object
    properties:
      items:
        type: array
        x-kubernetes-list-type: map
        x-kubernetes-list-map-keys: [name, kind]
        items:
          type: object
          properties: {name: {type: string}, kind: {type: string, default: x}, v: {type: integer}}
      tags: {type: array, x-kubernetes-list-type: set, items: {type: string}}
      ref: {type: object, x-kubernetes-map-type: atomic, properties: {a: {type: string}}}
    """)
    types = ListTypes.from_crd({"type": "object", "properties": {"spec": spec}}, has_status=False)
    thing: Object = {"apiVersion": "x.io/v1", "kind": "Thing", "metadata": {"name": "t"}}
    first = {**thing, "spec": {"items": [{"name": "a", "v": 1}], "tags": ["x"], "ref": {"a": "1"}}}
    second = {**thing, "spec": {"items": [{"name": "a", "kind": "y", "v": 2}], "tags": ["y"]}}
    live = applied(None, first, manager="first", force=False, now=NOW, schema=types)
    merged = applied(live, second, manager="second", force=False, now=NOW, schema=types)
    assert [item["v"] for item in merged["spec"]["items"]] == [1, 2]
    assert merged["spec"]["tags"] == ["x", "y"]
    assert ".spec.ref" in owners(merged)["first Apply"]
    assert '.spec.items[kind="x",name="a"].v' in owners(merged)["first Apply"]
    with pytest.raises(InvalidConfig, match=r"\.spec\.nonsense: field not declared in schema"):
        applied(live, {**thing, "spec": {"nonsense": 1}}, manager="second", force=False, now=NOW, schema=types)
