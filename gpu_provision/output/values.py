"""Field values as people may see them: short, on one line, and without secrets.

Of an environment, those variables are shown that the inventory's schema exempts. Digests of whole environments are
hidden as well: a digest tells whether a guess at a short secret is right.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from gpu_provision.inventory.redaction import (
    is_shown_variable,
    looks_secret,
    without_credentials,
    without_users,
)
from gpu_provision.model.plan import Change, FieldChange
from gpu_provision.output.field_paths import Item, steps

HIDDEN = "(changed)"
_LONGEST = 72
_DIGEST = "gpu-provision.io/digest"
_DIGESTS = (f'"{_DIGEST}"', "env[DRIVER_CONFIG_DIGEST].value")
_ARGUMENT = re.compile(r"(?P<name>--?[\w-]+)=.")
_VERSION = re.compile(r"v?(\d+(?:\.\d+)*)")
_SECRET_PARTS = ("data", "stringData")


def is_secret(kind: str, path: str) -> bool:
    """Return whether a field's value must not be shown: any of a Secret, of most variables, and digests of those."""
    way = steps(path)
    variable, inside = _variable(way)
    hidden = bool(variable) and not is_shown_variable(variable) and inside in {(), ("value",)}
    return kind == "Secret" or way[-1:] == (_DIGEST,) or hidden


def _variable(way: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Return the variable whose field a path names, and the way on from it; empty if the path names none."""
    keys = (number for number, step in enumerate(way[:-1], start=1) if step == "env" and not isinstance(step, Item))
    position = next(keys, 0)
    return (way[position], way[position + 1 :]) if position else ("", ())


def shown(value: Any) -> str:
    """Return a value on one line; ``(none)`` for None, long ones cut or counted."""
    if value is None:
        return "(none)"
    if isinstance(value, str):
        return _short(redacted_value(value)) if "\n" not in value else f"({len(value.splitlines())} lines)"
    return _short(json.dumps(redacted_value(value), sort_keys=True))


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def field_line(kind: str, field: FieldChange) -> str:
    """Return ``path: old -> new`` of an object of some kind."""
    if is_secret(kind, field.path):
        return f"{field.path}: {HIDDEN}"
    old, new = (shown(field_value(kind, field.path, value)) for value in (field.old, field.new))
    return f"{field.path}: {old} -> {new}{'  (downgrade)' if _is_downgrade(field) else ''}"


def _is_downgrade(field: FieldChange) -> bool:
    """Whether an image changes to an earlier version of itself."""
    if not (field.path.endswith(".image") and isinstance(field.old, str) and isinstance(field.new, str)):
        return False
    (old, _, old_tag), (new, _, new_tag) = (each.rpartition(":") for each in (field.old, field.new))
    before, after = _numbers(old_tag), _numbers(new_tag)
    return old == new and bool(after) and after < before


def _numbers(tag: str) -> list[int]:
    found = _VERSION.match(tag)
    return [int(part) for part in found[1].split(".")] if found else []


def field_document(kind: str, field: FieldChange) -> dict[str, Any]:
    """Return a changed field of an object of some kind as a JSON-able dict."""
    old, new = (field_value(kind, field.path, value) for value in (field.old, field.new))
    return {"path": field.path, "old": old, "new": new}


def field_value(kind: str, path: str, value: Any) -> Any:
    """Return a field's value as a document may hold it."""
    if is_secret(kind, path):
        return HIDDEN
    way = steps(path)
    return without_credentials(value) if _variable(way)[0] and isinstance(value, str) else _below(way[-1], value)


def visible_fields(change: Change) -> tuple[FieldChange, ...]:
    """Return the fields worth a reader's time: digests that follow from other fields are left out."""
    told = tuple(field for field in change.fields if not field.path.endswith(_DIGESTS))
    return told or change.fields


def redacted_value(value: Any) -> Any:
    """Return a JSON value without secrets: of environments, arguments named like one, users of addresses."""
    if isinstance(value, str):
        named = _ARGUMENT.match(value)
        return f"{named['name']}={HIDDEN}" if named and looks_secret(named["name"]) else without_users(value)
    if isinstance(value, dict):
        return {key: _below(key, item) for key, item in value.items()}
    return [redacted_value(item) for item in value] if isinstance(value, list) else value


def _below(key: str, value: Any) -> Any:
    """Return what a mapping has under a key, without secrets."""
    match key, value:
        case ("env", list()):
            return [_entry(item) for item in value]
        case ("env", dict()):  # of a GPUStack
            return {name: _of_variable(name, item) for name, item in value.items()}
        case (str(name), str()) if name == _DIGEST:
            return HIDDEN
        case _:
            return redacted_value(value)


def _entry(item: Any) -> Any:
    if not isinstance(item, Mapping) or "value" not in item:
        return redacted_value(item)
    return {**item, "value": _of_variable(str(item.get("name", "")), item["value"])}


def _of_variable(name: str, value: Any) -> Any:
    if not isinstance(value, str):  # a reference
        return value
    return without_credentials(value) if is_shown_variable(name) else HIDDEN


def redacted(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest that may be shown: no Secret's data, and no secret as `redacted_value` knows them."""
    shown_parts: dict[str, Any] = redacted_value(manifest)
    if manifest.get("kind") != "Secret":
        return shown_parts
    return {
        key: dict.fromkeys(value or {}, HIDDEN) if key in _SECRET_PARTS else value for key, value in shown_parts.items()
    }
