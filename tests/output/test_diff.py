"""plan --diff: everything, as YAML."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

from gpu_provision.model.plan import Action, Change, FieldChange, Plan
from gpu_provision.output import object_text
from gpu_provision.output.object_text import path_steps, put_field


def _lines(plan: Plan, change: Change) -> list[str]:
    return object_text.diff_text(replace(plan, changes=(change,))).splitlines()


def test_an_update_shows_the_lines_that_change(samples: ModuleType) -> None:
    """Old and new value stand in their YAML context."""
    lines = _lines(samples.EMPTY_PLAN, samples.upgrade())
    assert "-        image: example.com/dcgm-exporter:4.2.0" in lines
    assert "+        image: example.com/dcgm-exporter:4.4.1" in lines
    assert "       - name: dcgm" in lines


def test_a_new_object_is_all_additions(samples: ModuleType) -> None:
    """A created object comes from /dev/null, as in any diff."""
    created = replace(samples.upgrade(), action=Action.CREATE, fields=())
    lines = _lines(samples.EMPTY_PLAN, created)
    assert lines[0] == "--- /dev/null"
    assert all(line.startswith(("+", "-", "@")) for line in lines)


def test_a_secret_shows_that_it_changes_and_nothing_more(samples: ModuleType) -> None:
    """Not even the diff of everything shows a secret."""
    lines = _lines(samples.EMPTY_PLAN, samples.secret("b2xk", "bmV3"))
    assert "@ data.token: (changed)" in lines
    assert not any("b2xk" in line or "bmV3" in line for line in lines)


def test_a_path_that_leads_nowhere_is_told_as_a_line(samples: ModuleType) -> None:
    """A field whose place cannot be found is not lost."""
    odd = replace(samples.upgrade(), fields=(FieldChange("spec.nodes[7].x", 1, 2),))
    assert "@ spec.nodes[7].x: 1 -> 2" in _lines(samples.EMPTY_PLAN, odd)


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
