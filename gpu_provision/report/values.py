"""Field values as people may see them: short, on one line, and without secrets."""

from __future__ import annotations

import json
import re
from typing import Any

from gpu_provision.inventory.secrets import is_secret_name, without_users
from gpu_provision.model.plan import Change, FieldChange

HIDDEN = "(changed)"
_LONGEST = 72
_DIGESTS = ('"gpu-provision.io/digest"', "env[DRIVER_CONFIG_DIGEST].value")
_ARGUMENT = re.compile(r"(?P<name>--?[\w-]+)=.")
_ENV_ITEM = re.compile(r"\benv\[(?P<name>[^\]]*)\]")
_SECRET_PARTS = ("data", "stringData")


def is_secret(kind: str, path: str) -> bool:
    """Return whether a field's value must not be shown: any of a Secret, and of an env named like one."""
    env = _ENV_ITEM.search(path)
    return kind == "Secret" or bool(env and is_secret_name(env["name"]))


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
    return f"{field.path}: {shown(field.old)} -> {shown(field.new)}"


def field_document(kind: str, field: FieldChange) -> dict[str, Any]:
    """Return a changed field of an object of some kind as a JSON-able dict."""
    old, new = (field_value(kind, field.path, value) for value in (field.old, field.new))
    return {"path": field.path, "old": old, "new": new}


def field_value(kind: str, path: str, value: Any) -> Any:
    """Return a field's value as a document may hold it."""
    return HIDDEN if is_secret(kind, path) else redacted_value(value)


def visible_fields(change: Change) -> tuple[FieldChange, ...]:
    """Return the fields worth a reader's time: digests that follow from other fields are left out."""
    told = tuple(field for field in change.fields if not field.path.endswith(_DIGESTS))
    return told or change.fields


def redacted_value(value: Any) -> Any:
    """Return a JSON value without secrets: of env entries and arguments that are named so, and users of addresses."""
    if isinstance(value, str):
        named = _ARGUMENT.match(value)
        return f"{named['name']}={HIDDEN}" if named and is_secret_name(named["name"]) else without_users(value)
    if isinstance(value, dict):
        hidden = "value" in value and is_secret_name(str(value.get("name", "")))
        return {key: HIDDEN if hidden and key == "value" else redacted_value(below) for key, below in value.items()}
    return [redacted_value(item) for item in value] if isinstance(value, list) else value


def redacted(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest that may be shown: no Secret's data, and no secret as `redacted_value` knows them."""
    shown_parts: dict[str, Any] = redacted_value(manifest)
    if manifest.get("kind") != "Secret":
        return shown_parts
    return {
        key: dict.fromkeys(value or {}, HIDDEN) if key in _SECRET_PARTS else value for key, value in shown_parts.items()
    }
