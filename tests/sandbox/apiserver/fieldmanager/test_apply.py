"""Server-side apply and ownership, case by case (cases/*.yaml) and as laws that hold for all of them."""

from __future__ import annotations

import json
from contextlib import nullcontext, suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.sandbox.apiserver.fieldmanager import (
    ApplyConflictError,
    InvalidConfigError,
    ObjectType,
    apply_configuration,
    record_update,
    same_but_for_times,
)
from gpu_provision.sandbox.apiserver.fieldmanager.fieldset import paths
from gpu_provision.sandbox.apiserver.fieldmanager.managed_fields import LAST_APPLIED, decode_entries, encode_entries
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
        return record_update(live, step["update"], manager=manager, subresource=subresource, now=now)
    force = step.get("force", False)
    return apply_configuration(live, step["apply"], manager=manager, force=force, subresource=subresource, now=now)


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
def test_a_write_gives_the_object_and_the_owners(case: Case) -> None:
    """The result is what a Kubernetes API server stores."""
    result = done(prepared(case), case["when"])
    expected = case["then"]
    assert bare(result) == expected.get("object", bare(result))
    if "owners" in expected:
        assert owners(result) == {who: sorted(fields) for who, fields in expected["owners"].items()}


@pytest.mark.parametrize("case", [case for case in CASES if "conflicts" in case["then"]], ids=name_of)
def test_an_apply_is_refused_with_its_conflicts(case: Case) -> None:
    """Every field that another manager owns and the apply would change is named, in the server's words."""
    with pytest.raises(ApplyConflictError) as refusal:
        done(prepared(case), case["when"])
    found = [[who.manager, who.operation, path] for who, path in refusal.value.conflicts]
    assert found == case["then"]["conflicts"]
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
    with suppress(ApplyConflictError):
        done(live, case["when"])
    assert (live, case["when"]) == (before, step)


@pytest.mark.parametrize("case", [case for case in CASES if prepared(case)], ids=name_of)
def test_a_newcomer_takes_away_only_its_own(case: Case) -> None:
    """An apply and then an apply of nothing gives back what was there, the other owners included."""
    live = prepared(case)
    assert live is not None
    nothing = {"apiVersion": live["apiVersion"], "kind": live["kind"], "metadata": {"name": live["metadata"]["name"]}}
    note = {**nothing, "metadata": {**nothing["metadata"], "annotations": {"x.io/note": "new"}}}
    tracked = done(live, {"apply": nothing, "manager": "newcomer"})
    extended = done(tracked, {"apply": note, "manager": "newcomer"})
    assert extended["metadata"]["annotations"] == {"x.io/note": "new"}
    assert done(extended, {"apply": nothing, "manager": "newcomer"}, LATER) == tracked


def test_an_apply_without_a_change_has_no_time() -> None:
    """Who shares a field without changing the object gets an entry without a time, as in the server."""
    first = apply_configuration(None, DAEMON_SET, manager="first", force=False, now=NOW)
    second = apply_configuration(first, DAEMON_SET, manager="second", force=False, now=LATER)
    assert [entry.get("time") for entry in second["metadata"]["managedFields"]] == [None, NOW]
    assert bare(second) == bare(first)
    assert not same_but_for_times(first, second)


def test_objects_that_differ_in_times_only_are_told() -> None:
    """A caller can see that a write would change nothing but the times."""
    obj = apply_configuration(None, DAEMON_SET, manager="first", force=False, now=NOW)
    later = apply_configuration(None, DAEMON_SET, manager="first", force=False, now=LATER)
    assert obj != later
    assert same_but_for_times(obj, later)
    assert not same_but_for_times(obj, {**later, "spec": {}})


def test_an_update_with_keyless_items_keeps_the_owners() -> None:
    """Bookkeeping never fails a write that was accepted."""
    account: Object = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "s"}}
    live = apply_configuration(None, {**account, "secrets": [{"name": "a"}]}, manager="first", force=False, now=NOW)
    result = record_update(live, {**live, "secrets": [{}]}, manager="editor", now=LATER)
    assert result == {**live, "secrets": [{}]}


def test_entries_that_a_client_edited_count() -> None:
    """A client may take a manager out of the list; what is left is where the update starts from."""
    obj: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "1"}}
    live = apply_configuration(None, obj, manager="first", force=False, now=NOW)
    live = apply_configuration(live, obj, manager="second", force=False, now=NOW)
    kept = [entry for entry in live["metadata"]["managedFields"] if entry["manager"] == "second"]
    edited = {**live, "metadata": {**live["metadata"], "managedFields": kept}}
    assert list(owners(record_update(live, edited, manager="editor", now=LATER))) == ["second Apply"]


