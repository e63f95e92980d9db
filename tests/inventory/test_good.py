"""Inventories that are right get no finding, and mean what they say."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_provision.inventory import check, groups, load, schema
from gpu_provision.inventory.document import Source, read_source
from gpu_provision.inventory.json_schema import resolve_ref
from gpu_provision.inventory.resolve import resolve
from gpu_provision.inventory.sections import SPECS
from gpu_provision.inventory.yaml_parser import parse
from gpu_provision.releases import DEFAULT, release

GOOD = Path(__file__).parent / "good"


@pytest.mark.parametrize("file", sorted(GOOD.glob("**/*.yaml")), ids=lambda file: file.stem)
def test_a_good_inventory_gets_no_finding(file: Path) -> None:
    """No false alarms: neither an error nor a warning."""
    assert check(file).all == ()


def test_an_inventory_keeps_its_warnings(tmp_path: Path) -> None:
    """They are findings of each plan of it."""
    path = tmp_path / "stack.yaml"
    path.write_text(
        "name: stack\ncluster: {context: prod}\ngfd: {version: v0.99.1}\n"
        "pools: {t4: {gpu: {model: T4, count: 1}}}\nnodes: [{name: t4-1, pool: t4}]\n"
    )
    assert load(path).warnings == check(path).warnings
    assert [warning.code for warning in load(path).warnings] == ["GP132"]


def test_the_complete_inventory_uses_every_key() -> None:
    """Otherwise a key could break without any test seeing it. A sandbox excludes a kubeconfig.

    Plain settings of components have a test of their own. Values of this machine are in a file of their own, since a
    stack of the cluster takes none. Flags of the device plugin that variables override get a warning.
    """
    names = ("complete.yaml", "openshift.yaml", "values/elsewhere.yaml", "../bad/plugin_configs.yaml")
    files = [parse(read_source(GOOD / name))[0].data for name in names]
    used = {key for data in files for key, _ in _keys(schema(), data)}
    unused = {name for key, name in _keys(schema()) if key not in used}
    assert unused - {".".join(path) for path, _ in PLAIN} == {"cluster.sandbox"}


def _keys(part: dict[str, Any], data: Any = ..., name: str = "") -> Iterator[tuple[int | str, str]]:
    """Yield every key of the schema, or those that the data has, with its place; one that is shared is one."""
    result, every = resolve_ref(part), data is ...
    known, inner = result.get("properties", {}), result.get("additionalProperties") or result.get("items")
    below = [(child, ... if every else data[key], f".{key}") for key, child in known.items() if every or key in data]
    if isinstance(inner, dict):
        entries = (
            [...] if every else data if isinstance(data, list) else [data[key] for key in data if key not in known]
        )
        below += [(inner, entry, "[]") for entry in entries]
    for child, value, step in below:
        place = f"{name}{step}".removeprefix(".")
        reference = child.get("$ref", "")
        yield reference if "/value_" in reference else id(child), place
        if every or isinstance(value, (dict, list)):
            yield from _keys(child, value, place)


def _plain(part: dict[str, Any], *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the settings below a part of the schema that are switches, choices and numbers, with another value."""
    for key, child in part.get("properties", {}).items():
        result, here = resolve_ref(child), (*path, key)
        yield from _plain(result, *here)
        if "default" in result and (result["type"] in ("boolean", "integer") or "enum" in result):
            default, choices = result["default"], result.get("enum", [True, False])
            numbers = [result.get("minimum", 0) + 1, result.get("minimum", 0) + 2]
            yield here, next(each for each in (numbers if result["type"] == "integer" else choices) if each != default)


PLAIN = [each for key in SPECS for each in _plain(resolve_ref(schema()["properties"][key]), key)]


@pytest.mark.parametrize(("path", "value"), PLAIN, ids=lambda each: ".".join(each) if isinstance(each, tuple) else "")
def test_a_plain_setting_reaches_its_spec(path: tuple[str, ...], value: Any) -> None:
    data: Any = value
    for step in reversed(path):
        data = {step: data}
    result: Any = resolve(Source(name="x", path=Path("/x.yaml"), text="", digest=""), data, release(DEFAULT)).specs
    for step in path:
        result = getattr(result, step)
    assert result == value


def _declared(value: Any, base: Any = None) -> Any:
    """Return what a record says beyond its defaults, or beyond another record, in plain values."""
    if is_dataclass(value):
        shown = [each for each in fields(value) if each.name not in UNSHOWN]
        below = {each.name: getattr(base, each.name) if base else _default(each) for each in shown}
        values = {each.name: getattr(value, each.name) for each in shown}
        return {name: _declared(own) for name, own in values.items() if own != below[name]}
    if isinstance(value, Mapping):
        return {str(key): _declared(own) for key, own in value.items()}
    if isinstance(value, tuple):
        return [_declared(own) for own in value]
    return str(value).replace(f"{GOOD}/", "").replace(f"{GOOD.parent}/", "../") if isinstance(value, str) else value


def _default(each: Field[Any]) -> Any:
    return each.default if each.default_factory is MISSING else each.default_factory()


UNSHOWN = frozenset({"path", "digest", "text", "warnings"})


@pytest.mark.parametrize("name", ["complete", "host_prerequisites", "merged"])
def test_a_good_inventory_means_what_the_file_beside_says(name: str) -> None:
    """Release, inventory, pool and node resolved, less the defaults of the model, a pool's driver less the inventory's.

    Keys of a pool and of a node win, mappings key by key and lists as a whole; relative paths begin at the file;
    credentials of proxies stand in their addresses, and each certificate of a file is a text of its own. After an
    intended change: UPDATE_EXPECTED=1 pytest tests/inventory/test_good.py, and read the difference.
    """
    inventory, expected = load(GOOD / f"{name}.yaml"), GOOD / f"{name}.expected"
    result = _declared(inventory)
    for pool in inventory.pools.values():
        result["pools"][pool.name]["driver"] = _declared(pool.driver, inventory.specs.driver)
    result = result if name == "complete" else {key: value for key, value in result.items() if key != "specs"}
    text = yaml.safe_dump(result, sort_keys=False, width=110)
    if os.environ.get("UPDATE_EXPECTED"):
        expected.write_text(text, encoding="utf-8")
    assert text == expected.read_text(encoding="utf-8")
    assert "p%40ss" not in repr(inventory), "the password of a proxy"


def test_nodes_are_chosen_by_how_they_are_reached() -> None:
    """Hosts without SSH, machines that may reboot, and those that pyinfra connects to."""
    assert {node.name for node in load(GOOD / "complete.yaml").hosts_without_ssh} == {"cpu-1"}
    inventory = load(GOOD / "host_prerequisites.yaml")
    assert [node.name for node in inventory.rebootable_nodes] == ["own-1"]
    assert [name for name, _ in groups(inventory)["nodes"][0]] == ["@sandbox/own-1", "@sandbox/neighbor-1"]
