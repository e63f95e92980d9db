"""The inventory's JSON Schema -> a structural OpenAPI v3 schema, as a CustomResourceDefinition has it. Pure.

One schema says what an inventory may hold, in a file or in the cluster; this says it in the words of an API server.
What has no such words is left to the loader, which reads a stack as it reads a file.

An API server writes defaults into the object, where they look like settings of the user. So there are none in
entries of lists and maps: a pool's own setting wins over the stack's. Nor are there any that say *off*, zero or
nothing, which is what silence says as well, and a check may ask whether the user said it.
"""

from __future__ import annotations

from typing import Any

from gpu_provision.inventory.document import KeyPath
from gpu_provision.inventory.json_schema import ANY, is_about_cluster, resolved, schema
from gpu_provision.operator.cel import rules_of

Schema = dict[str, Any]

RULES_KEY = "x-kubernetes-validations"
"""Under which a schema has rules in CEL; API servers name it, too, where they refuse one."""

_SAME = (
    "description",
    "enum",
    "maxItems",
    "maxLength",
    "maximum",
    "minItems",
    "minLength",
    "minimum",
    "pattern",
    "type",
)
"""Keywords that mean the same. ``required`` is not among them: it may name keys that a stack does not have."""

_UNTYPED: Schema = {"type": None, "x-kubernetes-preserve-unknown-fields": True}

_SAID_OTHERWISE: dict[KeyPath, str] = {
    (): "Which nodes of this cluster have which GPUs, and which software they run: the keys of an inventory.",
    ("cluster",): "Where in the cluster the operands are.",
}
"""Descriptions of what is more in a file than in the cluster."""

_KEYED_LISTS = {("nodes",): "name"}
"""Lists whose items have a key, so that two writers can each have items of their own."""


def spec_schema(*, rules: bool = False) -> Schema:
    """Return the schema of a stack's ``spec``.

    Args:
        rules: Whether with rules in CEL, see `rules.RULES`.
    """
    made = _translated(schema(), (), in_entry=False)
    return _ruled(made, ()) if rules else made


def _ruled(part: Schema, path: KeyPath) -> Schema:
    """Return a part of a schema with its rules; none is about an entry of a list or map."""
    properties = {key: _ruled(own, (*path, key)) for key, own in part.get("properties", {}).items()}
    found = rules_of(path)
    return part | ({"properties": properties} if properties else {}) | ({RULES_KEY: found} if found else {})


def _translated(part: Schema, path: KeyPath, *, in_entry: bool) -> Schema:
    """Return a part of the schema in the words of an API server.

    Args:
        in_entry: Whether it is, or is in, an entry of a list or map.
    """
    own = resolved(part)
    result = {key: own[key] for key in _SAME if key in own} | _of_several_types(own)
    result |= _list_schema(own, path)
    result |= _map(own, path)
    result |= _mapping(own, path, in_entry=in_entry)
    if not in_entry and own.get("default"):
        result["default"] = own["default"]
    if path in _SAID_OTHERWISE:
        result["description"] = _SAID_OTHERWISE[path]
    return {key: value for key, value in result.items() if value is not None}


def _of_several_types(own: Schema) -> Schema:
    """Return what stands for a list of types, which a structural schema must not have."""
    kinds = own.get("type")
    if not isinstance(kinds, list):
        return {}
    if "object" in kinds:  # a stack takes no value from a file or a variable of the controller
        return _UNTYPED if "secret" in own["properties"] else {"type": "string"}
    if "boolean" in kinds:  # no word for it: its ``enum`` holds all that it can be
        return _UNTYPED
    return {"type": None, "x-kubernetes-int-or-string": True}


def _list_schema(own: Schema, path: KeyPath) -> Schema:
    if own.get("type") != "array":
        return {}
    items: Schema = {"items": _translated(own["items"], (*path, ANY), in_entry=True)}
    if path in _KEYED_LISTS:
        return {**items, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [_KEYED_LISTS[path]]}
    return {**items, "x-kubernetes-list-type": "set"} if own.get("uniqueItems") else items


def _map(own: Schema, path: KeyPath) -> Schema:
    entries = own.get("additionalProperties")
    if not isinstance(entries, dict):
        return {}
    return {"additionalProperties": _translated(entries, (*path, ANY), in_entry=True)}


def _mapping(own: Schema, path: KeyPath, *, in_entry: bool) -> Schema:
    if own.get("type") != "object" or "properties" not in own:
        return {}
    kept = {key: part for key, part in own["properties"].items() if is_about_cluster((*path, key))}
    required = [key for key in own.get("required", ()) if key in kept and path]
    properties = {key: _translated(part, (*path, key), in_entry=in_entry) for key, part in kept.items()}
    return {"properties": properties, "required": required or None}
