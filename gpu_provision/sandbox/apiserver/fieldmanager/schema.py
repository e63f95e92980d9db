"""Types for server-side apply: which values are atomic, and which are merged.

``schema.json`` has the built-in kinds; a custom resource's type follows from its CRD's structural schema. The types in
the data file are::

    string number boolean any      a scalar (any: of any type)
    list                           an atomic list: one value with one owner
    set                            a list of distinct scalars, each with its own owner
    list<T> by key key="default"   a list of objects with these key fields
    map<T>                         a map with any keys, each with its own owner
    atomic map, atomic             one value with one owner
    deduced                        by value: objects are merged, lists are atomic
    core.v1.Container              an object with known fields, by its name in the file

A trailing ``!`` marks a field that is present even without a value, a trailing ``granular`` an object that is merged
here and atomic elsewhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import cache
from importlib.resources import files
from typing import Any, Final

from gpu_provision.sandbox.api import Object

ABSENT: Final = object()
"""Marks a missing value; null is a value."""

CLEARED: Final = object()
"""Marks an emptied value in a merged object, which differs from ABSENT until the comparison."""


class FieldShape(Enum):
    """How owners share a value."""

    LEAF = auto()  # a scalar, or an atomic list or map
    MAP = auto()  # by field name or map key
    LIST = auto()  # by the key fields of its items
    SET = auto()  # by its items


@dataclass(frozen=True, slots=True, eq=False)
class Type:
    """The type of one value.

    ``item`` is the type of list items, of map values and of unknown fields; ``keys`` are the key fields of list items,
    each with its default or ABSENT; ``scalar`` is string, number, boolean, any or empty. A ``present`` value is empty
    if no client sets it, like by-value structs in the server; ``native`` values have a typed form in the server, which
    drops nulls and empty lists and maps.
    """

    shape: FieldShape
    fields: Mapping[str, Type] = field(default_factory=dict)
    item: Type | None = None
    keys: tuple[tuple[str, Any], ...] = ()
    scalar: str = ""
    present: bool = False
    native: bool = True

    def field_type(self, name: str) -> Type:
        """Return the type of a field or map value, deduced for an unknown one."""
        return self.fields.get(name) or self.item or DEDUCED

    def is_divided(self, value: object) -> bool:
        """Whether a value is divided among owners, and no leaf."""
        if self.shape is FieldShape.MAP:
            return isinstance(value, dict)
        return self.shape is not FieldShape.LEAF and isinstance(value, list)

    def is_empty(self, value: object) -> bool:
        """Whether the server's typed form drops a value, which then counts as absent."""
        if not self.native:
            return False
        return value is None or value == [] or (value == {} and not self.fields and self.shape is not FieldShape.LEAF)


DEDUCED: Final = Type(FieldShape.MAP, native=False)
object.__setattr__(DEDUCED, "item", DEDUCED)  # its items are deduced, too
ATOMIC: Final = Type(FieldShape.LEAF)
CUSTOM_ATOMIC: Final = Type(FieldShape.LEAF, native=False)
SCALARS: Final = {kind: Type(FieldShape.LEAF, scalar=kind) for kind in ("string", "number", "boolean", "any")}
WORDS: Final = {
    **SCALARS,
    "list": ATOMIC,
    "atomic": ATOMIC,
    "atomic map": ATOMIC,
    "deduced": DEDUCED,
    "set": Type(FieldShape.SET, item=SCALARS["any"]),
}
_ZEROS: Final[dict[str, Any]] = {"string": "", "number": 0, "boolean": False}
_KEYED: Final = re.compile(r"list<(?P<item>.+)> by (?P<keys>.+)")
_MAP: Final = re.compile(r"map<(?P<item>.+)>")


@dataclass(frozen=True, slots=True)
class ObjectType:
    """The type of one kind; ``has_status`` limits writes of ``status`` to the status subresource."""

    root: Type
    has_status: bool

    @classmethod
    def from_schema(cls, schema: Mapping[str, Any] | None, *, has_status: bool) -> ObjectType:
        """Return the type of a custom resource from its ``openAPIV3Schema``; None without a schema."""
        described = _custom_type(schema or {"type": "object", "x-kubernetes-preserve-unknown-fields": True})
        fields = {**described.fields, **_type_meta_fields()}
        return cls(replace(described, shape=FieldShape.MAP, fields=fields), has_status)


