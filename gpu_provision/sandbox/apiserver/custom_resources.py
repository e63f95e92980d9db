"""Custom resources: what a CustomResourceDefinition makes the server serve, and their structural schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.fieldmanager import ListTypes
from gpu_provision.sandbox.apiserver.objects import at, copied, now
from gpu_provision.sandbox.apiserver.resources import Catalog, ResourceInfo
from gpu_provision.sandbox.apiserver.status import Cause, invalid_value, required, unsupported_value
from gpu_provision.sandbox.apiserver.store import Item

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

Version = tuple[str, str, str]


def infos_of(definition: Object) -> list[ResourceInfo]:
    """Return one resource for each version that a definition serves."""
    spec = definition["spec"]
    names = spec["names"]
    return [
        ResourceInfo(
            group=spec["group"],
            version=version["name"],
            plural=names["plural"],
            kind=names["kind"],
            singular=names.get("singular") or names["kind"].lower(),
            namespaced=spec["scope"] == "Namespaced",
            short_names=tuple(names.get("shortNames") or ()),
            categories=tuple(names.get("categories") or ()),
            subresources=tuple(name for name in ("status", "scale") if at(version, "subresources", name) is not None),
            storage=f"{spec['group']}/{names['plural']}",
            counts_generations=True,
            custom=True,
        )
        for version in spec["versions"]
        if version.get("served")
    ]


def named(names: Object) -> None:
    """Fill in the names that follow from the kind."""
    if kind := names.get("kind"):
        names.setdefault("singular", kind.lower())
        names.setdefault("listKind", f"{kind}List")


def established(definition: Object) -> None:
    """Write the status that says that a definition is served."""
    spec, before = definition["spec"], definition.get("status") or {}
    times = {row["type"]: row["lastTransitionTime"] for row in before.get("conditions") or ()}
    reasons = (
        ("NamesAccepted", "NoConflicts", "no conflicts found"),
        ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
    )
    conditions = [
        {
            "type": kind,
            "status": "True",
            "reason": reason,
            "message": message,
            "lastTransitionTime": times.get(kind) or now(),
        }
        for kind, reason, message in reasons
    ]
    stored = [version["name"] for version in spec["versions"] if version.get("storage")]
    earlier = [name for name in before.get("storedVersions") or () if name not in stored]
    names = copied(spec["names"])
    definition["status"] = {"acceptedNames": names, "conditions": conditions, "storedVersions": [*earlier, *stored]}


CLEANUP = "customresourcecleanup.apiextensions.k8s.io"
"""Holds a definition that is deleted for as long as it has objects."""


def terminating(definition: Object) -> Object:
    """Return a definition that is being deleted while it still has objects."""
    metadata, status = definition["metadata"], definition.get("status") or {}
    others = [name for name in metadata.get("finalizers") or () if name != CLEANUP]
    rest = [row for row in status.get("conditions") or () if row["type"] != "Terminating"]
    condition = {
        "type": "Terminating",
        "status": "True",
        "reason": "InstanceDeletionInProgress",
        "message": "CustomResource deletion is in progress",
        "lastTransitionTime": now(),
    }
    return {
        **definition,
        "metadata": {**metadata, "finalizers": [*others, CLEANUP]},
        "status": {**status, "conditions": [*rest, condition]},
    }


def cleaned_up(definition: Object) -> Object:
    """Return a definition that is being deleted once it has no objects any more."""
    metadata = definition["metadata"]
    others = [name for name in metadata.get("finalizers") or () if name != CLEANUP]
    return {**definition, "metadata": {**metadata, "finalizers": others}}


class CustomResources:
    """The definitions that are in force, their schemas and printer columns."""

    STORAGE = "apiextensions.k8s.io/customresourcedefinitions"

    def __init__(self, catalog: Catalog) -> None:
        """Resources are added to and removed from ``catalog``."""
        self._catalog = catalog
        self._versions: dict[Version, Object] = {}
        self._validators: dict[Version, Draft202012Validator] = {}
        self._types: dict[Version, ListTypes] = {}

    def changed(self, before: Item | None, after: Item | None) -> None:
        """Serve what a new or changed definition says; stop serving what a removed one said."""
        if before:
            spec = before.object["spec"]
            self._catalog.remove_custom(spec["group"], spec["names"]["plural"])
            for version in spec["versions"]:
                key = (spec["group"], version["name"], spec["names"]["plural"])
                self._versions.pop(key, None)
                self._validators.pop(key, None)
                self._types.pop(key, None)
        if after:
            spec = after.object["spec"]
            self._catalog.add(infos_of(after.object))
            for version in spec["versions"]:
                self._versions[spec["group"], version["name"], spec["names"]["plural"]] = version

    def schema(self, info: ResourceInfo) -> Object | None:
        """Return the OpenAPI schema of a custom resource."""
        schema: Object | None = at(self._versions.get(_key(info)), "schema", "openAPIV3Schema")
        return schema

    def list_types(self, info: ResourceInfo) -> ListTypes | None:
        """Return what server-side apply needs to know of a custom resource, None for a built-in one."""
        if not info.custom:
            return None
        key = _key(info)
        if key not in self._types:
            self._types[key] = ListTypes.from_crd(self.schema(info), has_status=info.has_status)
        return self._types[key]

    def columns(self, info: ResourceInfo) -> list[Object] | None:
        """Return the additional printer columns of a custom resource, None if it names none."""
        columns: list[Object] | None = (self._versions.get(_key(info)) or {}).get("additionalPrinterColumns")
        return columns

    def scale_paths(self, info: ResourceInfo) -> Object | None:
        """Return the paths of the scale subresource."""
        paths: Object | None = at(self._versions.get(_key(info)), "subresources", "scale")
        return paths

    def complete(self, obj: Object, info: ResourceInfo) -> None:
        """Prune and fill in a custom object by its schema; write a definition's status."""
        if info.storage == self.STORAGE and isinstance(at(obj, "spec", "names"), dict) and at(obj, "spec", "versions"):
            named(obj["spec"]["names"])
            established(obj)
        schema = self.schema(info)
        if schema is None:
            return
        kept = {key: value for key, value in obj.items() if key not in META_KEYS}
        complete = filled(pruned(kept, schema), without_meta(schema))
        for part in kept:
            del obj[part]
        obj.update(complete)

    def known(self, obj: Object, info: ResourceInfo, unknown: list[str]) -> Object:
        """Return a custom object without the fields that its schema does not name; their paths go to ``unknown``."""
        schema = self.schema(info)
        if schema is None:
            return obj
        embedded = {**schema, "x-kubernetes-embedded-resource": True}
        result: Object = pruned(obj, embedded, unknown=unknown)
        return result

    def causes(self, obj: Object, info: ResourceInfo) -> list[Cause]:
        """Say where a custom object breaks its schema."""
        schema = self.schema(info)
        if schema is None:
            return []
        key = _key(info)
        if key not in self._validators:
            self._validators[key] = Draft202012Validator(as_json_schema(schema))
        wrong = [cause for error in self._validators[key].iter_errors(obj) for cause in _causes(error)]
        return [*wrong, *duplicates(obj, schema)]


