"""Field paths as plans write them, read back: ``spec.containers[dcgm].image``, ``labels."a.b/c"``."""

from __future__ import annotations

import copy
import re
from typing import Any

_STEP = re.compile(r'"(?P<quoted>[^"]*)"|(?P<plain>[^.\["]+)|\[(?P<item>[^\]]*)\]')
_ITEM_KEYS = ("name", "containerPort", "port", "mountPath", "devicePath")


class Item(str):
    """A step into a list: the item's name, key or position."""

    __slots__ = ()


def steps(path: str) -> tuple[str, ...]:
    """Return the steps of a path; steps into lists are of type Item."""
    return tuple(
        Item(found["item"]) if found["item"] is not None else found["quoted"] or found["plain"]
        for found in _STEP.finditer(path)
    )


def put(value: Any, path: str, new: Any) -> Any:
    """Return a copy of a JSON value with another value at ``path``; None removes what is there.

    Raises LookupError if the path leads nowhere.
    """
    result = copy.deepcopy(value)
    *way, last = steps(path)
    parent = result
    for step in way:
        parent = _into(parent, step)
    if isinstance(last, Item):
        _put_item(parent, last, new)
    elif new is None:
        parent.pop(last, None)
    else:
        parent[last] = new
    return result


def _into(parent: Any, step: str) -> Any:
    if isinstance(step, Item):
        return parent[_position(parent, step)]
    if not isinstance(parent, dict):
        raise LookupError(step)  # noqa: TRY004 - the path is wrong, not the caller's type
    return parent.setdefault(step, {})


def _put_item(items: Any, step: Item, new: Any) -> None:
    if not isinstance(items, list):
        raise LookupError(step)  # noqa: TRY004 - the path is wrong, not the caller's type
    try:
        position = _position(items, step)
    except LookupError:
        if new is not None:
            items.append(new)
        return
    items[position : position + 1] = [] if new is None else [new]


def _position(items: Any, step: str) -> int:
    for position, item in enumerate(items):
        if isinstance(item, dict) and any(str(item.get(key)) == step for key in _ITEM_KEYS):
            return position
    if step.isdigit() and int(step) < len(items):
        return int(step)
    raise LookupError(step)
