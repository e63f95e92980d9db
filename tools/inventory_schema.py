"""Writes schema.json: ``python -m tools.inventory_schema > gpu_provision/inventory/schema.json``.

What a section may hold comes from the declarations of the settings in ``gpu_provision/model`` and, for the top level,
from `InventoryFile`; what a kind of value looks like comes from value_types.yaml.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import MISSING, Field, is_dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import yaml

from gpu_provision import inventory
from gpu_provision.inventory.sections import InventoryFile, PoolSection
from gpu_provision.model.driver_specs import DriverSpec, GdrcopySpec, GdsSpec
from gpu_provision.model.hosts import HostPrerequisites, SshOptions
from gpu_provision.model.inventory import Node
from gpu_provision.model.operand_specs import Image
from gpu_provision.model.settings import settings_of

Part = dict[str, Any]
_ABBREVIATIONS = frozenset({"ca", "cdi", "dcgm", "gfd", "gpu", "http", "https", "mig", "nfd", "os", "ssh"})
_SCALARS = {bool: "boolean", int: "integer", str: "string"}

_SHARED = {
    PoolSection: "pool",
    Node: "node",
    DriverSpec: "driver",
    GdrcopySpec: "gdrcopy",
    GdsSpec: "gds",
    HostPrerequisites: "host_prerequisites",
    SshOptions: "ssh",
}
"""Sections that stand at several places, or whose place is an entry -> their definition."""


@cache
def _kinds() -> Part:
    found: Part = yaml.safe_load(Path(inventory.__file__).with_name("value_types.yaml").read_text(encoding="utf-8"))
    return found


def inventory_schema() -> Part:
    """Return the JSON Schema (draft 2020-12) of inventories."""
    definitions = {name: part for name, part in _kinds().items() if "description" in part}
    definitions |= {name: _section(kind) for kind, name in _SHARED.items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:gpu-provision:inventory",
        "title": "gpu-provision inventory",
        **_section(InventoryFile),
        "$defs": dict(sorted(definitions.items())),
    }


def _section(record: type[Any]) -> Part:
    """Return the schema of a mapping whose keys are the settings of a record."""
    hints = get_type_hints(record)
    properties: Part = {}
    required: list[str] = []
    for each in settings_of(record):
        if version := each.metadata["image"]:
            properties |= _section(Image)["properties"] | {"version": _reference(version)}
            continue
        properties[each.name] = {"title": _title(each.name), **_setting(hints[each.name], each)}
        required += [each.name] if each.metadata["required"] else []
    found = {"description": _first_paragraph(record), "type": "object", "additionalProperties": False}
    return found | ({"required": required} if required else {}) | {"properties": properties}


def _setting(hint: Any, each: Field[Any]) -> Part:
    kind, description, keywords = (each.metadata[key] for key in ("kind", "description", "keywords"))
    found: Part = _reference(kind) if kind else _of_type(hint)
    found |= {"description": description} if description else {}
    default = each.default if each.default_factory is MISSING else {}  # the only factories make empty mappings
    is_unset = default in (MISSING, None, "") or is_dataclass(default)
    if not (is_unset or each.metadata["required"] or not each.metadata["shown"]):
        found["default"] = list(default) if isinstance(default, tuple) else default
    return {**found, **keywords}


def _of_type(hint: Any) -> Part:
    """Return the schema of a value of a type."""
    if hint in _SCALARS:
        return {"type": _SCALARS[hint]}
    if is_dataclass(hint):
        return _reference(_SHARED[hint]) if hint in _SHARED else _section(hint)  # type: ignore[arg-type]
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        text = _first_paragraph(hint).partition(",")[0].removesuffix(".")
        return {"description": f"{text}.", "type": "string", "enum": [each.value for each in hint]}
    origin, (first, *others) = get_origin(hint), [each for each in get_args(hint) if each is not type(None)]
    if origin is tuple:
        return {"type": "array", "items": _of_type(first)}
    if origin is Mapping:
        names = {key: _kinds()["name"][key] for key in ("pattern", "patternErrorMessage")}
        return {"type": "object", "propertyNames": names, "additionalProperties": _of_type(*others)}
    return {"type": [_SCALARS[each] for each in (first, *others)]} if others else _of_type(first)


def _reference(kind: str) -> Part:
    """Return a reference to a definition, or the kind itself if it only describes values of one sort of setting.

    jsonschema takes longer for a reference.
    """
    own: Part = _kinds().get(kind, {"description": ""})
    return {"$ref": f"#/$defs/{kind}"} if "description" in own else dict(own)


def _title(name: str) -> str:
    """Return a key as an editor shows it: ``DCGM exporter``."""
    first, *rest = (word.upper() if word in _ABBREVIATIONS else word for word in name.split("_"))
    return " ".join((first[0].upper() + first[1:], *rest))


def _first_paragraph(record: type[Any]) -> str:
    return " ".join(str(record.__doc__).partition("\n\n")[0].replace("``", "`").split())


if __name__ == "__main__":
    sys.stdout.write(json.dumps(inventory_schema(), indent=2) + "\n")
