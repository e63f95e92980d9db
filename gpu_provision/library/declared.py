"""What an inventory says by itself. No cluster is asked."""

from __future__ import annotations

from gpu_provision.model.cluster import ClusterFacts, Manifest
from gpu_provision.model.history import Record
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import Change
from gpu_provision.planning.prepare import prepare


def render(inventory: Inventory) -> dict[str, list[Manifest]]:
    """Return every component's manifests, from the inventory alone; nothing is asked of any cluster."""
    _, desired = prepare(inventory, ClusterFacts())
    return {component: list(manifests) for component, manifests in desired.items()}


def meaning(before: Record, after: Record | Inventory, inventory: Inventory) -> tuple[Change, ...] | None:
    """Return what changes for objects from the inventory of one run to another, or to an inventory.

    None if one of them cannot be used today. Nothing is asked of any cluster.

    Args:
        inventory: As it is now; it has the secrets, which no record has.
    """
    from gpu_provision.inventory.again import as_then
    from gpu_provision.planning.between import between

    old = as_then(before.text, inventory, name=f"run {before.number}")
    new = as_then(after.text, inventory, name=f"run {after.number}") if isinstance(after, Record) else after
    return between(render(old), render(new)) if old and new else None
