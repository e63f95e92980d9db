"""Chains of random inventories for one fleet: each is the one before with a few edits.

An edit is what a user types: a setting, a pool's own setting, a node that comes, goes or moves to another pool. Every
inventory that comes out can be made true on `FLEET`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any

Document = dict[str, Any]

OPERANDS = "gpu-operator-resources"
OWN_DRIVER = "550.90.07"

_T4 = {"model": "Tesla T4", "count": 1}
FLEET: dict[str, Any] = {
    "nodes": [
        {"name": "control-1", "roles": ["control-plane"]},
        {"name": "t4-1", "gpu": _T4},
        {"name": "t4-2", "gpu": _T4, "host": {"nouveau": True}},
        {"name": "spare-1", "gpu": _T4, "labels": {"fleet": "spare"}},
        {"name": "late-1", "gpu": _T4, "taints": [{"key": "gpu-provision.io/not-validated", "effect": "NoSchedule"}]},
        {"name": "own-1", "gpu": _T4, "host": {"driver": OWN_DRIVER}},
    ],
    "timings": {"speed": 500},
}
"""A machine per way of being different: nouveau loaded, selected by a label, tainted at its start, its own driver."""

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

GIVEN: tuple[dict[str, Any], ...] = (
    {"kind": "ConfigMap", "name": "packages", "data": {"extra.list": "deb http://packages.example.com stable main"}},
    {"kind": "ConfigMap", "name": "modules", "data": {"nvidia.conf": "NVreg_OpenRmEnableUnsupportedGpus=1"}},
    {"kind": "ConfigMap", "name": "sharing", "data": {"whole": "version: v1\n"}},
    {"kind": "ConfigMap", "name": "metrics", "data": {"dcgm-metrics.csv": "DCGM_FI_DEV_GPU_TEMP, gauge, temperature\n"}},
)
"""What inventories name, and users make."""

_REMOVED = None
_DRIVERS = (_REMOVED, "580.95.05", "580.105.08", "570.195.03")
_SETTINGS: Mapping[str, tuple[Any, ...]] = {
    "release": ("26.7.0", "25.10.1"),
    "operator.runtime_class": (_REMOVED, "nvidia-gpu"),
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
    "pools.own.driver.enabled": ("auto", False),
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
"""Path of a setting -> the values that it takes turns in; a value that stands twice comes twice as often."""

_POOLS = ("t4", "other", "own")


def chain(seed: int, length: int) -> Iterator[Document]:
    """Yield a number of inventories, each an edit of the one before; equal seeds give equal chains."""
    random, document = Random(seed), copy.deepcopy(FIRST)
    yield _edited(document, random, random.randint(0, 8))
    for _ in range(length - 1):
        yield _edited(document, random, random.randint(1, 4))


def _edited(document: Document, random: Random, times: int) -> Document:
    """Edit a document in place, and return what it is like now."""
    for _ in range(times):
        before = copy.deepcopy(document)
        while document == before:
            random.choice((_set, _set, _set, _move))(document, random)
    return copy.deepcopy(document)


def _set(document: Document, random: Random) -> None:
    path = random.choice(tuple(_SETTINGS))
    *above, last = path.split(".")
    place = document
    for key in above:
        place = place.setdefault(key, {})
    value = random.choice(_SETTINGS[path])
    if value is _REMOVED:
        place.pop(last, None)
    else:
        place[last] = copy.deepcopy(value)


def _move(document: Document, random: Random) -> None:
    """Let a node come, go, move to another pool, or have another label."""
    name = random.choice(("t4-1", "t4-2", "spare-1", "late-1", "own-1"))
    others = [node for node in document["nodes"] if node["name"] != name]
    pool = "own" if name == "own-1" else random.choice(_POOLS)
    node = {"name": name, "pool": pool, **random.choice(({}, {}, {"labels": {"example.com/slot": "1"}}))}
    is_away = random.random() < 1 / 3 and name != "t4-1"
    document["nodes"] = sorted(others if is_away else [*others, node], key=lambda each: str(each["name"]))


Edit = Callable[[Document, Random], None]
