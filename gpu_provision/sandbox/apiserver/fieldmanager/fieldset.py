"""Field paths, field sets as in ``metadata.managedFields``, and comparison of objects."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.errors import StatusError
from gpu_provision.sandbox.apiserver.fieldmanager.schema import ABSENT, CLEARED, FieldShape, Type, zero_value

SELF: Final = "."
# Go's JSON encoder escapes these characters for HTML; Go clients compare decoded steps.
_ESCAPED: Final = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}
_VALUE_RANK: Final = {int: 0, float: 0, str: 1, bool: 2}
_OTHER_RANK: Final = 3


class KeylessItemError(StatusError):
    """A list item without any key field: 400."""


def item_step(listed: Type, item: object) -> str:
    """Return the step to an item of a list or set. Raises KeylessItemError for an item without key fields."""
    if listed.shape is FieldShape.SET:
        if item is None or isinstance(item, (dict, list)):
            noun = {type(None): "an explicit null", dict: "a map type"}.get(type(item), "a list type")
            message = f"associative list without keys has an element that's {noun}"
            raise KeylessItemError(400, "BadRequest", message)
        return f"v:{_encode(item)}"
    if not isinstance(item, dict):
        noun = "a null element" if item is None else "non-map elements"
        message = f"associative list with keys may not have {noun}"
        raise KeylessItemError(400, "BadRequest", message)
    pairs = ((name, item.get(name, default)) for name, default in listed.keys)
    parts = (
        (name, type(value), _encode(value) if isinstance(value, (dict, list)) else value)
        for name, value in pairs
        if value is not ABSENT
    )
    return _key_step(tuple(parts), listed)


@lru_cache(maxsize=65536)
def _key_step(parts: tuple[tuple[str, type, Any], ...], listed: Type) -> str:
    # The value's type is part of the cache key because True == 1 == 1.0 in Python.
    if not parts:
        names = " ".join(f'"{name}"' for name, _ in listed.keys)
        message = (
            f"associative list with keys has an element that omits all key fields [{names}] "
            "(and doesn't have default values for any key fields)"
        )
        raise KeylessItemError(400, "BadRequest", message)
    return "k:" + _encode(dict(sorted((name, value) for name, _, value in parts)))


def _encode(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).translate(_ESCAPED)


@lru_cache(maxsize=65536)
def step_order(step: str) -> tuple[Any, ...]:
    """Return the sort key of a step: itself, fields by name, list items by key, set items by value."""
    rank = ".fkv".find(step[0])
    match step[0]:
        case "k":
            keys = json.loads(step[2:])
            return rank, tuple((name, *_rank_value(value)) for name, value in sorted(keys.items()))
        case "v":
            return rank, _rank_value(json.loads(step[2:]))
        case _:
            return rank, step


def _rank_value(value: object) -> tuple[int, Any]:
    rank = _VALUE_RANK.get(type(value), _OTHER_RANK)
    return rank, value if rank < _OTHER_RANK else _encode(value)


@lru_cache(maxsize=65536)
def print_step(step: str) -> str:
    """Return a step as the server prints it in a message: ``.spec``, ``[name="x"]``, ``[="x"]``."""
    match step[0]:
        case "f":
            return f".{step[2:]}"
        case "k":
            keys = json.loads(step[2:])
            parts = (f"{name}={json.dumps(keys[name], ensure_ascii=False)}" for name in sorted(keys))
            return f"[{','.join(parts)}]"
        case "v":
            return f"[={json.dumps(json.loads(step[2:]), ensure_ascii=False)}]"
        case _:
            return f"[{step[2:]}]"


FieldSet = dict[str, Any]


def union(left: FieldSet, right: FieldSet) -> FieldSet:
    """Return the paths of either set."""
    if not left or not right or left is right:
        return left or right
    out, added = dict(left), False
    for step, other in right.items():
        own = left.get(step)
        if own is None:
            out[step], added = other, True
        else:
            out[step] = union(own, other) if own and other else with_self(own or other)
    return dict(sorted(out.items(), key=lambda entry: step_order(entry[0]))) if added else out


def with_self(node: FieldSet) -> FieldSet:
    """Return a node with its own path in the set."""
    return node if not node or SELF in node else {SELF: {}, **node}


def difference(left: FieldSet, right: FieldSet) -> FieldSet:
    """Return the paths of ``left`` that are not in ``right``, regardless of their parents."""
    if not left or not right:
        return left
    out: FieldSet | None = None
    for step, other in right.items():
        own = left.get(step)
        if own is None or (rest := _difference(own, other)) is own:
            continue
        out = dict(left) if out is None else out
        if rest is None:
            del out[step]
        else:
            out[step] = rest
    return left if out is None else out


def _difference(left: FieldSet, right: FieldSet) -> FieldSet | None:
    if not left:
        return left if right and SELF not in right else None
    return _node(difference(left, right or {SELF: {}}))


def _node(fields: FieldSet) -> FieldSet | None:
    """Return the node of these steps: a lone ``.`` becomes an empty node, no step becomes None."""
    if len(fields) == 1 and SELF in fields:
        return {}
    return fields or None


def intersection(left: FieldSet, right: FieldSet) -> FieldSet:
    """Return the paths of both sets."""
    out: FieldSet = {}
    for step, own in left.items():
        other = right.get(step)
        if other is not None and (both := _intersection(own, other)) is not None:
            out[step] = both
    return out


def _intersection(left: FieldSet, right: FieldSet) -> FieldSet | None:
    if not left:
        return {} if not right or SELF in right else None
    if not right:
        return {} if SELF in left else None
    return _node(intersection(left, right))


def paths(fields: FieldSet, prefix: str = "") -> Iterator[str]:
    """Yield the paths of a set as messages print them, in the server's order: level by level."""
    steps = sorted((step for step in fields if step != SELF), key=step_order)
    for step in steps:
        if not fields[step] or SELF in fields[step]:
            yield prefix + print_step(step)
    for step in steps:
        yield from paths(fields[step], prefix + print_step(step))


