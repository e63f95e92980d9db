"""Custom resources: the versions that a CustomResourceDefinition serves, and their structural schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.errors import Cause, invalid_value, required, unsupported_value
from gpu_provision.sandbox.apiserver.fieldmanager import ObjectType
from gpu_provision.sandbox.apiserver.resources import ResourceInfo
from gpu_provision.sandbox.objects import deep_copy, timestamp, value_at

_PRESERVE = "x-kubernetes-preserve-unknown-fields"
_INT_OR_STRING = "x-kubernetes-int-or-string"
_EMBEDDED = "x-kubernetes-embedded-resource"
DEFINITIONS = "apiextensions.k8s.io/customresourcedefinitions"
CLEANUP_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"
"""Blocks the deletion of a definition while it has objects."""
_META_KEYS = ("apiVersion", "kind", "metadata")


def prune(value: Any, schema: Object, path: str = "", unknown: list[str] | None = None) -> Any:
    """Return a value without fields unknown to its schema; add their paths to ``unknown``."""
    if isinstance(value, list) and isinstance(items := schema.get("items"), dict):
        start = path.removesuffix(".")
        return [prune(item, items, f"{start}[{index}].", unknown) for index, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    extra = schema.get("additionalProperties")
    if isinstance(extra, dict):
        return {key: prune(item, extra, f"{path}{key}.", unknown) for key, item in value.items()}
    properties = schema.get("properties") or {}
    open_ended = bool(extra or schema.get(_PRESERVE))
    result = {}
    for key, item in value.items():
        if schema.get(_EMBEDDED) and key in _META_KEYS:
            result[key] = item
        elif key in properties:
            result[key] = prune(item, properties[key], f"{path}{key}.", unknown)
        elif open_ended:
            result[key] = item
        elif unknown is not None:
            unknown.append(f"{path}{key}")
    return result


def find_untyped(schema: Object, path: str, place: str = "at the root") -> Iterator[tuple[str, str]]:
    """Yield path and place of every part of a schema without a type, which a structural schema requires."""
    if not schema.get("type") and not schema.get(_INT_OR_STRING) and not schema.get(_PRESERVE):
        yield path, place
    for name, own in (schema.get("properties") or {}).items():
        yield from find_untyped(own, f"{path}.properties[{name}]", "for specified object fields")
    if isinstance(items := schema.get("items"), dict):
        yield from find_untyped(items, f"{path}.items", "for specified array items")
    if isinstance(extra := schema.get("additionalProperties"), dict):
        yield from find_untyped(extra, f"{path}.additionalProperties", "for specified object fields")


def fill_defaults(value: Any, schema: Object) -> Any:
    """Return a value with the defaults of its schema."""
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        return [fill_defaults(item, schema["items"]) for item in value]
    if not isinstance(value, dict):
        return value
    result = dict(value)
    for key, own in (schema.get("properties") or {}).items():
        if "default" in own and (key not in result or (result[key] is None and not own.get("nullable"))):
            result[key] = deep_copy(own["default"])
        if key in result:
            result[key] = fill_defaults(result[key], own)
    if isinstance(extra := schema.get("additionalProperties"), dict):
        result = {key: fill_defaults(item, extra) for key, item in result.items()}
    return result


def to_json_schema(schema: Object) -> Object:
    """Return a structural schema as JSON Schema: nullable and int-or-string as types, without extensions.

    Formats, exclusive bounds and CEL rules (``x-kubernetes-validations``) are not checked.
    """
    result: Object = {}
    for key, value in schema.items():
        match key:
            case "items" | "not" | "additionalProperties":
                result[key] = to_json_schema(value) if isinstance(value, dict) else value
            case "properties":
                result[key] = {name: to_json_schema(own) for name, own in value.items()}
            case "allOf" | "anyOf" | "oneOf":
                result[key] = [to_json_schema(own) for own in value]
            case "pattern":
                result[key] = _END.sub(lambda found: r"\Z" if found[0] == "$" else found[0], value)
            case _ if key not in _DROPPED and not key.startswith("x-kubernetes-"):
                result[key] = value
    if schema.get(_INT_OR_STRING):
        result["type"] = ["integer", "string"]
    if schema.get("nullable") and isinstance(result.get("type"), str):
        result["type"] = [result["type"], "null"]
        result |= {"enum": [*result["enum"], None]} if "enum" in result else {}
    return result


_DROPPED = frozenset(
    ["format", "nullable", "description", "default", "example", "externalDocs", "exclusiveMinimum", "exclusiveMaximum"]
)
_END = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\$")
"""Finds ``$`` outside of escapes and classes: in RE2 only the end of the text, in Python also before a newline."""


@dataclass(frozen=True)
class CustomResource(ResourceInfo):
    """One version of a custom resource, with the type and the validator of its schema."""

    schema: Object = field(default_factory=dict, compare=False)

    @cached_property
    def type(self) -> ObjectType:
        """The type for server-side apply."""
        return ObjectType.from_schema(self.schema or None, has_status=self.has_status)

    @cached_property
    def validator(self) -> Draft202012Validator:
        """The validator of the schema."""
        return Draft202012Validator(to_json_schema(self.schema))


def served_versions(definition: Object) -> list[CustomResource]:
    """Return the versions that a definition serves."""
    spec, names = definition["spec"], definition["spec"]["names"]
    return [
        CustomResource(
            group=spec["group"],
            version=version["name"],
            plural=names["plural"],
            kind=names["kind"],
            singular=names.get("singular") or names["kind"].lower(),
            namespaced=spec["scope"] == "Namespaced",
            short_names=tuple(names.get("shortNames") or ()),
            categories=tuple(names.get("categories") or ()),
            subresources=() if value_at(version, "subresources", "status") is None else ("status",),
            counts_generations=True,
            custom=True,
            columns=tuple(version.get("additionalPrinterColumns") or ()),
            schema=value_at(version, "schema", "openAPIV3Schema") or {},
        )
        for version in spec["versions"]
        if version.get("served")
    ]


def _condition(kind: str, reason: str, message: str, since: str = "") -> Object:
    head = {"type": kind, "status": "True", "reason": reason, "message": message}
    return {**head, "lastTransitionTime": since or timestamp()}


def _set_established(definition: Object) -> None:
    """Set the names that follow from the kind, and the condition Established."""
    spec, before = definition["spec"], definition.get("status") or {}
    if kind := spec["names"].get("kind"):
        spec["names"] = {"singular": kind.lower(), "listKind": f"{kind}List", **spec["names"]}
    times = {row["type"]: row["lastTransitionTime"] for row in before.get("conditions") or ()}
    accepted = ("Established", "InitialNamesAccepted", "the initial names have been accepted")
    conditions = [
        _condition("NamesAccepted", "NoConflicts", "no conflicts found", times.get("NamesAccepted", "")),
        _condition(*accepted, times.get("Established", "")),
    ]
    stored = [version["name"] for version in spec["versions"] if version.get("storage")]
    earlier = [name for name in before.get("storedVersions") or () if name not in stored]
    names = deep_copy(spec["names"])
    definition["status"] = {"acceptedNames": names, "conditions": conditions, "storedVersions": [*earlier, *stored]}


def set_terminating(definition: Object) -> Object:
    """Return a definition with the condition Terminating."""
    status = definition.get("status") or {}
    rest = [row for row in status.get("conditions") or () if row["type"] != "Terminating"]
    condition = _condition("Terminating", "InstanceDeletionInProgress", "CustomResource deletion is in progress")
    return {**with_cleanup_finalizer(definition, held=True), "status": {**status, "conditions": [*rest, condition]}}


def with_cleanup_finalizer(definition: Object, *, held: bool) -> Object:
    """Return a deleted definition with or without the cleanup finalizer."""
    metadata = definition["metadata"]
    others = [name for name in metadata.get("finalizers") or () if name != CLEANUP_FINALIZER]
    return {**definition, "metadata": {**metadata, "finalizers": [*others, CLEANUP_FINALIZER] if held else others}}


def object_type(info: ResourceInfo) -> ObjectType | None:
    """Return a custom resource's type for server-side apply, None for a built-in one."""
    return info.type if isinstance(info, CustomResource) else None


