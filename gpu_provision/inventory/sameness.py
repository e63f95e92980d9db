"""Whether two runs on record declared the same for the cluster, whatever their inventories' texts. Pure.

Hosts are not compared: no rollback changes them.
"""

from __future__ import annotations

from dataclasses import replace

from gpu_provision.inventory.again import as_then
from gpu_provision.model.history import Record
from gpu_provision.model.inventory import Inventory


def declare_the_same(one: Record, other: Record, now: Inventory) -> bool:
    """Whether two runs declared the same; what cannot be read today is the same as its own text alone.

    Args:
        now: The inventory as it is now; it has the secrets, which no record has.
    """
    if one.text == other.text:
        return True
    first, second = (_meaning(each, now) for each in (one, other))
    return first is not None and first == second


def _meaning(record: Record, now: Inventory) -> Inventory | None:
    found = as_then(record.text, now, name=f"run {record.number}")
    return replace(found, text="", digest="") if found else None
