"""Differences between a desired object and the live one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_provision.model.cluster import Manifest
from gpu_provision.model.plan import Action, FieldChange
from gpu_provision.planning.diff import changes_between, diff_manifests, differences, has_sent_fields


def daemonset(image: str = "plugin:v1", **container: Any) -> dict[str, Any]:
    spec = {"template": {"spec": {"containers": [{"name": "main", "image": image, **container}]}}}
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "ds", "namespace": "ns"}, "spec": spec}


CASES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
MAIN = "spec.template.spec.containers[main]"


@pytest.mark.parametrize("case", CASES)
def test_fields_that_are_not_as_desired(case: str) -> None:
    desired, live = (_with_parts(**CASES[case][side]) for side in ("desired", "live"))
    expected = [(path.replace("MAIN", MAIN), old, new) for path, old, new in CASES[case]["found"]]
    found = differences(desired, live)
    assert [(each.path, each.old, each.new) for each in found] == expected


def _with_parts(
    container: dict[str, Any] | None = None, metadata: dict[str, Any] | None = None, **status: Any
) -> dict[str, Any]:
    made = daemonset(**(container or {}))
    return {**made, "metadata": {**made["metadata"], **(metadata or {})}, **status}


def test_changes_between_versions_name_added_and_removed_fields() -> None:
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
    """A change of a DaemonSet has the edited fields only."""
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
    assert has_sent_fields(live, sent) is expected


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
