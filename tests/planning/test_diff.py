"""What counts as a difference between a desired object and the live one."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_provision.model.cluster import Manifest
from gpu_provision.model.plan import Action, FieldChange
from gpu_provision.planning.diff import changes_between, diff_manifests, differences, shows


def daemonset(image: str = "plugin:v1", **container: Any) -> dict[str, Any]:
    spec = {"template": {"spec": {"containers": [{"name": "main", "image": image, **container}]}}}
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "ds", "namespace": "ns"}, "spec": spec}


def owned(manifest: dict[str, Any], fields: dict[str, Any], manager: str = "gpu-provision") -> dict[str, Any]:
    entry = {"manager": manager, "operation": "Apply", "fieldsV1": fields}
    return {**manifest, "metadata": {**manifest["metadata"], "managedFields": [entry]}}


MAIN = "spec.template.spec.containers[main]"
ARGS = {"f:spec": {"f:template": {"f:spec": {"f:containers": {'k:{"name":"main"}': {".": {}, "f:args": {}}}}}}}
OLD_ENV = {'k:{"name":"OLD"}': {".": {}, "f:name": {}, "f:value": {}}}
ENV = {"f:spec": {"f:template": {"f:spec": {"f:containers": {'k:{"name":"main"}': {"f:env": OLD_ENV}}}}}}
NEW_ENV = {"name": "NEW", "value": "2"}


def of_server() -> dict[str, Any]:
    """Return a live object with defaults, status and bookkeeping fields."""
    live = daemonset(terminationMessagePath="/dev/termination-log")
    live["metadata"] |= {"uid": "1", "resourceVersion": "7", "annotations": {"other": "tool"}}
    return {**live, "status": {"numberReady": 1}}


def noted(value: str, *, manager: str = "") -> dict[str, Any]:
    """Return an object with an annotation, which may be of a manager."""
    made = daemonset()
    made["metadata"]["annotations"] = {"nvidia.com/gpu": value}
    return owned(made, {"f:metadata": {"f:annotations": {"f:nvidia.com/gpu": {}}}}, manager) if manager else made


@pytest.mark.parametrize(
    ("desired", "live", "found"),
    [
        (daemonset(), daemonset(), ()),
        (daemonset(), of_server(), ()),
        (daemonset("plugin:v2"), daemonset(), (FieldChange(f"{MAIN}.image", "plugin:v1", "plugin:v2"),)),
        (daemonset(args=["-v"]), daemonset(), (FieldChange(f"{MAIN}.args", None, ["-v"]),)),
        (
            daemonset(env=[{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]),
            daemonset(env=[{"name": "B", "value": "2"}, {"name": "A", "value": "9"}, {"name": "C", "value": "3"}]),
            (FieldChange(f"{MAIN}.env[A].value", "9", "1"),),
        ),
        (daemonset(ports=[{"containerPort": 94}]), daemonset(ports=[{"containerPort": 94, "protocol": "TCP"}]), ()),
        (daemonset(args=["-v", "2"]), daemonset(args=["-v", "1"]), (FieldChange(f"{MAIN}.args[1]", "1", "2"),)),
        (daemonset(args=["-v"]), daemonset(args=[]), (FieldChange(f"{MAIN}.args", [], ["-v"]),)),
        (daemonset(), owned(daemonset(args=["-v"]), ARGS), (FieldChange(f"{MAIN}.args", ["-v"], None),)),
        (
            daemonset(env=[NEW_ENV]),
            owned(daemonset(env=[{"name": "OLD"}, NEW_ENV]), ENV),
            (FieldChange(f"{MAIN}.env[OLD]", {"name": "OLD"}, None),),
        ),
        (daemonset(), noted("1", manager="helm"), ()),
        (daemonset(tty=True), daemonset(tty=1), (FieldChange(f"{MAIN}.tty", 1, new=True),)),
        (noted("1"), noted("0"), (FieldChange('metadata.annotations."nvidia.com/gpu"', "0", "1"),)),
    ],
    ids=[
        "equal",
        "what the server adds",
        "a changed value",
        "a missing field",
        "list items by key, in any order",
        "ports without a protocol are TCP",
        "other lists by position",
        "lists of another length as a whole",
        "a field that is no longer wanted",
        "a list item that is no longer wanted",
        "a field of another manager",
        "true is not one",
        "keys with dots are quoted",
    ],
)
def test_fields_that_are_not_as_desired(
    desired: dict[str, Any], live: dict[str, Any], found: tuple[FieldChange, ...]
) -> None:
    assert differences(desired, live) == found


def test_changes_between_versions_name_what_came_and_went() -> None:
    before, after = daemonset(args=["-v"]), daemonset("plugin:v2")
    assert changes_between(before, after) == (
        FieldChange(f"{MAIN}.args", ["-v"], None),
        FieldChange(f"{MAIN}.image", "plugin:v1", "plugin:v2"),
    )


def test_a_template_digest_counts_only_if_nothing_else_differs() -> None:
    """A reader wants the one field that changed; a forged digest alone is still drift."""

    def labelled(digest: str, image: str) -> dict[str, Any]:
        made = daemonset(image)
        made["spec"]["template"]["metadata"] = {"labels": {"gpu-provision.io/digest": digest}}
        return made

    both = differences(labelled("b", "plugin:v2"), labelled("a", "plugin:v1"))
    assert [change.path for change in both] == [f"{MAIN}.image"]
    assert len(differences(labelled("b", "plugin:v1"), labelled("a", "plugin:v1"))) == 1


def test_the_generation_in_an_annotation_is_no_change() -> None:
    """A DaemonSet's change says what its reader changed, and nothing else."""
    before, after = daemonset("plugin:v1"), daemonset("plugin:v2")
    before["metadata"]["annotations"] = {"deprecated.daemonset.template.generation": "1"}
    after["metadata"]["annotations"] = {"deprecated.daemonset.template.generation": "2"}
    assert [change.path for change in changes_between(before, after)] == [f"{MAIN}.image"]


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ({"data": {"a": "1"}}, True),
        ({"metadata": {"resourceVersion": "6", "uid": "u"}, "data": {"a": "1", "b": None}}, True),
        ({"metadata": {"annotations": {}}, "immutable": False}, True),
        ({"data": {"a": None}}, False),
        ({"data": {"a": "2"}}, False),
        ({"data": {"a": "1", "c": "3"}}, False),
        ({"metadata": {"uid": "another"}}, False),
    ],
)
def test_an_object_shows_what_a_write_has_sent(sent: Manifest, *, expected: bool) -> None:
    live: Manifest = {"metadata": {"name": "n", "uid": "u", "resourceVersion": "7"}, "data": {"a": "1", "d": "4"}}
    assert shows(live, sent) is expected


def _item(kind: str, name: str, **rest: object) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": "n"}, **rest}


def test_objects_come_change_and_go_and_validations_run() -> None:
    before = {"a": [_item("ConfigMap", "same"), _item("ConfigMap", "gone"), _item("Pod", "old")]}
    after = {"a": [_item("ConfigMap", "same", data={"k": "v"}), _item("ConfigMap", "new")], "b": [_item("Pod", "new")]}
    found = [(each.component, each.action, each.ref.name) for each in diff_manifests(before, after)]
    assert found == [
        ("a", Action.UPDATE, "same"),
        ("a", Action.CREATE, "new"),
        ("b", Action.RUN, "new"),
        ("a", Action.DELETE, "gone"),
    ]
    assert diff_manifests(after, after) == ()
