"""Server-side apply, and the bookkeeping of every other write: who owns which field of an object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from gpu_provision.sandbox.apiserver.fieldmanager.compare import Comparison, compare, fields_of
from gpu_provision.sandbox.apiserver.fieldmanager.entries import (
    APPLY,
    UPDATE,
    Entries,
    Entry,
    Owner,
    capped,
    decoded,
    encoded,
    is_allowed,
    owner,
    synced,
)
from gpu_provision.sandbox.apiserver.fieldmanager.fields import FieldSet, KeylessItem, difference, union
from gpu_provision.sandbox.apiserver.fieldmanager.merge import merge, prune, settled
from gpu_provision.sandbox.apiserver.fieldmanager.schema import ListTypes, Object, types_of
from gpu_provision.sandbox.apiserver.fieldmanager.validate import ApplyConflict, check, conflicts, refuse

BEFORE_FIRST_APPLY: Final = "before-first-apply"
"""Owns what an object had when nobody's ownership was known yet."""
_SERVER_METADATA: Final = (
    "creationTimestamp",
    "generation",
    "managedFields",
    "resourceVersion",
    "selfLink",
    "uid",
)
_UNOWNED: Final[FieldSet] = {
    "f:apiVersion": {},
    "f:kind": {},
    "f:metadata": {
        ".": {},
        **{f"f:{name}": {} for name in (*_SERVER_METADATA, "name", "namespace", "clusterName")},
    },
}


def applied(  # noqa: PLR0913 - the parameters of an apply request
    live: Object | None,
    config: Object,
    *,
    manager: str,
    force: bool,
    now: str,
    subresource: str = "",
    schema: ListTypes | None = None,
) -> Object:
    """Apply a configuration to an object.

    Args:
        live: The stored object, or None if there is none yet.
        config: What the manager wants; its ``metadata.name`` is filled in.
        manager: The field manager.
        force: Whether to take fields from other managers.
        now: The time, as ``2026-01-02T03:04:05Z``.
        subresource: The subresource that the request went to; ``status`` writes all but ``spec``.
        schema: The type of a custom resource; built-in kinds are known.

    Returns:
        A new object with its managedFields, which shares unchanged parts with ``live``; equal to ``live`` if
        there was nothing to change. Defaults and the metadata that the server makes are the caller's to add.

    Raises:
        ApplyConflict: another manager owns a field that would change, and ``force`` is off.
        InvalidConfig: the configuration does not fit its type, or carries managedFields. A ValueError.
    """
    types = types_of(config, schema)
    check(config, types.root)
    wanted = _writable(config, types, subresource)
    base = live or {}
    entries = _known(base, types, wanted["apiVersion"], now=now, subresource=subresource)
    applier = owner(manager, APPLY, "", subresource)
    return _Apply(base, wanted, types, entries, applier, now).run(force=force)


@dataclass(frozen=True, slots=True)
class _Apply:
    """One apply: its inputs, and the steps that use most of them."""

    live: Object
    config: Object
    types: ListTypes
    entries: Entries
    applier: Owner
    now: str

    def run(self, *, force: bool) -> Object:
        claimed = fields_of(self.config, self.types.root)
        merged = self.merged(claimed)
        ignored = _ignored(self.types, self.applier.subresource)
        changes = compare(self.live, merged, self.types.root, ignored=ignored)
        if not force:
            self.refuse(changes)
        merged = settled(merged)
        changed = _unmanaged(self.live) != _unmanaged(merged)
        merged = synced(merged, self.config, self.applier.manager)
        return _managed(merged, self.owners(claimed, changes, changed=changed))

    def merged(self, claimed: FieldSet) -> Object:
        merged = merge(self.live, self.config, self.types.root)
        previous = self.entries.get(self.applier)
        if previous is None:
            return merged
        owned = [entry.fields for who, entry in self.entries.items() if who != self.applier]
        return prune(merged, self.types.root, before=previous.fields, owned=[*owned, claimed, _UNOWNED])

    def refuse(self, changes: Comparison) -> None:
        found = conflicts(self.entries, changes.written, applier=self.applier)
        try:
            refuse(found)
        except ApplyConflict:
            allowed = is_allowed(self.live, self.types.root, self.applier.manager)
            refuse((who, difference(fields, allowed)) for who, fields in found)

    def owners(self, claimed: FieldSet, changes: Comparison, *, changed: bool) -> Entries:
        previous = self.entries.get(self.applier)
        mine = difference(claimed, _UNOWNED)
        if previous is not None and previous.fields == mine:
            mine = previous.fields
        time = self.now if changed else previous.time if previous is not None else ""
        others = _losing(self.entries, changes, but=self.applier)
        return {**others, self.applier: Entry(self.applier, self.config["apiVersion"], mine, time)}


