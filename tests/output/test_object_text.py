"""Fields, YAML and diffs of objects: short, and without secrets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_provision.model.plan import Action, Change, FieldChange
from gpu_provision.output import object_text
from gpu_provision.output.object_text import (
    display_value,
    field_document,
    field_line,
    is_secret,
    path_steps,
    put_field,
    redact,
)
from tests.data_file import document
from tests.output import samples


def _lines(change: Change) -> list[str]:
    return object_text.diff_text(replace(samples.EMPTY_PLAN, changes=(change,))).splitlines()


def test_a_diff_shows_the_lines_that_change() -> None:
    """In their YAML context; a created object is all additions; a field with an unknown path is kept."""
    lines = _lines(samples.upgrade())
    assert "-        image: example.com/dcgm-exporter:4.2.0" in lines
    assert "+        image: example.com/dcgm-exporter:4.4.1" in lines
    assert "       - name: dcgm" in lines
    created = _lines(replace(samples.upgrade(), action=Action.CREATE, fields=()))
    assert created[0] == "--- /dev/null"
    assert all(line.startswith(("+", "-", "@")) for line in created)
    odd = replace(samples.upgrade(), fields=(FieldChange("spec.nodes[7].x", 1, 2),))
    assert "@ spec.nodes[7].x: 1 -> 2" in _lines(odd)
    secret = _lines(samples.secret("b2xk", "bmV3"))
    assert "@ data.token: (changed)" in secret
    assert not any("b2xk" in line or "bmV3" in line for line in secret)


def test_paths_are_read_as_plans_write_them() -> None:
    """Quoted keys keep their dots; items are found by name, port or position."""
    assert path_steps('metadata.labels."a.b/c"') == ("metadata", "labels", "a.b/c")
    assert path_steps("spec.ports[9400].port") == ("spec", "ports", "9400", "port")
    assert put_field({"ports": [{"port": 1}, {"port": 9400}]}, "ports[9400].port", 5) == {
        "ports": [{"port": 1}, {"port": 5}]
    }
    assert put_field({"args": ["a", "b"]}, "args[1]", "c") == {"args": ["a", "c"]}


def test_putting_back_what_was_removed_or_was_not_there() -> None:
    """None removes; a missing item or key is added."""
    assert put_field({"a": {"b": 1}}, "a.b", None) == {"a": {}}
    assert put_field({"env": []}, "env[X]", {"name": "X"}) == {"env": [{"name": "X"}]}
    assert put_field({"env": [{"name": "X"}]}, "env[X]", None) == {"env": []}
    assert put_field({}, "a.b", 1) == {"a": {"b": 1}}


CASES: dict[str, list[list[Any]]] = document(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("value", "expected"), [*CASES["values"], ("x" * 100, "x" * 69 + "...")])
def test_a_value_takes_one_short_line(value: object, expected: str) -> None:
    """Long values are cut, scripts are counted."""
    assert display_value(value) == expected


@pytest.mark.parametrize("kind", ["secret", "shown"])
def test_what_counts_as_a_secret(kind: str) -> None:
    assert [case for case in CASES[kind] if is_secret(*case) is not (kind == "secret")] == []


@pytest.mark.parametrize(("path", "value"), CASES["whole"])
def test_a_secret_inside_a_value_is_hidden_and_the_rest_is_not(path: str, value: object) -> None:
    """In a line of text, in JSON, and in an object."""
    field = FieldChange(path, None, value)
    manifest = {"kind": "Pod", path.rpartition(".")[2]: value}
    for told in (field_line("DaemonSet", field), str(field_document("DaemonSet", field))):
        assert "hunter2" not in told
        assert "seen" in told or "--token=" in told or "@proxy" in str(value)
    assert "hunter2" not in str(redact(manifest)) or "env[" in path


def test_a_redacted_secret_keeps_its_keys() -> None:
    """The keys are visible, the values are not."""
    manifest = {"kind": "Secret", "metadata": {"name": "x"}, "data": {"token": "aHVudGVyMg=="}}
    assert redact(manifest) == {"kind": "Secret", "metadata": {"name": "x"}, "data": {"token": "(changed)"}}


@pytest.mark.parametrize(("old", "new", "is_downgrade"), CASES["images"])
def test_an_image_that_goes_back_is_marked(old: str, new: str | None, is_downgrade: bool) -> None:  # noqa: FBT001 - a table
    line = field_line("DaemonSet", FieldChange("spec.template.spec.containers[x].image", old, new))
    assert line.endswith("(downgrade)") == is_downgrade


MANIFEST = {
    "data": {"run.sh": "#!/bin/sh\nexit 0\n", "no": "no", "version": "1.0"},
    "metadata": {"name": "x"},
    "kind": "ConfigMap",
    "apiVersion": "v1",
}


def test_what_is_written_reads_back_as_the_same_value() -> None:
    """Strings that look like numbers stay strings; apiVersion, kind and metadata come first; scripts are block text."""
    text = object_text.yaml_stream([MANIFEST, MANIFEST])
    assert list(yaml.safe_load_all(text)) == [MANIFEST, MANIFEST]
    assert text.startswith("---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n")
    assert "run.sh: |\n" in text
