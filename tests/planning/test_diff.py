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


def test_equal_objects_have_no_differences() -> None:
    assert differences(daemonset(), daemonset()) == ()


def test_what_the_server_adds_is_no_difference() -> None:
    """Defaults, status and bookkeeping fields stand only in the live object."""
    live = daemonset(terminationMessagePath="/dev/termination-log")
    live["metadata"] |= {"uid": "1", "resourceVersion": "7", "annotations": {"other": "tool"}}
    live["status"] = {"numberReady": 1}
    assert differences(daemonset(), live) == ()


def test_a_changed_value_is_named_with_old_and_new() -> None:
    path = "spec.template.spec.containers[main].image"
    assert differences(daemonset("plugin:v2"), daemonset()) == (FieldChange(path, "plugin:v1", "plugin:v2"),)


def test_a_missing_field_is_added() -> None:
    path = "spec.template.spec.containers[main].args"
    assert differences(daemonset(args=["-v"]), daemonset()) == (FieldChange(path, None, ["-v"]),)


def test_list_items_are_matched_by_key_whatever_their_order() -> None:
    desired = daemonset(env=[{"name": "A", "value": "1"}, {"name": "B", "value": "2"}])
    live = daemonset(env=[{"name": "B", "value": "2"}, {"name": "A", "value": "9"}, {"name": "C", "value": "3"}])
    path = "spec.template.spec.containers[main].env[A].value"
    assert differences(desired, live) == (FieldChange(path, "9", "1"),)


def test_ports_without_a_protocol_are_tcp() -> None:
    desired = daemonset(ports=[{"containerPort": 9400, "name": "metrics"}])
    live = daemonset(ports=[{"containerPort": 9400, "name": "metrics", "protocol": "TCP"}])
    assert differences(desired, live) == ()


def test_unkeyed_lists_are_compared_by_position() -> None:
    changes = differences(daemonset(args=["-v", "2"]), daemonset(args=["-v", "1"]))
    assert changes == (FieldChange("spec.template.spec.containers[main].args[1]", "1", "2"),)


def test_unkeyed_lists_of_other_length_differ_as_a_whole() -> None:
    changes = differences(daemonset(args=["-v"]), daemonset(args=[]))
    assert [change.path for change in changes] == ["spec.template.spec.containers[main].args"]


def test_a_field_that_we_owned_and_no_longer_want_goes() -> None:
    container = {'k:{"name":"main"}': {".": {}, "f:name": {}, "f:image": {}, "f:args": {}}}
    fields = {"f:spec": {"f:template": {"f:spec": {"f:containers": container}}}}
    live = owned(daemonset(args=["-v"]), fields)
    path = "spec.template.spec.containers[main].args"
    assert differences(daemonset(), live) == (FieldChange(path, ["-v"], None),)


def test_a_list_item_that_we_owned_and_no_longer_want_goes() -> None:
    env = {'k:{"name":"OLD"}': {".": {}, "f:name": {}, "f:value": {}}}
    fields = {"f:spec": {"f:template": {"f:spec": {"f:containers": {'k:{"name":"main"}': {"f:env": env}}}}}}
    live = owned(daemonset(env=[{"name": "OLD", "value": "1"}, {"name": "NEW", "value": "2"}]), fields)
    changes = differences(daemonset(env=[{"name": "NEW", "value": "2"}]), live)
    assert [change.path for change in changes] == ["spec.template.spec.containers[main].env[OLD]"]


def test_fields_of_other_managers_are_left_alone() -> None:
    fields = {"f:metadata": {"f:annotations": {"f:theirs": {}}}}
    live = owned(daemonset(), fields, manager="helm")
    live["metadata"]["annotations"] = {"theirs": "1"}
    assert differences(daemonset(), live) == ()


def test_true_is_not_one() -> None:
    """JSON tells booleans from numbers; Python's equality does not."""
    assert len(differences(daemonset(tty=True), daemonset(tty=1))) == 1


def test_keys_with_dots_are_quoted() -> None:
    desired, live = daemonset(), daemonset()
    desired["metadata"]["labels"] = {"nvidia.com/gpu": "1"}
    live["metadata"]["labels"] = {"nvidia.com/gpu": "0"}
    assert differences(desired, live)[0].path == 'metadata.labels."nvidia.com/gpu"'


def test_changes_between_versions_name_what_came_and_went() -> None:
    before, after = daemonset(args=["-v"]), daemonset("plugin:v2")
    assert changes_between(before, after) == (
        FieldChange("spec.template.spec.containers[main].args", ["-v"], None),
        FieldChange("spec.template.spec.containers[main].image", "plugin:v1", "plugin:v2"),
    )


def test_a_template_digest_counts_only_if_nothing_else_differs() -> None:
    """A reader wants the one field that changed; a forged digest alone is still drift."""

    def labelled(digest: str, image: str) -> dict[str, Any]:
        made = daemonset(image)
        made["spec"]["template"]["metadata"] = {"labels": {"gpu-provision.io/digest": digest}}
        return made

    both = differences(labelled("b", "plugin:v2"), labelled("a", "plugin:v1"))
    assert [change.path for change in both] == ["spec.template.spec.containers[main].image"]
    assert len(differences(labelled("b", "plugin:v1"), labelled("a", "plugin:v1"))) == 1


def test_the_generation_in_an_annotation_is_no_change() -> None:
    """A DaemonSet's change says what its reader changed, and nothing else."""
    before, after = daemonset("plugin:v1"), daemonset("plugin:v2")
    before["metadata"]["annotations"] = {"deprecated.daemonset.template.generation": "1"}
    after["metadata"]["annotations"] = {"deprecated.daemonset.template.generation": "2"}
    assert [change.path for change in changes_between(before, after)] == ["spec.template.spec.containers[main].image"]


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
    after = {
        "a": [_item("ConfigMap", "same", data={"k": "v"}), _item("ConfigMap", "new")],
        "b": [_item("Pod", "new")],
    }
    found = [(each.component, each.action, each.ref.name) for each in diff_manifests(before, after)]
    assert found == [
        ("a", Action.UPDATE, "same"),
        ("a", Action.CREATE, "new"),
        ("b", Action.RUN, "new"),
        ("a", Action.DELETE, "gone"),
    ]
    assert diff_manifests(after, after) == ()
