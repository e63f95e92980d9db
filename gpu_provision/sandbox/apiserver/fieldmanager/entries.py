"""The entries of ``metadata.managedFields``, and the annotation of client-side ``kubectl apply``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from gpu_provision.sandbox.apiserver.fieldmanager.compare import compare, fields_of
from gpu_provision.sandbox.apiserver.fieldmanager.fields import FieldSet, difference, union
from gpu_provision.sandbox.apiserver.fieldmanager.schema import Object, Type

ANNOTATION: Final = "kubectl.kubernetes.io/last-applied-configuration"
_KUBECTL: Final = "kubectl"


def is_allowed(live: Object, root: Type, manager: str) -> FieldSet:
    """Return the fields that kubectl may take without a conflict: it set them by client-side apply before."""
    text = _annotations(live).get(ANNOTATION)
    if manager != _KUBECTL or not text:
        return {}
    try:
        config = json.loads(text)
    except ValueError:
        return {}
    if not isinstance(config, dict) or config.get("apiVersion") != live.get("apiVersion"):
        return {}
    changes = compare(config, live, root)
    return difference(difference(fields_of(config, root), changes.written), changes.removed)


def synced(obj: Object, config: Object, manager: str) -> Object:
    """Return the object with the annotation brought up to date, if kubectl applies and there is one."""
    if manager != _KUBECTL or not _annotations(obj).get(ANNOTATION):
        return obj
    annotations = {**_annotations(obj), ANNOTATION: _text(config)}
    return {**obj, "metadata": {**obj["metadata"], "annotations": annotations}}


def _text(config: Object) -> str:
    annotations = {name: value for name, value in _annotations(config).items() if name != ANNOTATION}
    metadata = {name: value for name, value in config["metadata"].items() if name != "annotations"}
    metadata |= {"annotations": annotations} if annotations else {}
    return json.dumps({**config, "metadata": metadata}, separators=(",", ":"), sort_keys=True) + "\n"


def _annotations(obj: Object) -> dict[str, Any]:
    found: dict[str, Any] = (obj.get("metadata") or {}).get("annotations") or {}
    return found


APPLY: Final = "Apply"
UPDATE: Final = "Update"
MAX_UPDATERS: Final = 10
"""How many Update entries an object keeps before the oldest are put together, as in the server."""
_OLD_UPDATERS: Final = "ancient-changes"


class Owner(NamedTuple):
    """What tells entries apart; an applier has one for all versions, so its ``version`` is empty."""

    manager: str
    operation: str
    version: str
    subresource: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One manager's fields; ``time`` is empty for an entry that never changed the object."""

    owner: Owner
    api_version: str
    fields: FieldSet
    time: str

    @property
    def applied(self) -> bool:
        """Whether the fields were applied, not written."""
        return self.owner.operation == APPLY

    def with_fields(self, fields: FieldSet) -> Entry:
        """Return the entry with other fields."""
        return self if fields is self.fields else replace(self, fields=fields)


Entries = dict[Owner, Entry]


def owner(manager: str, operation: str, api_version: str, subresource: str) -> Owner:
    """Return the identity of an entry."""
    return Owner(manager or "unknown", operation, "" if operation == APPLY else api_version, subresource)


def decoded(managed: Iterable[Object] | None) -> Entries:
    """Read the entries of an object; nothing if one of them is not understood, as in the server."""
    entries = [_decoded(entry) for entry in managed or ()]
    valid = [entry for entry in entries if entry is not None]
    return {entry.owner: entry for entry in valid} if len(valid) == len(entries) else {}


def _decoded(entry: Any) -> Entry | None:
    if not isinstance(entry, dict) or entry.get("fieldsType") != "FieldsV1" or not entry.get("apiVersion"):
        return None
    operation, version, fields = entry.get("operation", ""), entry["apiVersion"], entry.get("fieldsV1") or {}
    if operation not in {APPLY, UPDATE} or not isinstance(fields, dict):
        return None
    identity = owner(entry.get("manager", ""), operation, version, entry.get("subresource", ""))
    return Entry(identity, version, fields, entry.get("time") or "")


def encoded(entries: Entries) -> list[Object]:
    """Write the entries in the server's order; empty ones vanish."""
    return [_encoded(entry) for entry in sorted(entries.values(), key=_order) if entry.fields]


def _order(entry: Entry) -> tuple[str, ...]:
    return entry.owner.operation, entry.time, entry.owner.manager, entry.api_version, entry.owner.subresource


def _encoded(entry: Entry) -> Object:
    out: Object = {
        "apiVersion": entry.api_version,
        "fieldsType": "FieldsV1",
        "fieldsV1": entry.fields,
        "manager": entry.owner.manager,
        "operation": entry.owner.operation,
    }
    if entry.owner.subresource:
        out["subresource"] = entry.owner.subresource
    if entry.time:
        out["time"] = entry.time
    return out


def capped(entries: Entries) -> Entries:
    """Put the oldest Update entries of a version together until there are no more than MAX_UPDATERS."""
    updaters = sorted((entry for entry in entries.values() if not entry.applied), key=_age)
    surplus = len(updaters) - MAX_UPDATERS
    if surplus <= 0:
        return entries
    out = dict(entries)
    first: dict[str, Entry] = {}
    for entry in updaters:
        if surplus <= 0:
            break
        if entry.api_version not in first:
            first[entry.api_version] = entry
            continue
        _put_together(out, first[entry.api_version], entry)
        surplus -= 1
    return out


def _age(entry: Entry) -> tuple[str, ...]:
    return entry.time, *entry.owner


def _put_together(entries: Entries, first: Entry, entry: Entry) -> None:
    bucket = owner(_OLD_UPDATERS, UPDATE, entry.api_version, "")
    older = entries.pop(bucket, None) or entries.pop(first.owner)
    del entries[entry.owner]
    entries[bucket] = Entry(bucket, entry.api_version, union(older.fields, entry.fields), entry.time)
