"""An inventory of an earlier time, on the machines of today.

What nodes run comes from then; which nodes there are, how they are reached, and which cluster it is, from now. As
with ``kubectl rollout undo``, which brings back a pod template and leaves the number of replicas.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from gpu_provision.inventory.examine import examined
from gpu_provision.inventory.hiding import restored
from gpu_provision.inventory.parse import parse
from gpu_provision.inventory.scope import with_hosts_of
from gpu_provision.inventory.source import Source, Unreadable
from gpu_provision.inventory.values import without_foreign
from gpu_provision.model.findings import Finding
from gpu_provision.model.inventory import Inventory

Data = dict[str, Any]

_ACCESS = ("address", "ssh", "connect")  # of a node
_PREPARED = ("host_prerequisites",)  # of a node
_OF_NOW = ("cluster", "ssh", "connect", "helper_pod", "history")  # of the inventory


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """What came of an inventory on record.

    Attributes:
        inventory: None if it cannot be used.
        missing: Paths of secrets that are neither on record nor in the inventory of now.
        joined: Names of nodes that were not there then; they are as the inventory of now has them.
        left: Names of nodes that are no longer there.
        findings: What the loader says.
    """

    inventory: Inventory | None
    missing: tuple[str, ...] = ()
    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()


def again(text: str, now: Inventory, *, name: str, of_cluster: bool = False) -> Again:
    """Return an inventory of an earlier time on the machines of now.

    Args:
        text: As on record.
        name: What findings call it, such as ``run 3``.
        of_cluster: Whether the text says nothing of hosts: those are as now.

    Raises:
        Unreadable: The text is no inventory.
    """
    then = _data(name, text)
    with_secrets, missing = restored(text, now.text)
    if missing:
        return Again(inventory=None, missing=missing)
    current = _data(now.path, now.text) if now.text else then
    then = _data(name, with_secrets)
    wanted = _on_machines_of(with_hosts_of(then, current) if of_cluster else then, current, of_cluster=of_cluster)
    told = with_secrets if wanted == then else yaml.safe_dump(wanted, sort_keys=False, allow_unicode=True)
    source = Source(
        name=name, path=_path(now), text=told, digest=hashlib.sha256(told.encode()).hexdigest(), is_local=bool(now.path)
    )
    inventory, findings = examined(source)
    return Again(
        inventory=_aimed(inventory, now) if inventory else None,
        joined=_names(current, without=then),
        left=_names(then, without=current),
        findings=findings.all,
    )


def as_then(text: str, now: Inventory, *, name: str) -> Inventory | None:
    """Return an inventory of an earlier time as it was, to compare; None if it cannot be used today.

    A record may have no file of this machine read that the inventory of now does not read itself.
    """
    try:
        _data(name, text)
        told = restored(text, now.text)[0]
        data = _data(name, told)
        safe = without_foreign(data, _data(now.path, now.text) if now.text else {})
        told = told if safe is data else yaml.safe_dump(safe, sort_keys=False, allow_unicode=True)
        return examined(Source(name=name, path=_path(now), text=told, digest="", is_local=bool(now.path)))[0]
    except Unreadable:
        return None


def _path(now: Inventory) -> Path:
    return Path(now.path) if now.path else Path.cwd() / now.name


def _data(name: str, text: str) -> Data:
    source = Source(name=name, path=Path(name), text=text, digest="")
    return parse(source)[0].data


def _aimed(inventory: Inventory, now: Inventory) -> Inventory:
    """The cluster is the one that we have just asked, whatever options named it."""
    return replace(inventory, cluster=now.cluster, path=now.path)


def _names(data: Data, *, without: Data) -> tuple[str, ...]:
    others = _nodes(without)
    return tuple(node for node in _nodes(data) if node not in others)


def _nodes(data: Data) -> dict[str, Data]:
    """Return the nodes by name; what is none is told when the inventory is read as a whole."""
    found = [node for node in data.get("nodes") or () if isinstance(node, dict)]
    return {node["name"]: node for node in found if node.get("name")}


def _on_machines_of(then: Data, now: Data, *, of_cluster: bool) -> Data:
    """Return what was declared then, with the machines of now; the same as then if they are the same."""
    known = _nodes(then)
    ours = (*_ACCESS, *_PREPARED) if of_cluster else _ACCESS
    nodes = [_reached(known.get(name, node), node, ours) for name, node in _nodes(now).items()]
    used = {node.get("pool") for node in nodes}
    pools = _mapping(now, "pools") | _mapping(then, "pools")
    kept = {key: pool for key, pool in pools.items() if key in used or _selects(pool)}
    wanted = {**then, **_section("pools", kept), **_section("nodes", nodes)}
    for key in _OF_NOW:
        wanted.pop(key, None)
        wanted |= {key: now[key]} if key in now else {}
    return wanted


def _mapping(data: Data, key: str) -> Data:
    found = data.get(key)
    return found if isinstance(found, dict) else {}


def _section(key: str, value: Any) -> Data:
    return {key: value} if value else {}


def _selects(pool: Data) -> bool:
    return bool(_mapping({"pool": pool}, "pool").get("node_selector"))


def _reached(then: Data, now: Data, keys: Sequence[str]) -> Data:
    """Return a node as it was, with keys as they are now."""
    settings = {key: value for key, value in then.items() if key not in keys}
    return settings | {key: now[key] for key in keys if key in now}
