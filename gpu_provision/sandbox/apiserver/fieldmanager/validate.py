"""Whether an applied configuration fits its type, in the server's words."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gpu_provision.sandbox.apiserver.fieldmanager.elements import KeylessItem, item_step, printed
from gpu_provision.sandbox.apiserver.fieldmanager.schema import Object, Shape, Type


class InvalidConfig(ValueError):
    """The configuration cannot be applied; the text is the server's message."""


_GO_NAMES: Final = {bool: "bool", int: "int64", float: "float64", str: "string", dict: "map", list: "list"}
_ACCEPTED: Final[dict[str, tuple[type, ...]]] = {
    "string": (str,),
    "number": (int, float),
    "boolean": (bool,),
    "any": (str, int, float, bool),
}
_EXPECTED: Final = {
    "string": "string",
    "number": "numeric (int or float)",
    "boolean": "boolean",
    "any": "any scalar",
}


def check(config: Object, root: Type) -> None:
    """Check a configuration.

    Raises:
        InvalidConfig: it names a field that its type lacks, has a value of another kind than its type says,
            or holds a list item twice or without a key; or it carries managedFields.
    """
    if (config.get("metadata") or {}).get("managedFields") is not None:
        message = "metadata.managedFields must be nil"
        raise InvalidConfig(message)
    problems = list(_problems(root, config, ""))
    if problems:
        text = problems[0] if len(problems) == 1 else "\n  ".join(["errors:", *problems])
        message = f"failed to create typed patch object ({_described(config)}): {text}"
        raise InvalidConfig(message)


def _described(config: Object) -> str:
    metadata = config.get("metadata") or {}
    name = f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"
    return f"{name}; {config.get('apiVersion')}, Kind={config.get('kind')}"


def _problems(typed: Type, value: Any, path: str) -> Iterator[str]:
    if value is None or (typed.shape is Shape.LEAF and not typed.scalar and not typed.fields):
        return
    if typed.scalar:
        yield from _scalar_problems(typed, value, path)
    elif typed.shape in {Shape.LIST, Shape.SET}:
        yield from _list_problems(typed, value, path)
    elif isinstance(value, dict):
        yield from _field_problems(typed, value, path)
    elif typed.fields:
        yield f"{path}: expected map, got {_go(value)}"


def _scalar_problems(typed: Type, value: object, path: str) -> Iterator[str]:
    misfit = isinstance(value, bool) and typed.scalar == "number"
    if misfit or not isinstance(value, _ACCEPTED[typed.scalar]):
        got = _GO_NAMES.get(type(value), "") if typed.scalar == "number" else _go(value)
        yield f"{path}: expected {_EXPECTED[typed.scalar]}, got {got}"


def _go(value: object) -> str:
    return f"&value.valueUnstructured{{Value:{json.dumps(value)}}}"


def _field_problems(typed: Type, value: Mapping[str, Any], path: str) -> Iterator[str]:
    for name, part in value.items():
        if typed.fields and typed.item is None and name not in typed.fields:
            yield f"{path}.{name}: field not declared in schema"
        else:
            yield from _problems(typed.of(name), part, f"{path}.{name}")


def _list_problems(typed: Type, value: object, path: str) -> Iterator[str]:
    if not isinstance(value, list):
        yield f"{path}: expected list, got {_go(value)}"
        return
    seen: set[str] = set()
    for position, item in enumerate(value):
        try:
            step = item_step(typed, item)
        except KeylessItem as problem:
            yield f"{path}: element {position}: {problem}"
            return
        if step in seen:
            yield f"{path}: duplicate entries for key {printed(step)}"
        seen.add(step)
        yield from _problems(typed.item or typed, item, path + printed(step))
