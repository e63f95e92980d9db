"""Structural schemas of custom resources: pruning, defaults, and the translation to plain JSON Schema."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.objects import copied

_PRESERVE = "x-kubernetes-preserve-unknown-fields"
_INT_OR_STRING = "x-kubernetes-int-or-string"
_EMBEDDED = "x-kubernetes-embedded-resource"
META_KEYS = ("apiVersion", "kind", "metadata")


def pruned(value: Any, schema: Object, path: str = "", unknown: list[str] | None = None) -> Any:
    """Return a value without the fields that its schema does not name; their paths are added to ``unknown``."""
    if isinstance(value, list) and isinstance(items := schema.get("items"), dict):
        start = path.removesuffix(".")
        return [pruned(item, items, f"{start}[{index}].", unknown) for index, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    extra = schema.get("additionalProperties")
    if isinstance(extra, dict):
        return {key: pruned(item, extra, f"{path}{key}.", unknown) for key, item in value.items()}
    properties = schema.get("properties") or {}
    open_ended = bool(extra or schema.get(_PRESERVE))
    result = {}
    for key, item in value.items():
        if schema.get(_EMBEDDED) and key in META_KEYS:
            result[key] = item
        elif key in properties:
            result[key] = pruned(item, properties[key], f"{path}{key}.", unknown)
        elif open_ended:
            result[key] = item
        elif unknown is not None:
            unknown.append(f"{path}{key}")
    return result


def untyped(schema: Object, path: str, place: str = "at the root") -> Iterator[tuple[str, str]]:
    """Yield path and place of every part of a schema that says no type, which a structural schema does."""
    if not schema.get("type") and not schema.get(_INT_OR_STRING) and not schema.get(_PRESERVE):
        yield path, place
    for name, own in (schema.get("properties") or {}).items():
        yield from untyped(own, f"{path}.properties[{name}]", "for specified object fields")
    if isinstance(items := schema.get("items"), dict):
        yield from untyped(items, f"{path}.items", "for specified array items")
    if isinstance(extra := schema.get("additionalProperties"), dict):
        yield from untyped(extra, f"{path}.additionalProperties", "for specified object fields")


def without_meta(schema: Object) -> Object:
    """Return the schema of an object without kind, apiVersion and metadata."""
    properties = {key: own for key, own in (schema.get("properties") or {}).items() if key not in META_KEYS}
    return {**schema, "properties": properties}


def filled(value: Any, schema: Object) -> Any:
    """Return a value with the defaults of its schema."""
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        return [filled(item, schema["items"]) for item in value]
    if not isinstance(value, dict):
        return value
    result = dict(value)
    for key, own in (schema.get("properties") or {}).items():
        if "default" in own and (key not in result or (result[key] is None and not own.get("nullable"))):
            result[key] = copied(own["default"])
        if key in result:
            result[key] = filled(result[key], own)
    if isinstance(extra := schema.get("additionalProperties"), dict):
        result = {key: filled(item, extra) for key, item in result.items()}
    return result


def as_json_schema(schema: Object) -> Object:
    """Return a structural schema as plain JSON Schema: nullable and int-or-string spelled out, extensions dropped.

    Formats and CEL rules (``x-kubernetes-validations``) are not checked.
    """
    dropped = ("format", "nullable", "description", "default", "example", "externalDocs")
    result = {
        key: _translated(key, value)
        for key, value in schema.items()
        if key not in dropped and not key.startswith("x-kubernetes-")
    }
    if schema.get(_INT_OR_STRING):
        result["type"] = ["integer", "string"]
    if schema.get("exclusiveMinimum") is True:
        result["exclusiveMinimum"] = result.pop("minimum")
    if schema.get("exclusiveMaximum") is True:
        result["exclusiveMaximum"] = result.pop("maximum")
    if schema.get("nullable") and isinstance(result.get("type"), str):
        result["type"] = [result["type"], "null"]
        if "enum" in result:
            result["enum"] = [*result["enum"], None]
    return {key: value for key, value in result.items() if key not in _BOOLEAN_BOUNDS or not isinstance(value, bool)}


_BOOLEAN_BOUNDS = ("exclusiveMinimum", "exclusiveMaximum")


def _translated(key: str, value: Any) -> Any:
    if key in ("items", "not") or (key == "additionalProperties" and isinstance(value, dict)):
        return as_json_schema(value)
    if key == "properties":
        return {name: as_json_schema(own) for name, own in value.items()}
    if key in ("allOf", "anyOf", "oneOf"):
        return [as_json_schema(own) for own in value]
    if key == "pattern":
        return _END.sub(lambda found: r"\Z" if found[0] == "$" else found[0], value)
    return value


_END = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\$")
"""Finds ``$`` outside of escapes and classes: the end of the text in RE2; in Python also before a newline there."""