def sort_fields(fields: FieldSet) -> FieldSet:
    """Return a set in the server's order, from one built in any order."""
    return {step: sort_fields(fields[step]) for step in sorted(fields, key=step_order)}


class Comparison(NamedTuple):
    """The difference of two objects: new and changed fields, and removed fields."""

    written: FieldSet
    removed: FieldSet


_Nodes = tuple[FieldSet | None, FieldSet | None]
_SAME: _Nodes = (None, None)


def compare(old: Object, new: Object, root: Type, *, ignored: str = "") -> Comparison:
    """Compare two objects of one type, except for the top-level field ``ignored``."""
    left, right = ({name: obj[name] for name in obj if name != ignored} for obj in (old, new))
    written, removed = _compare_maps(root, left, right)
    return Comparison(sort_fields(written or {}), sort_fields(removed or {}))


def _compare_maps(typed: Type, old: Mapping[str, Any], new: Mapping[str, Any]) -> _Nodes:
    written: FieldSet = {}
    removed: FieldSet = {}
    for name, value in new.items():
        before = old.get(name, ABSENT)
        if before is not value and before != value:
            _add_nodes(f"f:{name}", _compare(typed.field_type(name), before, value), written, removed)
    for name, value in old.items():
        if name not in new:
            _add_nodes(f"f:{name}", _compare(typed.field_type(name), value, ABSENT), written, removed)
    return written or None, removed or None


def _add_nodes(step: str, nodes: _Nodes, written: FieldSet, removed: FieldSet) -> None:
    added, gone = nodes
    if added is not None:
        written[step] = added
    if gone is not None:
        removed[step] = gone


def _compare(typed: Type, old: object, new: object) -> _Nodes:
    old, new = _typed_value(typed, old), _typed_value(typed, new)
    if old is ABSENT:
        return (None if new is ABSENT else all_fields(typed, new)), None
    if new is ABSENT:
        return None, all_fields(typed, old)
    if old == new:
        return _SAME
    before, after = _divided_content(typed, old), _divided_content(typed, new)
    if before is None or after is None or not (before or after):
        return {}, None
    return (_compare_maps if typed.shape is FieldShape.MAP else _compare_lists)(typed, before, after)


def _divided_content(typed: Type, value: object) -> Any:
    """Return the content of a divided value, empty for null and CLEARED; None for an undivided value."""
    if typed.shape is not FieldShape.LEAF and (value is None or value is CLEARED):
        return {} if typed.shape is FieldShape.MAP else []
    return value if typed.is_divided(value) else None


def _typed_value(typed: Type, value: object) -> object:
    """Return a value in the server's typed form."""
    if value is not ABSENT and not (typed.native and value is None):
        return ABSENT if _is_dropped(typed, value) else value
    return zero_value(typed) if typed.present else ABSENT


def _compare_lists(typed: Type, old: list[Any], new: list[Any]) -> _Nodes:
    before, after = items_by_step(typed, old), items_by_step(typed, new)
    written: FieldSet = {}
    removed: FieldSet = {}
    for step in before | after:
        nodes = _compare(typed.item or typed, before.get(step, ABSENT), after.get(step, ABSENT))
        _add_nodes(step, nodes, written, removed)
    return written or None, removed or None


def items_by_step(typed: Type, items: list[Any]) -> dict[str, Any]:
    """Return the items of a list by their steps; of items with equal steps the last one."""
    return {item_step(typed, item): item for item in items}


def all_fields(typed: Type, value: object) -> FieldSet:
    """Return the node of a value that is added or removed whole: its own path, and every path in it."""
    if not value or not typed.is_divided(value):
        return {}
    node: FieldSet = {}
    if isinstance(value, list):
        node = {step: all_fields(typed.item or typed, item) for step, item in items_by_step(typed, value).items()}
    elif isinstance(value, dict):
        inner = {name: typed.field_type(name) for name in value}
        node = {
            f"f:{name}": all_fields(of, value[name]) for name, of in inner.items() if not _is_dropped(of, value[name])
        }
        node |= {f"f:{name}": {} for name, of in typed.fields.items() if of.present and name not in value}
    return {SELF: {}, **node} if node else {}


def _is_dropped(typed: Type, value: object) -> bool:
    return typed.is_empty(value) and not typed.present


def applied_fields(obj: Object, root: Type) -> FieldSet:
    """Return the fields that an applied configuration owns: its values, not their parent objects.

    An applier owns items of lists and maps themselves; an object with known fields only if it is empty.
    """
    return sort_fields(_claimed_fields(root, obj))


def _claimed_fields(typed: Type, value: object) -> FieldSet:
    out: FieldSet = {}
    if isinstance(value, list):
        for step, item in items_by_step(typed, value).items():
            of = typed.item or typed
            node = _claimed_fields(of, item) if of.is_divided(item) else {}
            out[step] = {SELF: {}, **node} if node else {}
    elif isinstance(value, dict):
        for name, part in value.items():
            inner = typed.field_type(name)
            node = _claimed_fields(inner, part) if inner.is_divided(part) else {}
            if name not in typed.fields:
                out[f"f:{name}"] = {SELF: {}, **node} if node else {}
            elif node or not inner.is_divided(part) or part == {}:
                out[f"f:{name}"] = node
    return out
