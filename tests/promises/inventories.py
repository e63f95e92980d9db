"""Chains of random inventories for one fleet: each is the one before with a few edits.

An edit is what a user types: a setting, a pool's own setting, a node that comes, goes or moves to another pool. Every
inventory that comes out can be made true on `FLEET`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from tests import data_file

Document = dict[str, Any]

OPERANDS = "gpu-operator-resources"

_TABLES: Document = data_file.document(Path(__file__).with_suffix(".yaml").read_text())
FLEET, FIRST, GIVEN = _TABLES["fleet"], _TABLES["first"], _TABLES["given"]
_SETTINGS: Mapping[str, Any] = {key: tuple(values) for key, values in _TABLES["settings"].items()}
_OF_HOSTS: Mapping[str, Any] = {key: tuple(values) for key, values in _TABLES["settings_of_hosts"].items()}

_POOLS = ("t4", "other", "own")
_MOVING = ("t4-1", "t4-2", "spare-1", "late-1")
_HOSTS_EVERY = 3


class Step(NamedTuple):
    """One inventory of a chain, and whether hosts take part in what is done with it."""

    inventory: Document
    hosts: bool


def chain(seed: int, length: int) -> Iterator[Step]:
    """Yield a number of inventories, each an edit of the one before; equal seeds give equal chains.

    Settings of hosts, and a machine of which only its host tells that it has a driver, change in every third one.
    """
    random, document = Random(seed), copy.deepcopy(FIRST)  # noqa: S311 - inventories, no secrets
    for number in range(length):
        hosts = number % _HOSTS_EVERY == 0
        for _ in range(random.randint(1, 4)):
            _edit(document, random, hosts=hosts)
        yield Step(copy.deepcopy(document), hosts)


def _edit(document: Document, random: Random, *, hosts: bool) -> None:
    before = copy.deepcopy(document)
    while document == before:
        match random.randint(1, 4):
            case 1:
                _move(document, random, (*_MOVING, "own-1") if hosts else _MOVING)
            case 2 if hosts:
                _set(document, random, _OF_HOSTS)
            case _:
                _set(document, random, _SETTINGS)


def _set(document: Document, random: Random, settings: Mapping[str, tuple[Any, ...]]) -> None:
    path = random.choice(tuple(settings))
    *above, last = path.split(".")
    place = document
    for key in above:
        place = place.setdefault(key, {})
    value = random.choice(settings[path])
    if value is None:  # the setting goes
        place.pop(last, None)
    else:
        place[last] = copy.deepcopy(value)


def _move(document: Document, random: Random, names: tuple[str, ...]) -> None:
    """Let a node come, go, move to another pool, or have another label."""
    name = random.choice(names)
    others = [node for node in document["nodes"] if node["name"] != name]
    pool = "own" if name == "own-1" else random.choice(_POOLS)
    node = {"name": name, "pool": pool, **random.choice(({}, {}, {"labels": {"example.com/slot": "1"}}))}
    is_away = random.random() < 1 / 3 and name != "t4-1"
    document["nodes"] = sorted(others if is_away else [*others, node], key=lambda each: str(each["name"]))


def edits(before: Document, after: Document) -> Iterator[str]:
    old, new = dict(_flat(before)), dict(_flat(after))
    yield from (
        f"{key}: {old.get(key)} -> {new.get(key)}" for key in sorted({*old, *new}) if old.get(key) != new.get(key)
    )


def _flat(document: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if path == "nodes":
        yield from ((f"node {node['name']}", node) for node in document)
    elif isinstance(document, dict):
        for key, value in document.items():
            yield from _flat(value, f"{path}.{key}".lstrip("."))
    else:
        yield path, document
