"""A live object with an applied configuration laid over it, without what its manager stopped applying."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from copy import deepcopy
from functools import reduce
from operator import is_not
from typing import Any

from gpu_provision.sandbox.apiserver.fieldmanager.compare import by_step, fields_of
from gpu_provision.sandbox.apiserver.fieldmanager.fields import (
    SELF,
    FieldSet,
    difference,
    field_step,
    intersection,
    item_step,
    union,
    with_self,
)
from gpu_provision.sandbox.apiserver.fieldmanager.schema import ABSENT, CLEARED, Object, Shape, Type


def merge(live: Object, config: Object, root: Type) -> Object:
    """Return the live object with every value of the configuration, sharing the parts that stay.

    What the configuration makes empty is CLEARED; settled() removes it.
    """
    return _merge_maps(root, live, config)


def settled(value: Any) -> Any:
    """Return a value without what is CLEARED in it; itself if nothing is."""
    if isinstance(value, dict):
        out: Any = {name: settled(part) for name, part in value.items() if part is not CLEARED}
        changed = len(out) < len(value) or any(out[name] is not part for name, part in value.items())
    elif isinstance(value, list):
        out = [settled(part) for part in value if part is not CLEARED]
        changed = len(out) < len(value) or any(map(is_not, out, value))
    else:
        return value
    return out if changed else value


def _merge_maps(typed: Type, live: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(live)
    for name, value in config.items():
        merged = _merge(typed.of(name), out.get(name, ABSENT), value)
        if merged is ABSENT:
            out.pop(name, None)
        else:
            out[name] = merged
    return out


def _merge(typed: Type, live: object, config: object) -> Any:
    if config is None or typed.empty(config):
        return _merge_empty(typed, live, config)
    if not typed.divides(config):
        return deepcopy(config) if isinstance(config, (dict, list)) else config
    match config:
        case dict():
            return _merge_maps(typed, live if isinstance(live, dict) else {}, config)
        case list():
            return _merge_lists(typed, live if isinstance(live, list) else [], config)


def _merge_empty(typed: Type, live: object, config: object) -> Any:
    """Return what null or an empty value leaves: it clears what is one value, and adds nothing to the rest."""
    if live and typed.shape is not Shape.LEAF and typed.divides(live):
        return live
    if not typed.native or (config is not None and typed.present):
        return config
    return live if config is None and (live is ABSENT or live is None) else CLEARED


def _merge_lists(typed: Type, live: list[Any], config: list[Any]) -> list[Any]:
    """Return the items of both lists.

    Where both lists hold an item, the configuration's order counts; an item that only the live list holds
    keeps its place before the next shared one, and a new item follows the one that it follows in the
    configuration.
    """
    mine = by_step(typed, live)
    theirs = {item_step(typed, item): item for item in config}
    merged = {step: _merge_item(typed, mine.get(step, []), item) for step, item in theirs.items()}
    return _arranged([(item_step(typed, item), item) for item in live], merged)


def _merge_item(typed: Type, live: list[Any], config: object) -> Any:
    # Items that share a key cannot be merged with; the applied one takes their place.
    return _merge(typed.item or typed, live[0] if len(live) == 1 else ABSENT, config)


def _arranged(live: list[tuple[str, Any]], merged: Mapping[str, Any]) -> list[Any]:
    here = {step for step, _ in live}
    waiting, pending = deque(live), deque(merged)
    shared = deque(step for step in merged if step in here)
    out: list[Any] = []
    while waiting or pending:
        step, item = waiting[0] if waiting else ("", None)
        if waiting and step not in merged:
            out.append(item)
            waiting.popleft()
            continue
        if waiting and pending and step != pending[0] and shared and shared[0] != step:
            waiting.popleft()  # it comes, or came, where the configuration has it
            continue
        if waiting and (step not in pending or step == pending[0]):
            waiting.popleft()
        if pending:
            following = pending.popleft()
            out.append(merged[following])
            if shared and shared[0] == following:
                shared.popleft()
    return out


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
