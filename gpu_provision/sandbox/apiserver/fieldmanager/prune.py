"""What goes when a manager stops applying it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

from gpu_provision.sandbox.apiserver.fieldmanager.compare import fields_of
from gpu_provision.sandbox.apiserver.fieldmanager.elements import SELF, field_step, item_step
from gpu_provision.sandbox.apiserver.fieldmanager.fieldset import (
    FieldSet,
    difference,
    intersection,
    union,
    with_self,
)
from gpu_provision.sandbox.apiserver.fieldmanager.schema import ABSENT, CLEARED, Object, Shape, Type


def prune(merged: Object, root: Type, *, before: FieldSet, owned: Iterable[FieldSet]) -> Object:
    """Return the merged object without what its applier no longer sends and nobody owns.

    Args:
        merged: The live object with the configuration laid over it.
        root: Its type.
        before: What the applier claimed the last time.
        owned: What every manager owns now, the applier's new claims included.
    """
    claimed: FieldSet = reduce(union, owned)
    if not difference(before, claimed):
        return merged
    last = with_objects(before, root)
    present = with_objects(fields_of(merged, root), root)
    kept = with_objects(claimed, root)
    dropped = without(merged, last, root)
    gone = difference(present, union(with_objects(fields_of(dropped, root), root), kept))
    dropped = without(merged, gone, root)
    gone = difference(present, with_objects(fields_of(dropped, root), root))
    return without(merged, intersection(gone, last), root)


def with_objects(fields: FieldSet, typed: Type) -> FieldSet:
    """Return a set with the named fields that its paths lead through: who owns a.b.c has a and a.b too."""
    return {step: _with_objects(node, typed, step) for step, node in fields.items()}


def _with_objects(node: FieldSet, typed: Type, step: str) -> FieldSet:
    if not node or step == SELF:
        return node
    named = step.startswith("f:")
    inner = typed.of(step[2:]) if named else (typed.item or typed)
    deeper = with_objects(node, inner)
    return with_self(deeper) if named and step[2:] in typed.fields else deeper


def without(obj: Object, fields: FieldSet, root: Type) -> Object:
    """Return an object without the values at these paths; what is emptied by that is CLEARED."""
    return _without_fields(root, obj, fields) if fields else obj


def _without_fields(typed: Type, value: Mapping[str, Any], node: FieldSet) -> dict[str, Any]:
    out = {}
    for name, part in value.items():
        rest = _rest(typed.of(name), part, node.get(field_step(name)))
        if rest is not ABSENT:
            out[name] = rest
    return out


def _without_items(typed: Type, items: list[Any], node: FieldSet) -> list[Any]:
    inner = typed.item or typed
    rests = (_rest(inner, item, node.get(item_step(typed, item))) for item in items)
    return [rest for rest in rests if rest is not ABSENT and rest is not CLEARED]


def _rest(typed: Type, value: Any, node: FieldSet | None) -> Any:
    if node is None:
        return value
    rest = ABSENT if not node or SELF in node else _without(typed, value, node)
    gone = rest is ABSENT or rest is CLEARED
    return {} if gone and typed.present and typed.shape is Shape.MAP else rest


def _without(typed: Type, value: Any, node: FieldSet) -> Any:
    """Return what is left of a value; an atomic one goes if a path leads into it."""
    if isinstance(value, dict) and typed.divides(value):
        return _without_fields(typed, value, node) or CLEARED
    if isinstance(value, list) and typed.divides(value):
        return _without_items(typed, value, node) or CLEARED
    return CLEARED if isinstance(value, (dict, list)) else value