@cache
def _load_schema() -> dict[str, Any]:
    return dict(json.loads(files(__package__ or "").joinpath("schema.json").read_text("utf-8")))


@cache
def builtin_type(api_version: str, kind: str) -> ObjectType | None:
    """Return the type of a built-in kind, None for others."""
    group, _, version = api_version.rpartition("/")
    prefix = _load_schema()["groups"].get(group)
    name = f"{prefix}.{version}.{kind}"
    if prefix is None or name not in _load_schema()["types"]:
        return None
    root = _object_type(name)
    return ObjectType(root, "status" in root.fields)


def type_of(obj: Object, given: ObjectType | None) -> ObjectType:
    """Return the type of an object: the given one, the built-in one, or a deduced one."""
    return given or builtin_type(obj.get("apiVersion", ""), obj.get("kind", "")) or _UNDESCRIBED


@cache
def _object_type(name: str) -> Type:
    described = dict(_load_schema()["types"][name])
    shape = FieldShape.LEAF if described.pop(".", "") else FieldShape.MAP
    return Type(shape, {field_name: _parse(text) for field_name, text in described.items()})


@cache
def _parse(text: str) -> Type:
    if text.endswith("!"):
        return replace(_parse(text[:-1]), present=True)
    if text.endswith(" granular"):
        return replace(_parse(text.removesuffix(" granular")), shape=FieldShape.MAP)
    if word := WORDS.get(text):
        return word
    if keyed := _KEYED.fullmatch(text):
        pairs = (part.partition("=")[::2] for part in keyed["keys"].split())
        keys = tuple((name, json.loads(default) if default else ABSENT) for name, default in pairs)
        return Type(FieldShape.LIST, item=_parse(keyed["item"]), keys=keys)
    if free := _MAP.fullmatch(text):
        return Type(FieldShape.MAP, item=_parse(free["item"]))
    return _object_type(text)


def zero_value(typed: Type) -> Any:
    """Return the server's value of an unset field that is always present."""
    if typed.shape is FieldShape.LEAF:
        return _ZEROS.get(typed.scalar)
    return {} if typed.shape is FieldShape.MAP else []


def _type_meta_fields() -> dict[str, Type]:
    return {"apiVersion": SCALARS["string"], "kind": SCALARS["string"], "metadata": _parse("meta.v1.ObjectMeta!")}


def _custom_type(schema: Mapping[str, Any]) -> Type:
    if schema.get("x-kubernetes-int-or-string"):
        return CUSTOM_ATOMIC
    match schema.get("type"):
        case "object":
            fields = {name: _custom_type(part) for name, part in schema.get("properties", {}).items()}
            fields |= _type_meta_fields() if schema.get("x-kubernetes-embedded-resource") else {}
            values, is_open = schema.get("additionalProperties"), schema.get("x-kubernetes-preserve-unknown-fields")
            item = DEDUCED if values or not fields or is_open else None
            is_atomic = schema.get("x-kubernetes-map-type") == "atomic"
            item = _custom_type(values) if isinstance(values, Mapping) else item
            return Type(FieldShape.LEAF if is_atomic else FieldShape.MAP, fields, item=item, native=False)
        case "array":
            return _custom_list_type(schema, schema.get("items", {}))
        case "integer" | "number":
            return replace(SCALARS["number"], native=False)
        case "string" | "boolean" as kind:
            return replace(SCALARS[kind], native=False)
    return DEDUCED


def _custom_list_type(schema: Mapping[str, Any], items: Mapping[str, Any]) -> Type:
    match schema.get("x-kubernetes-list-type"):
        case "map":
            properties, names = items.get("properties", {}), schema.get("x-kubernetes-list-map-keys", ())
            keys = tuple((name, properties.get(name, {}).get("default", ABSENT)) for name in names)
            return Type(FieldShape.LIST, item=_custom_type(items), keys=keys, native=False)
        case "set":
            return Type(FieldShape.SET, item=_custom_type(items), native=False)
    return CUSTOM_ATOMIC


_UNDESCRIBED: Final = ObjectType.from_schema(None, has_status=False)
