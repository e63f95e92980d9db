"""Whether an applied configuration fits its type, and which of its fields another manager owns."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, Final, NamedTuple

from gpu_provision.sandbox.apiserver.fieldmanager.entries import UPDATE, Entries, Owner
from gpu_provision.sandbox.apiserver.fieldmanager.fields import (
    FieldSet,
    KeylessItem,
    intersection,
    item_step,
    paths,
    printed,
)
from gpu_provision.sandbox.apiserver.fieldmanager.schema import Object, Shape, Type


class Conflict(NamedTuple):
    """One field that another manager owns; ``field`` is its path as the server prints it."""

    manager: str
    operation: str
    field: str


class ApplyConflict(Exception):
    """An apply without force would change fields of other managers.

    Attributes:
        conflicts: What would change, ordered by owner and path.
    """

    def __init__(self, conflicts: Iterable[tuple[Owner, str]]) -> None:
        """Keep the owner and path of every conflict."""
        self._conflicts = tuple(conflicts)
        self.conflicts = tuple(Conflict(who.manager, who.operation, path) for who, path in self._conflicts)
        super().__init__(self.message())

    def message(self) -> str:
        """Return the text of the server's Status."""
        if len(self._conflicts) == 1:
            [(who, path)] = self._conflicts
            return f"Apply failed with 1 conflict: conflict with {_named(who)}: {path}"
        lines = []
        for who, group in groupby(self._conflicts, key=lambda conflict: conflict[0]):
            lines += [f"conflicts with {_named(who)}:", *(f"- {path}" for _, path in group)]
        return f"Apply failed with {len(self._conflicts)} conflicts: " + "\n".join(lines)

    def causes(self) -> list[Object]:
        """Return the ``details.causes`` of the server's Status."""
        return [
            {"reason": "FieldManagerConflict", "message": f"conflict with {_named(who)}", "field": path}
            for who, path in self._conflicts
        ]


def _named(who: Owner) -> str:
    name = json.dumps(who.manager, ensure_ascii=False)
    name += f' with subresource "{who.subresource}"' if who.subresource else ""
    return f"{name} using {who.version}" if who.operation == UPDATE else name


def conflicts(entries: Entries, written: FieldSet, *, applier: Owner) -> list[tuple[Owner, FieldSet]]:
    """Return, for every other manager, its fields among those that are written."""
    others = (entries[who] for who in sorted(entries) if who != applier)
    shared = ((entry.owner, intersection(entry.fields, written)) for entry in others)
    return [(who, fields) for who, fields in shared if fields]


def refuse(found: Iterable[tuple[Owner, FieldSet]]) -> None:
    """Raise ApplyConflict if there is a conflict."""
    listed = [(who, path) for who, fields in found for path in paths(fields)]
    if listed:
        raise ApplyConflict(listed)


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
