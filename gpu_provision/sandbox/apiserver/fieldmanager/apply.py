"""Server-side apply, and the managedFields of every other write."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from functools import reduce
from typing import Any, Final

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.errors import refuse
from gpu_provision.sandbox.apiserver.fieldmanager.fieldset import (
    SELF,
    Comparison,
    FieldSet,
    KeylessItemError,
    applied_fields,
    compare,
    difference,
    intersection,
    item_step,
    items_by_step,
    print_step,
    union,
    with_self,
)
from gpu_provision.sandbox.apiserver.fieldmanager.managed_fields import (
    APPLY,
    UPDATE,
    Entries,
    ManagedFieldsEntry,
    Owner,
    check_conflicts,
    decode_entries,
    encode_entries,
)
from gpu_provision.sandbox.apiserver.fieldmanager.schema import ABSENT, CLEARED, FieldShape, ObjectType, Type, type_of

BEFORE_FIRST_APPLY: Final = "before-first-apply"
"""Owns the fields of an object from before its first managedFields."""
_SERVER_METADATA: Final = ("creationTimestamp", "generation", "managedFields", "resourceVersion", "selfLink", "uid")
_UNOWNED: Final[FieldSet] = {
    "f:apiVersion": {},
    "f:kind": {},
    "f:metadata": {".": {}, **{f"f:{name}": {} for name in (*_SERVER_METADATA, "name", "namespace", "clusterName")}},
}


def apply_configuration(  # noqa: PLR0913 - the parameters of an apply request
    live: Object | None,
    config: Object,
    *,
    manager: str,
    force: bool,
    now: str,
    subresource: str = "",
    types: ObjectType | None = None,
) -> Object:
    """Apply a configuration with a ``metadata.name`` to the stored object; ``live`` is None for a new object.

    Returns a new object with managedFields, which shares unchanged parts with ``live``, and equals ``live`` without a
    change. The caller adds defaults and server metadata. A write through the subresource ``status`` writes all but
    ``spec``. ``types`` is the type of a custom resource.

    Raises ApplyConflictError if another manager owns a field that would change and ``force`` is off, StatusError 400
    for list items without a key or with the key of another, and for a configuration with managedFields.
    """
    types, before = type_of(config, types), live or {}
    _check_configuration(config, types.root)
    ignored, version = _ignored_field(types, subresource), config["apiVersion"]
    metadata = {name: value for name, value in config["metadata"].items() if name not in _SERVER_METADATA}
    config = {name: value for name, value in config.items() if name != ignored} | {"metadata": metadata}
    entries = _known_entries(before, types, version, now, subresource)
    applier = Owner.create(manager, APPLY, "", subresource)
    claimed, previous = applied_fields(config, types.root), entries.get(applier)
    merged = _merge_maps(types.root, before, config)
    if previous is not None:
        owned = [entry.fields for owner, entry in entries.items() if owner != applier]
        merged = _remove_abandoned(merged, types.root, before=previous.fields, owned=[*owned, claimed, _UNOWNED])
    changes = compare(before, merged, types.root, ignored=ignored)
    if not force:
        check_conflicts(entries, changes.written, applier=applier)
    merged = _drop_cleared(merged)
    changed = _without_managed_fields(before) != _without_managed_fields(merged)
    time = now if changed else previous.time if previous is not None else ""
    entry = ManagedFieldsEntry(applier, version, difference(claimed, _UNOWNED), time)
    return _with_entries(merged, {**_remove_fields(entries, changes, but=applier), applier: entry})


def record_update(  # noqa: PLR0913 - the parameters of a write request
    old: Object | None, new: Object, *, manager: str, now: str, subresource: str = "", types: ObjectType | None = None
) -> Object:
    """Return ``new``, which replaces ``old``, with its managedFields.

    ``new`` has its defaults, and does not change. Managed fields of the request replace the stored ones; an empty list
    removes every owner. ``subresource`` and ``types`` are as for an apply.
    """
    types = type_of(new, types)
    entries = _requested_entries(old, new, subresource)
    if not entries and old and (old.get("metadata") or {}).get("uid"):
        return _with_entries(new, {})  # no owner is known: the next apply starts the list
    try:
        changes = compare(old or {}, new, types.root, ignored=_ignored_field(types, subresource))
    except KeylessItemError:
        return _with_entries(new, entries)  # as in the server: managedFields never fail an accepted write
    if not changes.written and not changes.removed:
        return _with_entries(new, entries)
    entries, updater = _remove_fields(entries, changes), Owner.create(manager, UPDATE, new["apiVersion"], subresource)
    if written := difference(changes.written, _UNOWNED):
        previous = entries.get(updater)
        fields = union(previous.fields, written) if previous else written
        entries[updater] = ManagedFieldsEntry(updater, updater.version, fields, now)
    return _with_entries(new, entries)


def equal_but_for_times(left: Object, right: Object) -> bool:
    """Whether two objects are equal except for the times of their managedFields."""
    if _without_managed_fields(left) != _without_managed_fields(right):
        return False
    one, other = (
        [{**entry, "time": ""} for entry in (obj.get("metadata") or {}).get("managedFields") or ()]
        for obj in (left, right)
    )
    return one == other


def _remove_fields(entries: Entries, changes: Comparison, *, but: Owner | None = None) -> Entries:
    """Return the entries without the written and removed fields."""
    return {
        owner: entry
        if owner == but
        else entry.with_fields(difference(difference(entry.fields, changes.written), changes.removed))
        for owner, entry in entries.items()
    }


def _known_entries(live: Object, types: ObjectType, version: str, now: str, subresource: str) -> Entries:
    """Return the entries of an object; without any, BEFORE_FIRST_APPLY owns all its fields."""
    entries = decode_entries((live.get("metadata") or {}).get("managedFields"))
    if entries or not live:
        return entries
    written = difference(compare({}, live, types.root, ignored=_ignored_field(types, subresource)).written, _UNOWNED)
    owner = Owner.create(BEFORE_FIRST_APPLY, UPDATE, version, subresource)
    return {owner: ManagedFieldsEntry(owner, version, written, now)}


def _requested_entries(old: Object | None, new: Object, subresource: str) -> Entries:
    """Return the entries that an update starts from: the request's, if any, else the stored ones."""
    stored = ((old or {}).get("metadata") or {}).get("managedFields")
    requested = (new.get("metadata") or {}).get("managedFields")
    if subresource or requested is None or requested is stored:
        return decode_entries(stored)
    if requested in ([], [{}]):
        return {}
    return decode_entries(requested) or decode_entries(stored)


