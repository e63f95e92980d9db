"""The published schema: valid, described to the last key, and in step with the model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from gpu_provision.inventory import schema
from gpu_provision.inventory.json_schema import resolve_ref
from gpu_provision.inventory.redaction import is_shown_variable
from gpu_provision.inventory.schema_errors import suggest_value
from tools.inventory_page import markdown
from tools.inventory_schema import inventory_schema


def parts(part: dict[str, Any], name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield name, part
    for key, child in part.get("properties", {}).items():
        yield from parts(resolve_ref(child), f"{name}.{key}")
    for inner in ("additionalProperties", "items"):
        if isinstance(part.get(inner), dict):
            yield from parts(resolve_ref(part[inner]), f"{name}[]")


ALL = dict(parts(schema(), "inventory"))
USERS = {
    "with-every-setting",
    "with-own-runtime-paths",
    "with-gds-and-gdrcopy",
    "with-variables-of-validations",
    "with-a-node-status-exporter",
}  # golden cases with variables of the user


def test_it_is_a_schema_of_draft_2020_12() -> None:
    """Editors rely on it."""
    assert schema()["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    Draft202012Validator.check_schema(schema())


def test_the_schema_is_that_of_the_declarations() -> None:
    """And so is the page of all keys. After a change of a setting: make docs."""
    assert json.loads(json.dumps(inventory_schema())) == schema()
    assert (Path(__file__).parents[2] / "docs" / "inventory.md").read_text(encoding="utf-8") == markdown()


@pytest.mark.parametrize("name", ALL)
def test_every_key_is_described(name: str) -> None:
    """The description is what an editor shows."""
    assert ALL[name]["description"].endswith((".", ".`"))
    assert len(ALL[name]["description"]) > 10


@pytest.mark.parametrize("name", [name for name, part in ALL.items() if part["type"] == "object"])
def test_no_mapping_takes_unknown_keys(name: str) -> None:
    """A typo must not pass in silence."""
    assert ALL[name]["additionalProperties"] is False or ALL[name]["propertyNames"]["pattern"]


def test_every_pattern_has_a_sentence() -> None:
    """A regular expression explains nothing to most people."""
    for part in ALL.values():
        for holder in (part, part.get("propertyNames", {})):
            assert ("pattern" in holder) == ("patternErrorMessage" in holder)


@pytest.mark.parametrize("name", [name for name, part in ALL.items() if "default" in part or "examples" in part])
def test_defaults_and_examples_are_valid(name: str) -> None:
    """What the documentation shows can be copied."""
    validator = Draft202012Validator({**ALL[name], "$defs": schema()["$defs"]})
    for value in [*ALL[name].get("examples", ()), *([ALL[name]["default"]] if "default" in ALL[name] else [])]:
        validator.validate(value)


def test_every_definition_is_used() -> None:
    """Leftovers would be documented and mean nothing."""
    text = str(schema())
    assert all(f"#/$defs/{name}" in text for name in schema()["$defs"])


def test_shown_variables_are_those_of_the_components() -> None:
    """Every variable that a component sets itself, and that does not come of all others as a digest does."""
    folder = Path(__file__).parents[1] / "golden"
    texts = [file.read_text() for file in folder.rglob("*.*") if file.stem not in USERS]
    own = {name for text in texts for name in re.findall(r"- name: (\w+)\n\+?\s+value:", text)} - {
        "DRIVER_CONFIG_DIGEST"
    }
    assert len(own) > 50
    assert {name for name in own if not is_shown_variable(name)} == set()
    assert not is_shown_variable("DRIVER_CONFIG_DIGEST")


def test_what_may_come_from_elsewhere_is_secret() -> None:
    """And the other way round: each place that the schema marks takes a reference."""
    marked = {name for name, part in ALL.items() if part.get("x-secret") and part["type"] != "object"}
    assert marked == {name for name, part in ALL.items() if {"file", "env"} <= part.get("properties", {}).keys()}
    assert {name.rpartition(".")[2] for name in marked} == {"env[]", "http_proxy", "https_proxy"}


@pytest.mark.parametrize(
    ("definition", "value", "better"),
    [
        ("name", "T4_Pool", "t4-pool"),
        ("name", "a" * 70, ""),
        ("os", "Ubuntu 22.04", "ubuntu22.04"),
        ("os", "ubuntu-24.04", "ubuntu24.04"),
        ("os", "Ubuntu", ""),
        ("repository", "https://nvcr.io/nvidia/", "nvcr.io/nvidia"),
        ("image", "nvcr.io/nvidia/driver:580.126.20", "driver"),
        ("quantity", "512MB", "512M"),
        ("quantity", "lots", ""),
    ],
)
def test_the_value_behind_a_malformed_one(definition: str, value: str, better: str) -> None:
    """Common slips are undone; nothing is made up."""
    assert suggest_value(value, schema()["$defs"][definition]["pattern"]) == better
