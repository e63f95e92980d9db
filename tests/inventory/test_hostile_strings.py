"""Hostile texts in every place of an inventory that takes a text: refused, or free by declaration and harmless."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path as FilePath
from typing import Any

import pytest
import yaml

from gpu_provision import render
from gpu_provision.inventory import schema
from gpu_provision.inventory.document import KeyPath, Source, read_source
from gpu_provision.inventory.json_schema import find_schema_errors, resolve_ref
from gpu_provision.inventory.loader import validate_source
from gpu_provision.inventory.pyinfra_inventory import ssh_config
from gpu_provision.inventory.yaml_parser import parse
from gpu_provision.model.findings import Findings
from gpu_provision.model.inventory import Inventory
from gpu_provision.output import object_text
from tests import data_file

COMPLETE = FilePath(__file__).parent / "good/complete.yaml"

HOSTILE: dict[str, Callable[[str], str]] = {
    "newline": lambda text: f"{text}\n",
    "carriage return": lambda text: f"{text}\r",
    "zero": lambda text: f"{text}\0",
    "escape": lambda text: f"{text}\x1b[2J",
    "substitution": lambda text: f"{text}$(id)",
    "command": lambda text: f"{text}; rm -rf /",
    "parents": lambda text: f"{text}/../..",
    "option": lambda text: f"--{text}",
    "next line": lambda text: f"{text}\x85a",
    "line separator": lambda text: f"{text}\u2028a",
    "paragraph separator": lambda text: f"{text}\u2029a",
    "long": lambda text: f"{text}{'1' * 20_000}",
}

_PLACES: dict[str, dict[str, str]] = data_file.document(FilePath(__file__).with_suffix(".yaml").read_text())
REFERENCES, FREE = _PLACES["references"], _PLACES["free"]


def find_texts(part: dict[str, Any], data: Any, path: KeyPath = (), place: str = "") -> Iterator[tuple[KeyPath, str]]:
    """Yield where the data has a text that no list of values bounds: its path, and the place in the schema."""
    part = resolve_ref(part)
    if isinstance(data, dict):
        for key, value in data.items():
            known = key in part.get("properties", {})
            child = part["properties"][key] if known else part["additionalProperties"]
            if child is not True:  # of another program's form, such as a file of Node Feature Discovery
                yield from find_texts(child, value, (*path, key), f"{place}.{key}" if known else f"{place}.*")
    elif isinstance(data, list):
        for position, value in enumerate(data):
            yield from find_texts(part["items"], value, (*path, position), f"{place}[]")
    elif "string" in part["type"] and "enum" not in part:
        yield path, place.removeprefix(".")


def find_keys(part: dict[str, Any], data: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, str]]:
    """Yield the mappings of the data whose keys are texts of the user's own: the path, and a key of each."""
    part = resolve_ref(part)
    if isinstance(data, dict):
        if "propertyNames" in part:
            yield path, next(iter(data))
        for key, value in data.items():
            child = part.get("properties", {}).get(key) or part.get("additionalProperties")
            if child is not True:
                yield from find_keys(child, value, (*path, key))
    elif isinstance(data, list):
        for position, value in enumerate(data):
            yield from find_keys(part["items"], value, (*path, position))


def value_at(data: Any, path: KeyPath) -> Any:
    for step in path:
        data = data[step]
    return data


def with_texts(data: dict[str, Any], paths: list[KeyPath], change: Callable[[str], str]) -> dict[str, Any]:
    """Return the data with other texts at some paths."""
    changed = copy.deepcopy(data)
    for *parent, last in paths:
        holder = value_at(changed, tuple(parent))
        holder[last] = change(str(holder[last]))
    return changed


def complete_inventory() -> dict[str, Any]:
    """Return an inventory with every key of the schema but the sandbox, which excludes two others."""
    data = parse(read_source(COMPLETE))[0].data
    data["host_prerequisites"]["sysctls"]["kernel.core_pattern"] = "core"
    return data


def validate_data(data: dict[str, Any]) -> tuple[Inventory | None, Findings]:
    text = yaml.safe_dump(data)
    return validate_source(
        Source(name="hostile", path=COMPLETE, text=text, digest=hashlib.sha256(text.encode()).hexdigest())
    )


def one_of(places: dict[str, str], place: str) -> bool:
    return place.endswith(tuple(places))


def accepted_changes(data: dict[str, Any], change: Callable[[str], str]) -> list[tuple[KeyPath, str]]:
    """Return the texts that the schema takes also with a change, all changed at once."""
    result = list(find_texts(schema(), data))
    refused = {each.path for each in find_schema_errors(with_texts(data, [path for path, _ in result], change))}
    return [(path, place) for path, place in result if path not in refused]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_every_text_is_refused_or_declared_free(hostile: str) -> None:
    """A pattern holds for the whole text. What the schema takes stands in one of two tables, with the reason."""
    data = complete_inventory()
    taken = accepted_changes(data, HOSTILE[hostile])
    others = {"cluster": {"sandbox": "default"}, "device_plugin": {"config_name": "a", "config_default": "a"}}
    taken += accepted_changes({"name": "a", **others}, HOSTILE[hostile])
    assert [place for _, place in taken if not one_of(FREE | REFERENCES, place)] == []


@pytest.mark.parametrize("hostile", HOSTILE)
def test_every_key_is_refused(hostile: str) -> None:
    """Keys of labels, annotations, variables, resources, kernel parameters and pools have patterns, too."""
    data = complete_inventory()
    added = []
    for path, key in list(find_keys(schema(), data)):
        added.append((*path, HOSTILE[hostile](key)))
        value_at(data, path)[added[-1][-1]] = value_at(data, path)[key]
    assert set(added) <= {each.path for each in find_schema_errors(data)}
    assert len(added) > 20


@pytest.mark.parametrize("hostile", sorted(HOSTILE.keys() - {"long"}))
def test_a_hostile_reference_names_nothing(hostile: str) -> None:
    """The finding is an error at the place of the text. A long one is refused by the schema."""
    data = complete_inventory()
    paths = [path for path, place in accepted_changes(data, HOSTILE[hostile]) if one_of(REFERENCES, place)]
    inventory, findings = validate_data(with_texts(data, paths, HOSTILE[hostile]))
    assert inventory is None
    assert len({finding.where for finding in findings.errors}) >= len(paths) > 0


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_free_text_stays_one_text_wherever_it_goes(hostile: str) -> None:
    """In the rendered objects, which are read back as they are, and in the configuration of SSH, line by line."""
    data = complete_inventory()
    paths = [path for path, place in accepted_changes(data, HOSTILE[hostile]) if one_of(FREE, place)]
    before, after = validate_data(data)[0], validate_data(with_texts(data, paths, HOSTILE[hostile]))[0]
    assert before is not None
    assert after is not None
    objects = [manifest for group in render(after).values() for manifest in group]
    assert list(yaml.safe_load_all(object_text.yaml_stream(objects))) == objects
    lines, changed = (ssh_config(inventory.nodes).split("\n") for inventory in (before, after))
    assert [line.split()[:1] for line in changed] == [line.split()[:1] for line in lines]
