"""Fields that an apply would change although another manager owns them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple

from gpu_provision.sandbox.apiserver.fieldmanager.entries import UPDATE, Entries, Owner
from gpu_provision.sandbox.apiserver.fieldmanager.fieldset import FieldSet, intersection, paths
from gpu_provision.sandbox.apiserver.fieldmanager.schema import Object


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