def test_lists_of_an_unknown_kind_are_one_value() -> None:
    """Without a schema, objects are merged and lists are atomic."""
    config: Object = {
        "apiVersion": "x.io/v1",
        "kind": "Thing",
        "metadata": {"name": "t"},
        "spec": {"l": [1], "o": {"a": 1}},
    }
    live = apply_configuration(None, config, manager="first", force=False, now=NOW)
    other = {**config, "spec": {"o": {"b": 2}}}
    merged = apply_configuration(live, other, manager="second", force=False, now=NOW)
    assert merged["spec"] == {"l": [1], "o": {"a": 1, "b": 2}}
    assert owners(merged)["second Apply"] == [".spec", ".spec.o", ".spec.o.b"]
    with pytest.raises(ApplyConflictError, match=r"\.spec\.l$"):
        apply_configuration(live, {**config, "spec": {"l": [1, 2]}}, manager="second", force=False, now=NOW)


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
    types = ObjectType.from_schema({"type": "object", "properties": {"spec": spec}}, has_status=False)
    thing: Object = {"apiVersion": "x.io/v1", "kind": "Thing", "metadata": {"name": "t"}}
    first = {**thing, "spec": {"items": [{"name": "a", "v": 1}], "tags": ["x"], "ref": {"a": "1"}}}
    second = {**thing, "spec": {"items": [{"name": "a", "kind": "y", "v": 2}], "tags": ["y"]}}
    live = apply_configuration(None, first, manager="first", force=False, now=NOW, types=types)
    merged = apply_configuration(live, second, manager="second", force=False, now=NOW, types=types)
    assert [item["v"] for item in merged["spec"]["items"]] == [1, 2]
    assert merged["spec"]["tags"] == ["x", "y"]
    assert ".spec.ref" in owners(merged)["first Apply"]
    assert '.spec.items[kind="x",name="a"].v' in owners(merged)["first Apply"]


@pytest.mark.parametrize(
    ("containers", "message"),
    [
        ([{"name": "x"}, {"name": "x"}], r'containers: duplicate entries for key \[name="x"\]$'),
        (["x"], r"containers: element 0: .* non-map elements$"),
    ],
)
def test_items_that_cannot_be_told_apart_are_refused(containers: list[Any], message: str) -> None:
    """The reader finds the field in the manifest."""
    config = {**DAEMON_SET, "spec": {"template": {"spec": {"containers": containers}}}}
    prefix = r"^failed to create typed patch object \(default/d; apps/v1, Kind=DaemonSet\): \.spec\.template\.spec\."
    with pytest.raises(InvalidConfigError, match=prefix + message):
        apply_configuration(None, config, manager="first", force=False, now=NOW)


@pytest.mark.parametrize("change", [{"operation": "Other"}, {"fieldsType": "FieldsV2"}, {"fieldsV1": ["f:a"]}], ids=str)
def test_one_entry_that_is_not_understood_spoils_the_list(change: Object) -> None:
    """The server then starts from nothing; so does the sandbox."""
    entry = {
        "apiVersion": "v1",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:a": {}},
        "manager": "m",
        "operation": "Update",
    }
    assert encode_entries(decode_entries([entry])) == [entry]
    assert decode_entries([entry, {**entry, "manager": "n", **change}]) == {}


@pytest.mark.parametrize(
    ("manager", "annotation", "conflicts"),
    [
        ("kubectl", {"data": {"a": "1"}}, False),
        ("kubectl", {"data": {"a": "other"}}, True),  # changed since by another manager
        ("helm", {"data": {"a": "1"}}, True),  # the annotation speaks for kubectl only
        ("kubectl", {"data": {"a": "1"}, "apiVersion": "v2"}, True),
    ],
)
def test_kubectl_takes_over_what_it_applied_client_side(manager: str, annotation: Object, *, conflicts: bool) -> None:
    """The fields in the annotation are kubectl's own, so changing them is no conflict; the annotation follows."""
    config: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "1"}}
    text = json.dumps({**config, **annotation})
    made = {**config, "metadata": {"name": "c", "annotations": {LAST_APPLIED: text}}}
    live = record_update(None, made, manager="kubectl-client-side-apply", now=NOW)
    with pytest.raises(ApplyConflictError) if conflicts else nullcontext():
        result = apply_configuration(live, {**config, "data": {"a": "2"}}, manager=manager, force=False, now=NOW)
        assert json.loads(result["metadata"]["annotations"][LAST_APPLIED])["data"] == {"a": "2"}