def complete_object(obj: Object, info: ResourceInfo) -> None:
    """Prune a custom object and set its defaults, by its schema; set a definition's status."""
    if (
        info.storage == DEFINITIONS
        and isinstance(value_at(obj, "spec", "names"), dict)
        and value_at(obj, "spec", "versions")
    ):
        _set_established(obj)
    if isinstance(info, CustomResource) and info.schema:
        kept = {key: value for key, value in obj.items() if key not in _META_KEYS}
        filled = fill_defaults(prune(kept, info.schema), info.schema)
        for part in kept:
            del obj[part]
        obj.update(filled)


def keep_known(obj: Object, info: ResourceInfo, unknown: list[str]) -> Object:
    """Return a custom object without fields unknown to its schema; add their paths to ``unknown``."""
    if not isinstance(info, CustomResource) or not info.schema:
        return obj
    result: Object = prune(obj, {**info.schema, _EMBEDDED: True}, unknown=unknown)
    return result


def schema_causes(obj: Object, info: ResourceInfo) -> list[Cause]:
    """Return the schema violations of a custom object."""
    if not isinstance(info, CustomResource) or not info.schema:
        return []
    wrong = [cause for error in info.validator.iter_errors(obj) for cause in _causes(error)]
    return [*wrong, *_find_duplicates(obj, info.schema)]


