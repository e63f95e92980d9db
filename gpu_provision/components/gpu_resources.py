"""The resources by which a node offers GPUs, whole, shared or as MIG devices, against the GPUs of the inventory.

Labels are those of GPU Feature Discovery, resources those of the device plugin, with its default names:
https://github.com/NVIDIA/k8s-device-plugin, internal/lm and api/config/v1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpu_provision.components.labels import GPU_COUNT, GPU_PRODUCT, MIG_CONFIG, MIG_STATE, MIG_SUCCESS
from gpu_provision.components.mig_manager import requested_configuration
from gpu_provision.inventory.mig import declared_configurations, find_layout, geometry_of, offered_devices
from gpu_provision.model.cluster import Target
from gpu_provision.model.inventory import Gpu, Inventory, NodePool

GPU = "nvidia.com/gpu"
_MIG = "nvidia.com/mig-"
_SHARED = ".shared"  # end of a resource that sharing renames
_GFD = "GPU Feature Discovery"
_MIG_COUNT = re.compile(rf"({re.escape(_MIG)}.+)\.count")
SLICES = f"{GPU}.slices.gi"  # label of nodes whose MIG devices are offered as nvidia.com/gpu: the size of one


def read_devices(allocatable: Mapping[str, object]) -> dict[str, int]:
    """Return the number of devices by resource, of the ``status.allocatable`` of a node."""
    counts = {name: str(value) for name, value in allocatable.items() if name.removesuffix(_SHARED) == GPU}
    counts |= {name: str(value) for name, value in allocatable.items() if name.startswith(_MIG)}
    return {name: int(value) for name, value in counts.items() if value.isdecimal()}


def resource_to_request(devices: Mapping[str, int]) -> str:
    """Return the resource that a validation requests: a whole GPU, unless the node offers only others.

    A resource stays at zero while the plugin restarts, so that a driver upgrade does not change the result.
    """
    return min(devices, key=lambda name: (not devices[name], name != GPU, name), default=GPU)


def declared_devices(
    pool: NodePool, product: str, inventory: Inventory, replicas: Mapping[str, int] | None
) -> dict[str, int]:
    """Return what a node offers once it has the MIG configuration of its pool; empty without one, or if unknown.

    ``product``: the label of GPU Feature Discovery, for a model that does not tell the size of its memory.
    ``replicas``: as of `count_problem`. The node may offer a resource under the name that sharing appends to.
    """
    made = {} if replicas is None else _made_devices(pool, product, inventory)
    return {resource: count * _copies(resource, replicas) for resource, count in made.items()}


def _made_devices(pool: NodePool, product: str, inventory: Inventory) -> dict[str, int]:
    """Return what a node offers with the MIG configuration of its pool, without sharing; empty if unknown."""
    mig, gpu, specs = pool.mig, pool.gpu, inventory.specs
    if mig is None or gpu is None or not gpu.count:
        return {}
    layout = find_layout(gpu.model) or find_layout(product)
    geometry = geometry_of(mig.config, specs.mig_manager, layout, gpu.count)
    return {} if geometry is None else offered_devices(geometry, specs.mig_strategy)


def missing_device(devices: Mapping[str, int], declared: Mapping[str, int]) -> str:
    """Return the first of the declared resources that a node offers in another number; empty if there is none."""
    return next((name for name, count in declared.items() if offered_count(name, devices) != count), "")


def geometry_problem(target: Target, inventory: Inventory, replicas: Mapping[str, int] | None) -> str:
    """Return which devices a node lacks that the MIG configuration of its pool makes; empty until that is applied."""
    live, config = target.labels, target.labels.get(MIG_CONFIG, "")
    is_applied = target.pool.mig is not None and live.get(MIG_STATE) == MIG_SUCCESS
    if target.facts is None or not is_applied or config != requested_configuration(inventory, target.pool):
        return ""
    declared, devices = (
        declared_devices(target.pool, live.get(GPU_PRODUCT, ""), inventory, replicas),
        target.facts.devices,
    )
    if not (resource := missing_device(devices, declared)):
        return ""
    shared = _shared_text(_copies(resource, replicas))
    makes = f"{config} makes {declared[resource] // _copies(resource, replicas)} {resource}{shared}"
    return f"{makes}, the node offers {offered_count(resource, devices)} to pods"


def has_geometry_by_plain_name(target: Target, inventory: Inventory) -> bool:
    """Whether a node has the MIG devices of its pool, and requests them by their configuration's name without digest.

    So it is after an import: the GPU Operator's MIG manager has made them of a ConfigMap with the same content. The
    counts of GPU Feature Discovery must not contradict; its labels may be absent while it restarts.
    """
    live, config = target.labels, target.pool.mig.config if target.pool.mig else ""
    is_applied = live.get(MIG_CONFIG) == config and live.get(MIG_STATE) == MIG_SUCCESS
    if not is_applied or config not in declared_configurations(inventory.specs.mig_manager):
        return False
    made, counted = _made_devices(target.pool, live.get(GPU_PRODUCT, ""), inventory), _labelled_devices(live)
    expected = {name: count for name, count in made.items() if name in counted or name.startswith(_MIG)}
    return bool(made) and (not counted or counted == expected)


def _labelled_devices(labels: Mapping[str, str]) -> dict[str, int | None]:
    """Return the MIG devices that GPU Feature Discovery counts, by resource; empty without its labels."""
    if SLICES in labels:
        return {GPU: _count(labels)}
    return {match[1]: _count(labels, key) for key in labels if (match := _MIG_COUNT.fullmatch(key))}


def count_problem(
    gpu: Gpu, labels: Mapping[str, str], devices: Mapping[str, int], *, replicas: Mapping[str, int] | None
) -> str:
    """Return which counts of a node differ: declared, labelled and offered GPUs; empty if all agree.

    ``replicas``: how often the node's configuration of the device plugin offers each device, by resource; None if
    that is unknown, so that any number from the declared one on is right.
    """
    return _label_problem(gpu, labels, is_shared=replicas is None) or _offer_problem(gpu, labels, devices, replicas)


def _label_problem(gpu: Gpu, labels: Mapping[str, str], *, is_shared: bool) -> str:
    if labels.get(GPU_PRODUCT, "").endswith("-MIG-INVALID"):
        return f"{_GFD} finds MIG devices of several kinds, or GPUs without any, where mig.strategy is single"
    counted, is_sliced = _count(labels), SLICES in labels
    if counted is None or (counted >= gpu.count if is_sliced else is_shared or counted == (gpu.count or counted)):
        return ""
    return f"the inventory declares {gpu}, {_GFD} counts {counted}{' MIG devices' if is_sliced else ''}"


def _offer_problem(
    gpu: Gpu, labels: Mapping[str, str], devices: Mapping[str, int], replicas: Mapping[str, int] | None
) -> str:
    sliced = {match[1]: _count(labels, key) for key in labels if (match := _MIG_COUNT.fullmatch(key))}
    for resource, count in sorted(sliced.items()):
        copies = _copies(resource, replicas)
        if count is not None and offered_count(resource, devices) < count * copies:
            found = f"{_GFD} counts {count} {resource}{_shared_text(copies)}"
            return f"{found}, the node offers {offered_count(resource, devices)} to pods"
    if any(name.startswith(_MIG) and count for name, count in devices.items()):
        return ""
    counted = _count(labels) if SLICES in labels or gpu.is_any else None
    expected, offered, copies = counted or gpu.count, offered_count(GPU, devices), _copies(GPU, replicas)
    is_exact = offered == expected * copies if expected else offered > 0  # an unknown number is right, but none
    if is_exact or (replicas is None and offered > expected):
        return ""
    kind = "MIG devices" if SLICES in labels else "GPUs"
    found = f"{_GFD} counts {expected} {kind}" if counted else f"the inventory declares {gpu}"
    return f"{found}{_shared_text(copies)}, the node offers {offered} {GPU} to pods"


def _copies(resource: str, replicas: Mapping[str, int] | None) -> int:
    return (replicas or {}).get(resource, 1)


def _shared_text(copies: int) -> str:
    return f", each offered {copies} times" if copies > 1 else ""


def _count(labels: Mapping[str, str], key: str = GPU_COUNT) -> int | None:
    value = labels.get(key, "")
    return int(value) if value.isdecimal() else None


def offered_count(resource: str, devices: Mapping[str, int]) -> int:
    """Return how many devices of a resource a node offers, also under the name that sharing gives it."""
    return devices.get(resource, 0) + devices.get(resource + _SHARED, 0)
