"""The fields of NVIDIA's GPU Operator: which setting of an inventory carries each, or why there is none.

The declarations of the settings name the field that each carries (`gpu_provision/model/settings.py`). reference.yaml
has what follows from no name, reference_fields.yaml the names of all fields. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

import yaml

from gpu_provision.inventory.json_schema import resolve_ref, schema
from gpu_provision.inventory.sections import InventoryFile
from gpu_provision.model.driver_specs import MODULE_SECTIONS
from gpu_provision.model.settings import camel_case, reference_of, settings_of

POLICY, DRIVER, VALUES = "ClusterPolicy", "NVIDIADriver", "values"
IMAGE = ("repository", "image", "version")
POOL = "pools.*."
"""Begin of keys that each pool has."""

_IMAGE = "(image)"


@cache
def read_table(file: str) -> Mapping[str, Any]:
    """Return a YAML table of this package; it is read on first use, since `status` imports this module."""
    table: Mapping[str, Any] = yaml.safe_load(Path(__file__).with_name(file).read_text(encoding="utf-8"))
    return table


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceRow:
    """What reference.yaml says of a field; its head describes the columns."""

    key: str = ""
    lacks: str = ""
    partly: str = ""
    later: str = ""
    none: str = ""
    only_with: str = ""
    needed: bool = False
    quiet: bool = False

    @property
    def reason(self) -> str:
        """Why the inventory does not have all of the field."""
        return self.none or self.lacks or self.partly or self.later


class Carried(NamedTuple):
    """The setting that carries a field."""

    key: str  # such as ``driver.repo_config``
    kind: str  # of its value, in ``inventory/value_types.yaml``


@cache
def field_names(kind: str) -> tuple[str, ...]:
    """Return the fields of a kind, in the order of the reference."""
    families: Mapping[str, list[str]] = read_table("reference_fields.yaml")[kind]
    return tuple(".".join(filter(None, (family, name))) for family, names in families.items() for name in names or [""])


def version() -> str:
    """Return the version of the GPU Operator whose fields these are."""
    return str(read_table("reference_fields.yaml")["version"])


@cache
def carried_fields() -> Mapping[str, Carried]:
    """Return the field of a ClusterPolicy -> the setting that carries it, without images.

    Values that only the chart has count as fields.
    """
    found = {field: each for field, each in _declared_fields() if each.kind != _IMAGE}
    keys = {field: row.key for field, row in rows_of(VALUES).items() if not row.quiet}
    return found | {
        field: Carried(key, kind_of(key)) for field, key in keys.items() if key and "*" not in key and has_key(key)
    }


@cache
def image_sections() -> Mapping[str, str]:
    """Return the section of a ClusterPolicy that names an image -> the section of the inventory."""
    return {section: each.key for section, each in _declared_fields() if each.kind == _IMAGE}


def _declared_fields() -> Iterator[tuple[str, Carried]]:
    for name, record in _section_types().items():
        yield from _map_settings(record, camel_case(name), name)


@cache
def _section_types() -> Mapping[str, type[Any]]:
    """Return the sections of an inventory that a ClusterPolicy has, too, with the records that declare them."""
    known = read_table("reference_fields.yaml")[POLICY]
    hints = get_type_hints(InventoryFile)
    records = {each.name: _record_of(hints[each.name]) for each in settings_of(InventoryFile)}
    return {name: record for name, record in records.items() if record and camel_case(name) in known}


def _record_of(hint: Any) -> type[Any] | None:
    """Return the record of a field's type, such as ``DriverSpec`` of ``DriverSpec | None``."""
    return next((each for each in (hint, *get_args(hint)) if isinstance(each, type) and is_dataclass(each)), None)


