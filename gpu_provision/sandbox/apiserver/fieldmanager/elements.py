"""The steps of a field path, as FieldsV1 encodes them and as messages print them.

A step is a string: ``f:name`` a field, ``k:{"name":"x"}`` the list item with these keys, ``v:"x"`` the item
of a set, ``i:0`` a position (only ever read), ``.`` the value itself.
"""

from __future__ import annotations

import json
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
