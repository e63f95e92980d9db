"""Nodes and pools: names, addresses, and what belongs to what."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from typing import Any

from gpu_provision.inventory import hardware
from gpu_provision.inventory.checks.subject import Subject
from gpu_provision.inventory.document import Path
from gpu_provision.inventory.nearest import did_you_mean
from gpu_provision.inventory.problems import Problem
from gpu_provision.model.inventory import Node

_OURS = "gpu-provision.io/"


def check_nodes(subject: Subject) -> Iterator[Problem]:
    """Yield what is wrong with nodes and pools."""
    yield from _duplicate_names(subject)
    yield from _shared_addresses(subject)
    yield from _unknown_pools(subject)
    yield from _empty_pools(subject)
    yield from _gpus(subject)
    yield from _reserved_labels(subject)


def _duplicate_names(subject: Subject) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for position, node in enumerate(subject.nodes):
        name = node.get("name")
        if name is None:
            continue
        if name in first:
            line = subject.document.line(("nodes", first[name], "name"))
            what = f"The node {name} is listed twice, first in line {line}."
            yield subject.error("GP140", ("nodes", position, "name"), what, "Remove or rename one of them.")
        first.setdefault(name, position)


def _shared_addresses(subject: Subject) -> Iterator[Problem]:
    """Yield nodes that would be reached at the same place; sandbox hosts have no addresses."""
    if subject.inventory.cluster.sandbox:
        return
    first: dict[tuple[str, int, str], str] = {}
    positions = [position for position, node in enumerate(subject.nodes) if "name" in node]
    for position, node in zip(positions, subject.inventory.nodes, strict=True):
        place = _place(node)
        other = first.setdefault(place, node.name)
        if other != node.name:
            what = f"{node.name} and {other} have the same address and port."
            path = subject.declared(("nodes", position, "address"), ("nodes", position, "name"))
            fix = f"Correct the address of one of them, or its ssh.port (now {place[1]})."
            yield subject.error("GP141", path, what, fix)


def _place(node: Node) -> tuple[str, int, str]:
    return (node.address or node.name, node.ssh.port or 22, node.ssh.bastion)


def _unknown_pools(subject: Subject) -> Iterator[Problem]:
    written = subject.document.data.get("pools")
    known = written if isinstance(written, dict) else {}
    for position, node in enumerate(subject.nodes):
        pool = node.get("pool")
        if pool is None or pool in known:
            continue
        fix = partial(_pool_meant, pool, known)
        yield subject.error("GP142", ("nodes", position, "pool"), f"There is no pool {pool}.", fix)


def _pool_meant(pool: str, known: Collection[str]) -> str:
    otherwise = f"Known pools: {', '.join(known)}" if known else f"Declare it: pools: {{{pool}: {{}}}}"
    return did_you_mean(pool, known, otherwise)


def _empty_pools(subject: Subject) -> Iterator[Problem]:
    if not subject.complete:
        return
    used = {node.get("pool") for node in subject.nodes}
    for name, pool in subject.pools.items():
        if name not in used and not pool.get("node_selector"):
            what = f"No node belongs to the pool {name}."
            fix = "Give it nodes under `nodes`, or a node_selector, or remove it."
            yield subject.warning("GP143", ("pools", name), what, fix)
    with_gpu = {name for name, pool in subject.pools.items() if "gpu" in pool}
    if not with_gpu & (used | {name for name, pool in subject.pools.items() if pool.get("node_selector")}):
        what = "No node has a GPU, so there is nothing to provision."
        fix = "Declare a pool with gpu: {model: T4, count: 1}, and nodes that belong to it."
        yield subject.warning("GP144", subject.declared(("pools",), ("nodes",), ()), what, fix)


def _gpus(subject: Subject) -> Iterator[Problem]:
    for name, pool in subject.pools.items():
        gpu, path = pool.get("gpu", {}), ("pools", name, "gpu")
        if "gpu" not in pool and "driver" in pool and subject.complete:
            what = f"The pool {name} has no gpu, so its driver settings have no effect."
            yield subject.warning("GP145", ("pools", name, "driver"), what, "Declare its gpu, or remove driver.")
        model = hardware.find(gpu["model"]) if "model" in gpu else None
        if "model" in gpu and model is None:
            what = f"The GPU model {gpu['model']} is not known, so nothing about it can be checked."
            yield subject.warning("GP150", (*path, "model"), what, partial(_model_meant, gpu["model"]))
        if "count" in gpu:
            yield from _count(subject, (*path, "count"), gpu["count"], model)


def _model_meant(name: str) -> str:
    close = hardware.nearest_model(name)
    return f"Did you mean {close}?" if close else "Write it as `nvidia-smi -L` does."


def _count(subject: Subject, path: tuple[str, ...], count: int, model: hardware.Model | None) -> Iterator[Problem]:
    board = model.board if model else hardware.Board.PCIE
    plausible = hardware.COUNTS[board]
    if count in plausible:
        return
    near = min(plausible, key=lambda each: (abs(each - count), -each))
    what = f"{count} GPUs in one node are implausible{f' for {model.name} ({board})' if model else ''}."
    fix = f"Write how many GPUs `nvidia-smi -L` lists on one node, such as {near}."
    yield subject.warning("GP151", path, what, fix)


def _reserved_labels(subject: Subject) -> Iterator[Problem]:
    holders: list[tuple[Path, dict[str, Any]]] = [(("pools", name), pool) for name, pool in subject.pools.items()]
    holders += [(("nodes", position), node) for position, node in enumerate(subject.nodes)]
    for path, holder in holders:
        for key in holder.get("labels", {}):
            if key.startswith(_OURS):
                what = f"The label {key} is set by this tool; a value here is overwritten."
                yield subject.warning("GP164", (*path, "labels", key), what, "Remove it.")