def _ignored_field(types: ObjectType, subresource: str) -> str:
    if subresource == "status":
        return "spec"
    return "status" if types.has_status else ""


def _with_entries(obj: Object, entries: Entries) -> Object:
    bare, managed = _without_managed_fields(obj), encode_entries(entries)
    return {**bare, "metadata": {**bare["metadata"], "managedFields": managed}} if managed else bare


def _without_managed_fields(obj: Object) -> Object:
    metadata: dict[str, Any] = obj.get("metadata") or {}
    return {**obj, "metadata": {name: value for name, value in metadata.items() if name != "managedFields"}}


def _check_configuration(config: Object, root: Type) -> None:
    metadata = config.get("metadata") or {}
    if metadata.get("managedFields") is not None:
        refuse("metadata.managedFields must be nil")
    if problem := next(_find_bad_items(root, config, ""), ""):
        name = f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"
        described = f"{name}; {config.get('apiVersion')}, Kind={config.get('kind')}"
        refuse(f"failed to create typed patch object ({described}): {problem}")


def _find_bad_items(typed: Type, value: Any, path: str) -> Iterator[str]:
    if not typed.is_divided(value):
        return
    if isinstance(value, dict):
        for name, part in value.items():
            yield from _find_bad_items(typed.field_type(name), part, f"{path}.{name}")
        return
    seen: set[str] = set()
    for position, item in enumerate(value):
        try:
            step = item_step(typed, item)
        except KeylessItemError as problem:
            yield f"{path}: element {position}: {problem.message}"
            return
        if step in seen:
            yield f"{path}: duplicate entries for key {print_step(step)}"
        seen.add(step)
        yield from _find_bad_items(typed.item or typed, item, path + print_step(step))


def _drop_cleared(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _drop_cleared(part) for name, part in value.items() if part is not CLEARED}
    if isinstance(value, list):
        return [_drop_cleared(part) for part in value if part is not CLEARED]
    return value


