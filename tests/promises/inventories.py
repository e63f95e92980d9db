"""Chains of random inventories for one fleet: each is the one before with a few edits.

An edit is what a user types: a setting, a pool's own setting, a node that comes, goes or moves to another pool. Every
inventory that comes out can be made true on `FLEET`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any, NamedTuple

Document = dict[str, Any]

OPERANDS = "gpu-operator-resources"
OWN_DRIVER = "550.90.07"

_T4 = {"model": "Tesla T4", "count": 1}
FLEET: dict[str, Any] = {
    "nodes": [
        {"name": "control-1", "roles": ["control-plane"]},
        {"name": "t4-1", "gpu": _T4},
        {"name": "t4-2", "gpu": _T4},
        {"name": "spare-1", "gpu": _T4, "labels": {"fleet": "spare"}},
        {"name": "late-1", "gpu": _T4, "taints": [{"key": "gpu-provision.io/not-validated", "effect": "NoSchedule"}]},
        {"name": "own-1", "gpu": _T4, "host": {"driver": OWN_DRIVER}},
    ],
    "timings": {"speed": 100},
}
"""A machine per way of being different: selected by a label, tainted at its start, its own driver."""

_GPU = {"os": "ubuntu22.04", "gpu": {"model": "T4", "count": 1}}
FIRST: Document = {
    "release": "26.7.0",
    "pools": {
        "t4": {**_GPU},
        "own": {**_GPU, "driver": {"enabled": "auto"}, "host_prerequisites": {"enabled": True}},
        "other": {**_GPU},
        "control": {"os": "ubuntu22.04"},
    },
    "nodes": [{"name": "t4-1", "pool": "t4"}, {"name": "t4-2", "pool": "t4"}, {"name": "control-1", "pool": "control"}],
    "rollout": {"max_unavailable": "100%"},
}
"""Where each chain begins, before any edit."""

GIVEN: Mapping[str, Mapping[str, str]] = {
    "packages": {"extra.list": "deb http://packages.example.com stable main"},
    "modules": {"nvidia.conf": "NVreg_OpenRmEnableUnsupportedGpus=1"},
    "sharing": {"whole": "version: v1"},
    "metrics": {"dcgm-metrics.csv": "DCGM_FI_DEV_GPU_TEMP, gauge, temperature"},
}
"""ConfigMaps that inventories name, and users make."""

_REMOVED = None
_DRIVERS = (_REMOVED, "580.95.05", "580.105.08", "570.195.03")
_SETTINGS: Mapping[str, tuple[Any, ...]] = {
    "release": ("26.7.0", "25.10.1"),
    "cdi.enabled": (True, False),
    "mig.strategy": ("single", "mixed", "none"),
    "nfd.version": (_REMOVED, "v0.17.3"),
    "driver.enabled": (True, "auto"),
    "driver.version": _DRIVERS,
    "driver.kernel_module_type": ("auto", "open", "proprietary"),
    "driver.env": (_REMOVED, {"BUILD": "slow"}, {"BUILD": "fast"}),
    "driver.resources": (_REMOVED, {"limits": {"memory": "1Gi"}}),
    "driver.startup_probe.period_seconds": (_REMOVED, 7),
    "driver.repo_config": (_REMOVED, "packages"),
    "driver.kernel_module_config": (_REMOVED, "modules"),
    "driver.upgrade_policy.max_parallel_upgrades": (_REMOVED, 0, 2),
    "driver.upgrade_policy.max_unavailable": (_REMOVED, "100%"),
    "driver.upgrade_policy.auto_upgrade": (True, True, False),
    "rollout.canary": (_REMOVED, {"nodes": 1}),
    "rollout.order": (_REMOVED, "listed", "idle_first"),
    "pools.other.driver.version": _DRIVERS,
    "pools.other.driver.env": (_REMOVED, {"BUILD": "elsewhere"}),
    "pools.own.driver.version": _DRIVERS,
    "pools.other.node_selector": (_REMOVED, {"fleet": "spare"}),
    "pools.t4.labels": (_REMOVED, {"example.com/team": "vision"}, {"example.com/team": "speech"}),
    "pools.other.labels": (_REMOVED, {"example.com/rack": "7"}),
    "toolkit.version": (_REMOVED, "v1.17.8-ubuntu20.04"),
    "toolkit.env": (_REMOVED, {"DEBUG": "true"}),
    "toolkit.install_dir": (_REMOVED, "/opt/nvidia"),
    "validator.version": (_REMOVED, "v25.3.4"),
    "validator.env": (_REMOVED, {"DEBUG": "true"}),
    "device_plugin.enabled": (True, True, False),
    "device_plugin.version": (_REMOVED, "v0.17.4"),
    "device_plugin.args": (_REMOVED, ["--pass-device-specs"]),
    "device_plugin.config_name": (_REMOVED, "sharing"),
    "gfd.enabled": (True, False),
    "gfd.version": (_REMOVED, "v0.17.4"),
    "dcgm.enabled": (False, True),
    "dcgm_exporter.enabled": (True, False),
    "dcgm_exporter.service_type": (_REMOVED, "NodePort"),
    "dcgm_exporter.metrics_config": (_REMOVED, "metrics"),
    "dcgm_exporter.service_monitor.enabled": (True, False),
    "daemonsets.labels": (_REMOVED, {"example.com/owner": "ml"}, {"example.com/owner": "ops"}),
    "daemonsets.annotations": (_REMOVED, {"example.com/note": "seen"}),
    "daemonsets.priority_class_name": (_REMOVED, "system-cluster-critical"),
    "daemonsets.max_unavailable": (_REMOVED, 2),
    "startup_taint.enabled": (False, True),
}
"""Path of a setting -> the values that it takes turns in; a value that stands twice comes twice as often."""
_OF_HOSTS: Mapping[str, tuple[Any, ...]] = {
    "host_prerequisites.kernel_modules": (_REMOVED, ["ipmi_msghandler", "ipmi_devintf"], []),
    "host_prerequisites.blacklist_nouveau": (True, False),
    "host_prerequisites.hold_packages": (False, True),
    "host_prerequisites.sysctls": (_REMOVED, {"kernel.ostype": "Linux"}),
    "host_prerequisites.hugepages": (_REMOVED, {"2Mi": 64}),
    "host_prerequisites.limits": (_REMOVED, {"memlock": "unlimited"}),
    "host_prerequisites.dev_char_symlinks": (False, True),
    "host_prerequisites.persistence_mode": (True, False),
    "host_prerequisites.proxy": (_REMOVED, {"https_proxy": "http://proxy.example.com:3128"}),
    "host_prerequisites.runtime_imports": (_REMOVED, True, False),
    "host_prerequisites.enabled": (True, True, False),
    "pools.other.host_prerequisites": (_REMOVED, {"hugepages": {"2Mi": 8}, "hold_packages": True}),
}
"""The same of what the host phase does."""

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
    """Change something in a document."""
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
    if value is _REMOVED:
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
    """Yield the settings and nodes that differ between two inventories."""
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
