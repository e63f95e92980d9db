"""Pools of an inventory, from the nodes of a cluster and from NVIDIADriver resources. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

from gpu_provision.adopt import reference
from gpu_provision.adopt.reference import DRIVER, POOL
from gpu_provision.adopt.settings import OperatorSettings, value_at
from gpu_provision.components import labels
from gpu_provision.components.gpu_resources import SLICES
from gpu_provision.components.targets import is_coreos, observed_os
from gpu_provision.inventory import hardware
from gpu_provision.inventory.mig import ALL_DISABLED, LABEL_SUFFIX, find_layout
from gpu_provision.model.cluster import NodeFacts
from gpu_provision.model.driver_specs import MODULE_SECTIONS

HAS_GPU: Mapping[str, str] = {labels.NFD_GPU[0]: "true"}
"""Labels of nodes that Node Feature Discovery sees a GPU on."""

OF_DRIVER = ("driver", *MODULE_SECTIONS)
"""Sections of a pool that an NVIDIADriver has."""

_MAX_NAME = 63  # characters of a pool's name
_SLICES = 7  # compute slices of most GPUs with MIG: NVIDIA MIG user guide
_NO_DRIVER = {"driver": {"enabled": False}}
_SELECTOR = "node_selector"

_Kind = tuple[str, int, str, str, str]
"""Model and number of GPUs, operating system, driver and MIG configuration of nodes."""


@dataclass(frozen=True, kw_only=True)
class DriverPool:
    """The nodes of one NVIDIADriver."""

    name: str
    source: OperatorSettings
    part: Mapping[str, Any]  # of the inventory: the driver, and other keys of a pool

    @property
    def selector(self) -> Mapping[str, str]:
        """Labels of its nodes; empty for the driver of all other nodes."""
        return self.part.get(_SELECTOR) or {}

    @property
    def selects_all(self) -> bool:
        """Whether the pool needs nothing but a driver and modules beside it."""
        return not self.part.keys() - set(OF_DRIVER)


def driver_pool(source: OperatorSettings, sections: Mapping[str, Any], name: str) -> DriverPool:
    """Return the pool of an NVIDIADriver with these sections of `OF_DRIVER`."""
    keys = {field: reference.row_of(DRIVER, field).key for field in reference.field_names(DRIVER)}
    of_pool = {
        key.removeprefix(POOL): value
        for field, key in keys.items()
        if key.startswith(POOL) and reference.has_key(key) and (value := value_at(source.spec, f"driver.{field}"))
    }
    return DriverPool(name=name, source=source, part={**of_pool, **sections})


def pool_names(texts: Iterable[str]) -> list[str]:
    """Return texts as names of pools: short enough, and each once."""
    names: list[str] = []
    for text in texts:
        plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "gpus"
        ends = chain([""], (f"-{number}" for number in count(2)))
        choices = (f"{plain[: _MAX_NAME - len(end)].strip('-')}{end}" for end in ends)
        names.append(next(name for name in choices if name not in names))
    return names


def pools_of_drivers(pools: Iterable[DriverPool]) -> tuple[dict[str, Any], dict[str, DriverPool]]:
    """Return a pool for each driver, and which driver each has; one pool for all nodes without any driver."""
    found = {each.name: each for each in pools}
    parts = {name: {**each.part, _SELECTOR: {**HAS_GPU, **each.selector}, "gpu": {}} for name, each in found.items()}
    return parts or {"gpus": {_SELECTOR: dict(HAS_GPU), "gpu": {}}}, found


def pools_of_nodes(
    nodes: Iterable[NodeFacts], drivers: Iterable[DriverPool] = ()
) -> tuple[dict[str, Any], list[dict[str, str]], dict[str, DriverPool]]:
    """Group nodes with equal GPUs, systems and drivers into pools, named after their differences.

    Returns pools, nodes, and the driver of each pool that has one of its own.
    """
    drivers = list(drivers)
    kinds: dict[_Kind, list[str]] = {}
    for node in nodes:
        if labels.has_gpu(node.labels):
            os, driver = observed_os(node), _driver_of(node, drivers)
            # An update of OpenShift changes CoreOS, so that a pool must not name it.
            system = f"{os.id}{os.version}" if os and not is_coreos(os, node) else ""
            kind = _gpu_model(node), _gpu_count(node), system, driver, _mig_of(node)
            kinds.setdefault(kind, []).append(node.name)
    pools: dict[str, Any] = {}
    members: list[dict[str, str]] = []
    by_name = {each.name: each for each in drivers}
    found: dict[str, DriverPool] = {}
    texts = ["-".join((kind[0], *_differing(kind, kinds))) for kind in sorted(kinds)]
    for pool, (kind, names) in zip(pool_names(texts), sorted(kinds.items()), strict=True):
        model, gpus, system, driver, mig = kind
        own = by_name[driver].part if driver else (_NO_DRIVER if drivers else {})
        rest = {key: value for key, value in own.items() if key != _SELECTOR}
        gpu = {"gpu": {"model": model, "count": gpus}, **({"mig": {"config": mig}} if mig else {})}
        pools[pool] = {**({"os": system} if system else {}), **gpu, **rest}
        found |= {pool: by_name[driver]} if driver else {}
        members += [{"name": name, "pool": pool} for name in names]
    return pools, sorted(members, key=lambda member: member["name"]), found


def _differing(kind: _Kind, kinds: Iterable[_Kind]) -> list[str]:
    """Return what tells the nodes of a kind from others with the same GPU."""
    alike = [each for each in kinds if each[0] == kind[0]]
    return [
        f"x{each}" if place == 1 else str(each)
        for place, each in enumerate(kind)
        if len({other[place] for other in alike}) > 1
    ]


def _mig_of(node: NodeFacts) -> str:
    """Return the MIG configuration of a node; empty without one, and for the chart's default, which divides nothing."""
    config = node.labels.get(labels.MIG_CONFIG, "")
    return "" if config == ALL_DISABLED else config


def _driver_of(node: NodeFacts, drivers: Iterable[DriverPool]) -> str:
    """Return the name of the driver that selects a node, else of the one without a selector."""
    selecting = [each.name for each in drivers if each.selector and each.selector.items() <= node.labels.items()]
    return next(iter((*selecting, *(each.name for each in drivers if not each.selector))), "")


def _gpu_model(node: NodeFacts) -> str:
    """Return the model's inventory name, without GPU Feature Discovery's suffixes for sharing and MIG."""
    product = node.labels.get(labels.GPU_PRODUCT, "")
    bare = LABEL_SUFFIX.sub("", product)
    known = hardware.find_model(bare)
    return known.name if known else bare or "unknown"


def _gpu_count(node: NodeFacts) -> int:
    counted = node.labels.get(labels.GPU_COUNT, "")
    count = int(counted) if counted.isdigit() and int(counted) else node.gpus_allocatable or 1
    return -(-count // _devices_per_gpu(node.labels))


def _devices_per_gpu(found: Mapping[str, str]) -> int:
    """Return how many of the MIG devices that ``nvidia.com/gpu.count`` counts one GPU holds; 1 without MIG."""
    product, size = found.get(labels.GPU_PRODUCT, ""), found.get(SLICES, "")
    if not size.isdigit() or not int(size):
        return 1
    layout, profile = find_layout(product), product.partition("-MIG-")[2].removesuffix("-SHARED")
    numbers = {name.replace("+", "."): number for name, number in (layout.profiles if layout else {}).items()}
    slices = (layout and layout.slices) or _SLICES
    return numbers.get(profile) or max(1, slices // int(size))