def updated(  # noqa: PLR0913 - the parameters of a write request
    old: Object | None,
    new: Object,
    *,
    manager: str,
    now: str,
    subresource: str = "",
    schema: ListTypes | None = None,
) -> Object:
    """Record who owns what after a create, update or patch.

    Args:
        old: The stored object, or None on create.
        new: The object that will be stored, defaults included. Its managedFields count if the request brought
            some; an empty list forgets every owner.
        manager: The field manager.
        now: The time, as ``2026-01-02T03:04:05Z``.
        subresource: The subresource that the request went to; ``status`` writes all but ``spec``.
        schema: The type of a custom resource; built-in kinds are known.

    Returns:
        ``new`` with its managedFields, sharing everything else with it; ``new`` is not changed.
    """
    types = types_of(new, schema)
    entries = _brought(old, new, subresource)
    if not entries and old and (old.get("metadata") or {}).get("uid"):
        return _managed(new, {})  # nobody's fields were tracked so far: the next apply starts it
    try:
        changes = compare(old or {}, new, types.root, ignored=_ignored(types, subresource))
    except KeylessItem:
        return _managed(new, entries)  # as the server: bookkeeping never fails a write that was accepted
    if not changes.written and not changes.removed:
        return _managed(new, entries)
    return _managed(new, _recorded(entries, changes, owner(manager, UPDATE, new["apiVersion"], subresource), now))


def same_but_for_times(left: Object, right: Object) -> bool:
    """Tell whether two objects differ in nothing but the times of their managedFields: not worth a write."""
    return _unmanaged(left) == _unmanaged(right) and _timeless(left) == _timeless(right)


def _recorded(entries: Entries, changes: Comparison, updater: Owner, now: str) -> Entries:
    out = _losing(entries, changes)
    written = difference(changes.written, _UNOWNED)
    if written:
        previous = out.get(updater)
        fields = union(previous.fields, written) if previous else written
        out[updater] = Entry(updater, updater.version, fields, now)
    return capped(out)


def _losing(entries: Entries, changes: Comparison, *, but: Owner | None = None) -> Entries:
    """Return the entries without the fields that changed hands or are gone."""
    return {
        who: entry
        if who == but
        else entry.with_fields(difference(difference(entry.fields, changes.written), changes.removed))
        for who, entry in entries.items()
    }


def _known(live: Object, types: ListTypes, version: str, *, now: str, subresource: str) -> Entries:
    """Return the owners of an object; where nobody is known, what it has belongs to an owner of that name."""
    entries = decoded((live.get("metadata") or {}).get("managedFields"))
    if entries or not live:
        return entries
    written = compare({}, live, types.root, ignored=_ignored(types, subresource)).written
    updater = owner(BEFORE_FIRST_APPLY, UPDATE, version, subresource)
    return {updater: Entry(updater, version, difference(written, _UNOWNED), now)}


def _brought(old: Object | None, new: Object, subresource: str) -> Entries:
    """Return the owners that an update starts from: those of the request if it brings any."""
    stored = ((old or {}).get("metadata") or {}).get("managedFields")
    requested = (new.get("metadata") or {}).get("managedFields")
    if subresource or requested is None or requested is stored:
        return decoded(stored)
    if requested in ([], [{}]):
        return {}
    return decoded(requested) or decoded(stored)


def _writable(config: Object, types: ListTypes, subresource: str) -> Object:
    """Return the configuration without what the request cannot write."""
    ignored = _ignored(types, subresource)
    metadata = config.get("metadata") or {}
    kept = {name: value for name, value in metadata.items() if name not in _SERVER_METADATA}
    return {name: value for name, value in config.items() if name != ignored} | {"metadata": kept}


def _ignored(types: ListTypes, subresource: str) -> str:
    if subresource == "status":
        return "spec"
    return "status" if types.has_status else ""


def _managed(obj: Object, entries: Entries) -> Object:
    metadata = {name: value for name, value in (obj.get("metadata") or {}).items() if name != "managedFields"}
    managed = encoded(entries)
    return {**obj, "metadata": {**metadata, "managedFields": managed} if managed else metadata}


def _unmanaged(obj: Object) -> Object:
    metadata: dict[str, Any] = obj.get("metadata") or {}
    return {**obj, "metadata": {name: value for name, value in metadata.items() if name != "managedFields"}}


def _timeless(obj: Object) -> list[Object]:
    managed = (obj.get("metadata") or {}).get("managedFields") or []
    return [{name: value for name, value in entry.items() if name != "time"} for entry in managed]