def _key(info: ResourceInfo) -> Version:
    return info.group, info.version, info.plural


def _field(error: ValidationError) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
    return text.lstrip(".") or "<nil>"


def _causes(error: ValidationError) -> Iterator[Cause]:
    field, shown = _field(error), json.dumps(error.instance)
    wanted: Any = error.validator_value
    instance: Any = error.instance
    match error.validator:
        case "required":
            base = "" if field == "<nil>" else f"{field}."
            missing = [name for name in wanted if name not in instance]
            yield from (required(base + name) for name in missing)
        case "enum":
            yield unsupported_value(field, str(error.instance), [str(value) for value in wanted])
        case "type":
            first = wanted if isinstance(wanted, str) else wanted[0]
            text = f"{field} in body must be of type {first}: {json.dumps(_type_name(error.instance))}"
            yield Cause(
                "FieldValueTypeInvalid", f"Invalid value: {json.dumps(_type_name(error.instance))}: {text}", field
            )
        case "maxLength":
            yield Cause("FieldValueTooLong", f"Too long: may not be more than {wanted} bytes", field)
        case str(rule) if rule in _TEXTS:
            yield invalid_value(field, shown, f"{field} in body {_TEXTS[rule]} {_quoted(wanted)}{_UNITS.get(rule, '')}")
        case _:
            yield invalid_value(field, shown, f"{field} in body {error.message}")


_TEXTS = {
    "minimum": "should be greater than or equal to",
    "maximum": "should be less than or equal to",
    "exclusiveMinimum": "should be greater than",
    "exclusiveMaximum": "should be less than",
    "minLength": "should be at least",
    "pattern": "should match",
    "multipleOf": "should be a multiple of",
    "minItems": "should have at least",
    "maxItems": "should have at most",
    "minProperties": "should have at least",
    "maxProperties": "should have at most",
}
_UNITS = {
    "minLength": " chars long",
    "minItems": " items",
    "maxItems": " items",
    "minProperties": " properties",
    "maxProperties": " properties",
}


def _quoted(value: Any) -> str:
    return f"'{value}'" if isinstance(value, str) else str(value)


def duplicates(value: Any, schema: Object, path: str = "") -> Iterator[Cause]:
    """Say which items of sets, and of lists with keys, are there twice."""
    if isinstance(value, dict):
        for name, own in (schema.get("properties") or {}).items():
            if name in value:
                yield from duplicates(value[name], own, f"{path}.{name}" if path else name)
    items = schema.get("items")
    if not isinstance(value, list) or not isinstance(items, dict):
        return
    keys, seen = schema.get("x-kubernetes-list-map-keys") or (), []
    kind = schema.get("x-kubernetes-list-type")
    for index, item in enumerate(value):
        yield from duplicates(item, items, f"{path}[{index}]")
        told = {key: item.get(key) for key in keys} if kind == "map" and isinstance(item, dict) else item
        if kind in ("set", "map") and told in seen:
            yield Cause("FieldValueDuplicate", f"Duplicate value: {json.dumps(told)}", f"{path}[{index}]")
        seen.append(told)


def _type_name(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")