def _map_settings(record: type[Any], field: str, key: str) -> Iterator[tuple[str, Carried]]:
    """Yield the fields and settings of a section; a section with an image is one itself, of the kind `_IMAGE`."""
    hints = get_type_hints(record)
    for each in settings_of(record):
        kind, reference, below = each.metadata["kind"], reference_of(each), _record_of(hints[each.name])
        if each.metadata["image"]:
            yield field, Carried(key, _IMAGE)
        elif below and not kind and reference is not None:
            yield from _map_settings(below, f"{field}.{reference}", f"{key}.{each.name}")
        elif reference is not None:
            yield f"{field}.{reference}", Carried(f"{key}.{each.name}", kind)


def has_key(key: str) -> bool:
    """Whether an inventory has a key such as ``driver.env``; ``*`` stands for any name."""
    return _schema_of(key) is not None


def default_of(key: str) -> Any:
    """Return the default of a key as the schema has it; None without one."""
    return (_schema_of(key) or {}).get("default") if key else None


def kind_of(key: str) -> str:
    """Return the kind of a key's value in the schema, as far as it is a definition."""
    part = _schema_of(key)
    return str((part or {}).get("$ref", "")).rpartition("/")[2]


def holds_mappings(key: str) -> bool:
    """Whether the values below a key are mappings."""
    below = resolve_ref(dict(_schema_of(key) or {})).get("additionalProperties")
    return isinstance(below, dict) and resolve_ref(below).get("type") == "object"


def _schema_of(key: str) -> Mapping[str, Any] | None:
    part = schema()
    for step in key.split("."):
        whole = resolve_ref(part)
        below: Any = whole.get("additionalProperties") if step == "*" else whole.get("properties", {}).get(step)
        if not isinstance(below, dict):
            return None
        part = below
    return part


@cache
def row_of(kind: str, field: str) -> ReferenceRow:
    """Return the row of the longest name that holds for a field; an empty one without any."""
    rows = rows_of(kind)
    matching = [name for name in ("", *prefixes(field)) if name in rows]
    return rows[matching[-1]] if matching else ReferenceRow()


@cache
def rows_of(kind: str) -> Mapping[str, ReferenceRow]:
    """Return the rows of a kind by field; values of the chart have those of the ClusterPolicy, too."""
    table = read_table("reference.yaml")
    written = table[POLICY] | table[VALUES] if kind == VALUES else table[kind]
    return {name: ReferenceRow(**row) for name, row in written.items()}


def prefixes(field: str) -> Iterator[str]:
    """Yield ``a``, ``a.b`` and ``a.b.c`` of ``a.b.c``."""
    steps = field.split(".")
    yield from (".".join(steps[:length]) for length in range(1, len(steps) + 1))


def policy_field(field: str) -> str:
    """Return the field of a ClusterPolicy that means what one of an NVIDIADriver does for one driver."""
    return ".".join(policy_path(DRIVER, tuple(field.split("."))))


def policy_path(kind: str, path: tuple[str, ...]) -> tuple[str, ...]:
    """Return the path in the spec of a ClusterPolicy for one in an NVIDIADriver's spec, or in the chart's values."""
    names = read_table("reference.yaml")["names"].get(kind, {})
    for length in range(1, len(path) + 1):
        if name := names.get(".".join(path[:length])):
            path = (*name.split("."), *path[length:])
            break
    return ("driver", *path) if kind == DRIVER and path[0] not in MODULE_SECTIONS else path


def setting_of(field: str) -> str:
    """Return the key that carries a field of a ClusterPolicy, or one around it; empty without any."""
    section, _, part = field.rpartition(".")
    if part in IMAGE and section in image_sections():
        return f"{image_sections()[section]}.{part}"
    return next((carried_fields()[each].key for each in prefixes(field) if each in carried_fields()), "")


def driver_row(field: str) -> ReferenceRow:
    """Return the row of a field of an NVIDIADriver: its own, or that of the ClusterPolicy's."""
    own = row_of(DRIVER, field)
    return row_of(POLICY, policy_field(field)) if own == ReferenceRow() else own
