"""The entries of ``metadata.managedFields``, and the conflicts between owners."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final, NamedTuple

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.errors import StatusError
from gpu_provision.sandbox.apiserver.fieldmanager.fieldset import FieldSet, intersection, paths

APPLY: Final = "Apply"
UPDATE: Final = "Update"


class Owner(NamedTuple):
    """The identity of an entry; an applier has one entry for all versions, so its ``version`` is empty."""

    manager: str
    operation: str
    version: str
    subresource: str

    @classmethod
    def create(cls, manager: str, operation: str, api_version: str, subresource: str) -> Owner:
        """Return the owner of a write."""
        return cls(manager or "unknown", operation, "" if operation == APPLY else api_version, subresource)

    def describe(self) -> str:
        """Return the owner's name in messages."""
        name = json.dumps(self.manager, ensure_ascii=False)
        name += f' with subresource "{self.subresource}"' if self.subresource else ""
        return f"{name} using {self.version}" if self.operation == UPDATE else name


@dataclass(frozen=True, slots=True)
class ManagedFieldsEntry:
    """The fields of one owner; ``time`` is empty for an entry that never changed the object."""

    owner: Owner
    api_version: str
    fields: FieldSet
    time: str

    def with_fields(self, fields: FieldSet) -> ManagedFieldsEntry:
        """Return the entry with other fields."""
        return self if fields is self.fields else replace(self, fields=fields)


Entries = dict[Owner, ManagedFieldsEntry]


def decode_entries(managed: Iterable[Object] | None) -> Entries:
    """Read the entries of an object; nothing if one of them is invalid, as in the server."""
    entries = [_decode(entry) for entry in managed or ()]
    return {entry.owner: entry for entry in entries if entry} if all(entries) else {}


def _decode(entry: Any) -> ManagedFieldsEntry | None:
    if not isinstance(entry, dict) or entry.get("fieldsType") != "FieldsV1" or not entry.get("apiVersion"):
        return None
    operation, version, fields = entry.get("operation", ""), entry["apiVersion"], entry.get("fieldsV1") or {}
    if operation not in {APPLY, UPDATE} or not isinstance(fields, dict):
        return None
    owner = Owner.create(entry.get("manager", ""), operation, version, entry.get("subresource", ""))
    return ManagedFieldsEntry(owner, version, fields, entry.get("time") or "")


def encode_entries(entries: Entries) -> list[Object]:
    """Write the entries in the server's order, without empty ones."""
    rows = [
        {
            "apiVersion": entry.api_version,
            "fieldsType": "FieldsV1",
            "fieldsV1": entry.fields,
            "manager": owner.manager,
            "operation": owner.operation,
            **({"subresource": owner.subresource} if owner.subresource else {}),
            **({"time": entry.time} if entry.time else {}),
        }
        for owner, entry in entries.items()
        if entry.fields
    ]
    keys = ("operation", "time", "manager", "apiVersion", "subresource")
    return sorted(rows, key=lambda row: [row.get(key, "") for key in keys])


class ApplyConflictError(StatusError):
    """A conflict of an apply without force with fields of other managers: 409."""

    def __init__(self, conflicts: Sequence[tuple[Owner, str]]) -> None:
        """``conflicts`` are owner and path of each conflicting field, sorted."""
        causes = [
            {"reason": "FieldManagerConflict", "message": f"conflict with {owner.describe()}", "field": path}
            for owner, path in conflicts
        ]
        super().__init__(409, "Conflict", _explain(conflicts), details={"causes": causes})
        self.conflicts = conflicts


def _explain(conflicts: Sequence[tuple[Owner, str]]) -> str:
    if len(conflicts) == 1:
        [(owner, path)] = conflicts
        return f"Apply failed with 1 conflict: conflict with {owner.describe()}: {path}"
    lines = []
    for owner, group in groupby(conflicts, key=lambda conflict: conflict[0]):
        lines += [f"conflicts with {owner.describe()}:", *(f"- {path}" for _, path in group)]
    return f"Apply failed with {len(conflicts)} conflicts: " + "\n".join(lines)


def check_conflicts(entries: Entries, written: FieldSet, *, applier: Owner) -> None:
    """Raise ApplyConflictError if another manager owns a written field."""
    others = (owner for owner in sorted(entries) if owner != applier)
    conflicts = [(owner, path) for owner in others for path in paths(intersection(entries[owner].fields, written))]
    if conflicts:
        raise ApplyConflictError(conflicts)
