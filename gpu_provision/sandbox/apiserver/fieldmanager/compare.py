"""Which fields differ between two objects, and which fields an object has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gpu_provision.sandbox.apiserver.fieldmanager.fields import SELF, FieldSet, field_step, item_step, normalized
from gpu_provision.sandbox.apiserver.fieldmanager.schema import ABSENT, CLEARED, Object, Shape, Type, zero


class Comparison(NamedTuple):
    """The difference of two objects: fields that are new or have another value, and fields that are gone."""

    written: FieldSet
    removed: FieldSet


_Nodes = tuple[FieldSet | None, FieldSet | None]
_SAME: _Nodes = (None, None)


def compare(old: Object, new: Object, root: Type, *, ignored: str = "") -> Comparison:
    """Compare two objects of one type.

    Args:
        old: The object before.
        new: The object after.
        root: Their type.
        ignored: A top-level field to leave out.
    """
    left, right = ({name: obj[name] for name in obj if name != ignored} for obj in (old, new))
    written, removed = _compare_maps(root, left, right)
    return Comparison(normalized(written or {}), normalized(removed or {}))


def _compare_maps(typed: Type, old: Mapping[str, Any], new: Mapping[str, Any]) -> _Nodes:
    written: FieldSet = {}
    removed: FieldSet = {}
    for name, value in new.items():
        before = old.get(name, ABSENT)
        if before is not value and before != value:
            _note(field_step(name), _compare(typed.of(name), before, value), written, removed)
    for name, value in old.items():
        if name not in new:
            _note(field_step(name), _compare(typed.of(name), value, ABSENT), written, removed)
    return written or None, removed or None


def _note(step: str, nodes: _Nodes, written: FieldSet, removed: FieldSet) -> None:
    added, gone = nodes
    if added is not None:
        written[step] = added
    if gone is not None:
        removed[step] = gone


def _compare(typed: Type, old: object, new: object) -> _Nodes:
    old, new = _seen(typed, old), _seen(typed, new)
    if old is ABSENT:
        return (None if new is ABSENT else every_field(typed, new)), None
    if new is ABSENT:
        return None, every_field(typed, old)
    if old == new:
        return _SAME
    before, after = _content(typed, old), _content(typed, new)
    if before is None or after is None or not (before or after):
        return {}, None
    return (_compare_maps if typed.shape is Shape.MAP else _compare_lists)(typed, before, after)


def _content(typed: Type, value: object) -> Any:
    """Return what a divided value holds, None if the value is not divided; null and cleared values hold nothing."""
    if typed.shape is not Shape.LEAF and (value is None or value is CLEARED):
        return {} if typed.shape is Shape.MAP else []
    return value if typed.divides(value) else None


def _seen(typed: Type, value: object) -> object:
    """Return a value as the server's typed form has it."""
    if value is not ABSENT and not (typed.native and value is None):
        return ABSENT if typed.empty(value) and not typed.present else value
    return zero(typed) if typed.present else ABSENT


def _compare_lists(typed: Type, old: list[Any], new: list[Any]) -> _Nodes:
    before, after = by_step(typed, old), by_step(typed, new)
    written: FieldSet = {}
    removed: FieldSet = {}
    for step in before | after:
        _note(step, _compare_items(typed, before.get(step, []), after.get(step, [])), written, removed)
    return written or None, removed or None


def _compare_items(typed: Type, old: list[Any], new: list[Any]) -> _Nodes:
    """Compare what two lists hold under one key; items that share a key are owned as one value."""
    item = typed.item or typed
    if len(old) <= 1 and len(new) <= 1:
        return _compare(item, old[0] if old else ABSENT, new[0] if new else ABSENT)
    if old == new:
        return _SAME
    if len(new) == 1:
        return every_field(item, new[0]), {}
    if len(old) == 1:
        return {}, _without_self(every_field(item, old[0]))
    return ({}, None) if new else (None, {})


def _without_self(node: FieldSet) -> FieldSet | None:
    return {step: node[step] for step in node if step != SELF} or None


def by_step(typed: Type, items: list[Any]) -> dict[str, list[Any]]:
    """Return the items of a list by the step that leads to them; Update requests may bring duplicates."""
    found: dict[str, list[Any]] = {}
    for item in items:
        found.setdefault(item_step(typed, item), []).append(item)
    return found


def every_field(typed: Type, value: object) -> FieldSet:
    """Return the node of a value that came or went as a whole: every path in it, and the path to it."""
    if not value or not typed.divides(value):
        return {}
    node = dict(_parts(typed, value))
    return {SELF: {}, **node} if node else {}


def _parts(typed: Type, value: object) -> Iterator[tuple[str, FieldSet]]:
    if isinstance(value, list):
        for step, items in by_step(typed, value).items():
            yield step, every_field(typed.item or typed, items[0]) if len(items) == 1 else {}
    elif isinstance(value, dict):
        yield from _field_parts(typed, value)


def _field_parts(typed: Type, value: Mapping[str, Any]) -> Iterator[tuple[str, FieldSet]]:
    for name, part in value.items():
        inner = typed.of(name)
        if inner.present or not inner.empty(part):
            yield field_step(name), every_field(inner, part)
    for name, inner in typed.fields.items():
        if inner.present and name not in value:
            yield field_step(name), {}


def fields_of(obj: Object, root: Type) -> FieldSet:
    """Return the fields that an applied configuration claims: what it says, not the objects it says it in.

    The items of lists and maps are claimed themselves; an object with known fields only if it is empty.
    """
    return normalized(_claims(root, obj))


def _claims(typed: Type, value: object) -> FieldSet:
    if isinstance(value, list):
        items = by_step(typed, value)
        return {step: _claimed_item(typed.item or typed, found) for step, found in items.items()}
    if isinstance(value, dict):
        claims = ((name, _claimed_field(typed, name, part)) for name, part in value.items())
        return {field_step(name): node for name, node in claims if node is not None}
    return {}


def _claimed_item(typed: Type, items: list[Any]) -> FieldSet:
    node = _claims(typed, items[0]) if len(items) == 1 and typed.divides(items[0]) else {}
    return {SELF: {}, **node} if node else {}


def _claimed_field(typed: Type, name: str, value: object) -> FieldSet | None:
    inner = typed.of(name)
    if not inner.divides(value):
        return {}
    node = _claims(inner, value)
    if name in typed.fields:
        return node or ({} if value == {} else None)
    return {SELF: {}, **node} if node else {}
