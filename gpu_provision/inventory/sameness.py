"""Whether two runs on record declared the same, whatever their inventories' texts. Pure.

A resource has the part of an inventory that is about the cluster, with the API server's defaults: beside one, hosts are
not compared.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from gpu_provision.inventory.again import as_then
from gpu_provision.inventory.parse import parse
from gpu_provision.inventory.scope import part_of_cluster
from gpu_provision.inventory.source import Source, Unreadable
from gpu_provision.model.history import Record
from gpu_provision.model.inventory import Inventory

_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # C is ten times faster; not every wheel has it


def declare_the_same(one: Record, other: Record, now: Inventory) -> bool:
    """Whether two runs declared the same; what cannot be read today is the same as its own text alone.

    Args:
        now: The inventory as it is now; it has the secrets, which no record has.
    """
    if one.text == other.text:
        return True
    of_cluster = one.is_of_resource or other.is_of_resource
    first, second = (_meaning(each, now, of_cluster=of_cluster) for each in (one, other))
    return first is not None and first == second


def _meaning(record: Record, now: Inventory, *, of_cluster: bool) -> Inventory | None:
    name = f"run {record.number}"
    try:
        text = _of_cluster(record.text, name) if of_cluster else record.text
    except Unreadable:
        return None
    found = as_then(text, now, name=name)
    return replace(found, text="", digest="") if found else None


def _of_cluster(text: str, name: str) -> str:
    source = Source(name=name, path=Path(name), text=text, digest="")
    data = parse(source)[0].data
    kept, _ = part_of_cluster(data)
    whole = {"name": data.get("name", ""), "cluster": {}, **kept}
    return str(yaml.dump(whole, Dumper=_DUMPER, sort_keys=False, allow_unicode=True))
