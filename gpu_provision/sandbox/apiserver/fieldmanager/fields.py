"""Field paths and sets of them, as FieldsV1 and ``metadata.managedFields`` encode them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from gpu_provision.sandbox.apiserver.fieldmanager.schema import ABSENT, Shape, Type

SELF: Final = "."
# Go's JSON encoder escapes these for the sake of HTML; a reader in Go compares the steps after decoding them.
_ESCAPED: Final = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}
_KIND_RANK: Final = {".": 0, "f": 1, "k": 2, "v": 3, "i": 4}
_VALUE_RANK: Final = {int: 0, float: 0, str: 1, bool: 2}
_OTHER_RANK: Final = 3


class KeylessItem(ValueError):
    """A list item lacks every field that would tell it from the others."""


def field_step(name: str) -> str:
    """Return the step into a field or map key."""
    return f"f:{name}"


def item_step(listed: Type, item: object) -> str:
    """Return the step to an item of a list or set.

    Raises:
        KeylessItem: the item has none of the list's key fields.
    """
    if listed.shape is Shape.SET:
        return _set_step(item)
    if not isinstance(item, dict):
        noun = "a null element" if item is None else "non-map elements"
        message = f"associative list with keys may not have {noun}"
        raise KeylessItem(message)
    found = ((name, item.get(name, default)) for name, default in listed.keys)
    parts = ((name, type(value), _scalar(value)) for name, value in found if value is not ABSENT)
    return _key_step(tuple(parts), listed)


def _scalar(value: object) -> object:
    return _encoded(value) if isinstance(value, (dict, list)) else value


def _set_step(item: object) -> str:
    match item:
        case None:
            message = "associative list without keys has an element that's an explicit null"
        case dict():
            message = "associative list without keys has an element that's a map type"
        case list():
            message = "not supported: associative list with lists as elements"
        case _:
            return f"v:{_encoded(item)}"
    raise KeylessItem(message)


@lru_cache(maxsize=65536)
def _key_step(parts: tuple[tuple[str, type, Any], ...], listed: Type) -> str:
    # The value's type is part of the cache key because True == 1 == 1.0 in Python.
    if not parts:
        names = " ".join(f'"{name}"' for name, _ in listed.keys)
        message = (
            f"associative list with keys has an element that omits all key fields [{names}] "
            "(and doesn't have default values for any key fields)"
        )
        raise KeylessItem(message)
    return "k:" + _encoded(dict(sorted((name, value) for name, _, value in parts)))


def _encoded(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).translate(_ESCAPED)


@lru_cache(maxsize=65536)
def order(step: str) -> tuple[Any, ...]:
    """Return the sort key of a step: itself, fields by name, list items by key, set items by value."""
    rank = _KIND_RANK.get(step[0], 5)
    match step[0]:
        case "k":
            keys = json.loads(step[2:])
            return rank, tuple((name, *_ranked(value)) for name, value in sorted(keys.items()))
        case "v":
            return rank, _ranked(json.loads(step[2:]))
        case "i":
            return rank, int(step[2:])
        case _:
            return rank, step


def _ranked(value: object) -> tuple[int, Any]:
    rank = _VALUE_RANK.get(type(value), _OTHER_RANK)
    return rank, value if rank < _OTHER_RANK else _encoded(value)


@lru_cache(maxsize=65536)
def printed(step: str) -> str:
    """Return a step as the server prints it in a message: ``.spec``, ``[name="x"]``, ``[="x"]``."""
    match step[0]:
        case "f":
            return f".{step[2:]}"
        case "k":
            keys = json.loads(step[2:])
            return "[" + ",".join(f"{name}={_printed(value)}" for name, value in sorted(keys.items())) + "]"
        case "v":
            return f"[={_printed(json.loads(step[2:]))}]"
        case _:
            return f"[{step[2:]}]"


def _printed(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


FieldSet = dict[str, Any]


def union(left: FieldSet, right: FieldSet) -> FieldSet:
    """Return the paths that are in either set."""
    if not left or not right or left is right:
        return left or right
    return _merged(left, right)


def _merged(left: FieldSet, right: FieldSet) -> FieldSet:
    out, added = dict(left), False
    for step, theirs in right.items():
        mine = left.get(step)
        added |= mine is None
        out[step] = theirs if mine is None else _union(mine, theirs)
    return _sorted(out) if added else out


def _union(left: FieldSet, right: FieldSet) -> FieldSet:
    if left is right:
        return left
    if left and right:
        return _merged(left, right)
    return with_self(left or right)


def with_self(node: FieldSet) -> FieldSet:
    """Return a node whose own path is in the set too."""
    return node if not node or SELF in node else {SELF: {}, **node}


def difference(left: FieldSet, right: FieldSet) -> FieldSet:
    """Return the paths of ``left`` that are not in ``right``; it does not matter if parents of them are."""
    if not left or not right:
        return left
    out: FieldSet | None = None
    for step, theirs in right.items():
        mine = left.get(step)
        if mine is None or (rest := _difference(mine, theirs)) is mine:
            continue
        out = dict(left) if out is None else out
        _put(out, step, rest)
    return left if out is None else out


def _put(out: FieldSet, step: str, rest: FieldSet | None) -> None:
    if rest is None:
        del out[step]
    else:
        out[step] = rest


def _difference(left: FieldSet, right: FieldSet) -> FieldSet | None:
    if not left:
        return left if right and SELF not in right else None
    return _node(difference(left, right or {SELF: {}}))


def _node(fields: FieldSet) -> FieldSet | None:
    """Return the node of these steps: a lone ``.`` is written as an empty node, nothing as no node."""
    if len(fields) == 1 and SELF in fields:
        return {}
    return fields or None


def intersection(left: FieldSet, right: FieldSet) -> FieldSet:
    """Return the paths that are in both sets."""
    out: FieldSet = {}
    for step, mine in left.items():
        theirs = right.get(step)
        if theirs is not None and (both := _intersection(mine, theirs)) is not None:
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
    steps = sorted((step for step in fields if step != SELF), key=order)
    for step in steps:
        if not fields[step] or SELF in fields[step]:
            yield prefix + printed(step)
    for step in steps:
        yield from paths(fields[step], prefix + printed(step))


def _sorted(fields: FieldSet) -> FieldSet:
    return dict(sorted(fields.items(), key=_by_step))


def _by_step(entry: tuple[str, Any]) -> tuple[Any, ...]:
    return order(entry[0])


def normalized(fields: FieldSet) -> FieldSet:
    """Return a set in the server's order, from one built in any order."""
    return {step: normalized(fields[step]) for step in sorted(fields, key=order)}
