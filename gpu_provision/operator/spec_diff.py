"""Whether two stacks declare the same, and what one has that the other does not say. Pure.

Texts may differ where meanings do not: an API server writes defaults, a file has an order of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from gpu_provision.model.cluster import Manifest
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import FieldChange
from gpu_provision.operator.crd import Schema, spec_schema
from gpu_provision.operator.stack import inventory_of
from gpu_provision.planning.diff import FIELD_MANAGER, changes_between


def say_the_same(one: Manifest, other: Manifest) -> bool:
    """Whether two stacks declare the same; what the loader refuses is the same as nothing."""
    meaning = _meaning(one)
    return meaning is not None and meaning == _meaning(other)


def _meaning(stack: Manifest) -> Inventory | None:
    inventory, _ = inventory_of(stack)
    return replace(inventory, text="", digest="") if inventory else None


def unsaid(live: Manifest, wanted: Manifest) -> tuple[FieldChange, ...]:
    """Return the fields of a stack's spec that another one does not say, and that are no defaults of the server's."""
    defaults = dict(_defaults(spec_schema(), "spec"))
    changes = changes_between({"spec": live.get("spec") or {}}, {"spec": wanted.get("spec") or {}})
    gone = (change for change in changes if change.new is None and change.old is not None)
    return tuple(change for change in gone if change.old != defaults.get(change.path))


def _defaults(schema: Schema, path: str) -> Iterator[tuple[str, Any]]:
    if "default" in schema:
        yield path, schema["default"]
    for key, part in schema.get("properties", {}).items():
        yield from _defaults(part, f"{path}.{key}")


def without_unsaid(live: Any, wanted: Any) -> Any:
    """Return the merge patch that takes away of a value what another one does not say.

    Lists are as wanted then, as a merge patch knows no items. Defaults come back by themselves.
    """
    if not (isinstance(live, Mapping) and isinstance(wanted, Mapping)):
        return wanted
    below = ((key, value) for key, value in live.items() if isinstance(value, Mapping | list) and key in wanted)
    changed = {key: without_unsaid(value, wanted[key]) for key, value in below if value != wanted[key]}
    return {key: None for key in live if key not in wanted} | {key: value for key, value in changed.items() if value}


def other_managers(live: Manifest) -> tuple[str, ...]:
    """Return who else than us has set fields of a stack's spec."""
    entries = live["metadata"].get("managedFields") or ()
    found = (entry["manager"] for entry in entries if "f:spec" in (entry.get("fieldsV1") or {}))
    return tuple(sorted({*found} - {FIELD_MANAGER}))