def _merge_maps(typed: Type, live: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the live object with every value of the configuration; emptied values are CLEARED."""
    out = dict(live)
    for name, value in config.items():
        merged = _merge(typed.field_type(name), out.get(name, ABSENT), value)
        if merged is ABSENT:
            out.pop(name, None)
        else:
            out[name] = merged
    return out


def _merge(typed: Type, live: object, config: object) -> Any:
    if config is None or typed.is_empty(config):
        return _merge_empty(typed, live, config)
    if not typed.is_divided(config):
        return deepcopy(config) if isinstance(config, (dict, list)) else config
    match config:
        case dict():
            return _merge_maps(typed, live if isinstance(live, dict) else {}, config)
        case list():
            return _merge_lists(typed, live if isinstance(live, list) else [], config)


def _merge_empty(typed: Type, live: object, config: object) -> Any:
    """Return the result of null or an empty value: it clears an atomic value, and adds nothing to others."""
    if live and typed.shape is not FieldShape.LEAF and typed.is_divided(live):
        return live
    if not typed.native or (config is not None and typed.present):
        return config
    return live if config is None and (live is ABSENT or live is None) else CLEARED


def _merge_lists(typed: Type, live: list[Any], config: list[Any]) -> list[Any]:
    """Return the items of both lists.

    Shared items have the configuration's order. An item of the live list alone keeps its place before the next
    shared one; a new item follows its predecessor in the configuration.
    """
    mine = items_by_step(typed, live)
    items = items_by_step(typed, config)
    merged = {step: _merge(typed.item or typed, mine.get(step, ABSENT), item) for step, item in items.items()}
    return _arrange([(item_step(typed, item), item) for item in live], merged)


def _arrange(live: list[tuple[str, Any]], merged: Mapping[str, Any]) -> list[Any]:
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
            waiting.popleft()  # the configuration's order applies
            continue
        if waiting and (step not in pending or step == pending[0]):
            waiting.popleft()
        if pending:
            following = pending.popleft()
            out.append(merged[following])
            if shared and shared[0] == following:
                shared.popleft()
    return out


def _remove_abandoned(merged: Object, root: Type, *, before: FieldSet, owned: Iterable[FieldSet]) -> Object:
    """Return the merged object without fields that the applier owned ``before``, omits now, and no manager owns.

    ``owned`` are the present fields of all managers, including the applier's new ones.
    """
    claimed: FieldSet = reduce(union, owned)
    if not difference(before, claimed):
        return merged
    last = _with_parents(before, root)
    present = _with_parents(applied_fields(merged, root), root)
    dropped = _without_fields(root, merged, last)
    kept = union(_with_parents(applied_fields(dropped, root), root), _with_parents(claimed, root))
    dropped = _without_fields(root, merged, difference(present, kept))
    gone = difference(present, _with_parents(applied_fields(dropped, root), root))
    return _without_fields(root, merged, intersection(gone, last))


def _with_parents(fields: FieldSet, typed: Type) -> FieldSet:
    """Return a set with the parents of its paths: for a.b.c also a and a.b."""
    out: FieldSet = {}
    for step, node in fields.items():
        name = step[2:] if step.startswith("f:") else ""
        deeper = (
            _with_parents(node, typed.field_type(name) if name else (typed.item or typed)) if step != SELF else node
        )
        out[step] = with_self(deeper) if name in typed.fields else deeper
    return out


def _without_fields(typed: Type, value: Mapping[str, Any], node: FieldSet) -> dict[str, Any]:
    """Return an object without the values at these paths; emptied values are CLEARED."""
    rests = {
        name: _remaining_value(typed.field_type(name), part, node.get(f"f:{name}")) for name, part in value.items()
    }
    return {name: rest for name, rest in rests.items() if rest is not ABSENT}


def _remaining_value(typed: Type, value: Any, node: FieldSet | None) -> Any:
    """Return the rest of a value; a path into an atomic value removes the whole value."""
    if node is None:
        return value
    rest: Any = ABSENT
    if node and SELF not in node:
        rest = CLEARED if isinstance(value, (dict, list)) else value
        if typed.is_divided(value) and isinstance(value, dict):
            rest = _without_fields(typed, value, node) or CLEARED
        elif typed.is_divided(value):
            items = (_remaining_value(typed.item or typed, item, node.get(item_step(typed, item))) for item in value)
            rest = [item for item in items if item is not ABSENT and item is not CLEARED] or CLEARED
    gone = rest is ABSENT or rest is CLEARED
    return {} if gone and typed.present and typed.shape is FieldShape.MAP else rest