def _causes(error: ValidationError) -> Iterator[Cause]:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
    field, wanted, instance = path.lstrip("."), cast("Any", error.validator_value), cast("Any", error.instance)
    name, rule = field or "<nil>", str(error.validator)
    match rule:
        case "required":
            yield from (required(f"{field}.{key}" if field else key) for key in wanted if key not in instance)
        case "enum":
            yield unsupported_value(name, str(instance), [str(value) for value in wanted])
        case "type":
            kind = json.dumps(_TYPE_NAMES.get(type(instance), "null"))
            first = wanted if isinstance(wanted, str) else wanted[0]
            text = f"Invalid value: {kind}: {name} in body must be of type {first}: {kind}"
            yield Cause("FieldValueTypeInvalid", text, name)
        case "maxLength":
            yield Cause("FieldValueTooLong", f"Too long: may not be more than {wanted} bytes", name)
        case _:
            quoted = f"'{wanted}'" if isinstance(wanted, str) else str(wanted)
            text = _TEXTS[rule].format(quoted) if rule in _TEXTS else error.message
            yield invalid_value(name, json.dumps(instance), f"{name} in body {text}")


_TYPE_NAMES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
_TEXTS = {
    "minimum": "should be greater than or equal to {}",
    "maximum": "should be less than or equal to {}",
    "minLength": "should be at least {} chars long",
    "pattern": "should match {}",
    "minItems": "should have at least {} items",
    "maxItems": "should have at most {} items",
    "minProperties": "should have at least {} properties",
    "maxProperties": "should have at most {} properties",
}


def _find_duplicates(value: Any, schema: Object, path: str = "") -> Iterator[Cause]:
    """Yield the duplicate items of sets and keyed lists."""
    if isinstance(value, dict):
        for name, own in (schema.get("properties") or {}).items():
            if name in value:
                yield from _find_duplicates(value[name], own, f"{path}.{name}" if path else name)
    items = schema.get("items")
    if not isinstance(value, list) or not isinstance(items, dict):
        return
    keys, seen = schema.get("x-kubernetes-list-map-keys") or (), []
    kind = schema.get("x-kubernetes-list-type")
    for index, item in enumerate(value):
        yield from _find_duplicates(item, items, f"{path}[{index}]")
        identity = {key: item.get(key) for key in keys} if kind == "map" and isinstance(item, dict) else item
        if kind in ("set", "map") and identity in seen:
            yield Cause("FieldValueDuplicate", f"Duplicate value: {json.dumps(identity)}", f"{path}[{index}]")
        seen.append(identity)
