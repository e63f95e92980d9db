"""MIG geometries: which devices a configuration of the MIG manager makes, and what a node offers to pods then.

A configuration is declared in ``mig_manager.config.data``, in the format of nvidia-mig-parted, or it is one of those
that the MIG manager has for every GPU: all-disabled, all-enabled, all-balanced, and ``all-`` with a profile.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

from gpu_provision.inventory.checks import CheckContext
from gpu_provision.inventory.document import KeyPath, Problem
from gpu_provision.inventory.hardware import find_model, hardware_tables, normalize_model
from gpu_provision.model.specs import MigManagerSpec
from gpu_provision.model.text import did_you_mean

Instances = Mapping[str, int]
"""MIG devices of one GPU: number of instances by profile, such as ``1g.10gb``."""

Geometry = Sequence[Instances | None]
"""MIG devices of each GPU of a node; None for a GPU with MIG off."""

CONFIG_LABEL = "nvidia.com/mig.config"
"""Label by which a node requests a configuration of the MIG manager."""

ALL_DISABLED, ALL_ENABLED, ALL_BALANCED = "all-disabled", "all-enabled", "all-balanced"
_ANY_DEVICES = "mixed"  # strategy that offers the devices of every geometry
_SIZE = re.compile(r"(\d+)g\.(\d+)gb")
LABEL_SUFFIX = re.compile(r"-(MIG-.+|SHARED)$")
"""What GPU Feature Discovery appends to the label of the product."""


@dataclass(frozen=True)
class MigLayout:
    """What one GPU can be divided into; without profiles it has no MIG."""

    profiles: Instances  # the largest number of instances of each
    balanced: Instances
    slices: int = 0  # compute slices
    ids: tuple[str, ...] = ()  # PCI device IDs as nvidia-mig-parted writes them

    @cached_property
    def configurations(self) -> dict[str, Instances | None]:
        """The MIG manager's own configurations for this GPU, by name."""
        own = {f"all-{profile.replace('+', '.')}": {profile: count} for profile, count in self.profiles.items()}
        return {ALL_DISABLED: None, ALL_ENABLED: {}, ALL_BALANCED: self.balanced, **own}


@cache
def layouts() -> tuple[MigLayout, ...]:
    """Return all known layouts, of `hardware.toml`."""
    tables = hardware_tables()["mig"]["layouts"].values()
    return tuple(MigLayout(each["profiles"], each["balanced"], each["slices"], tuple(each["ids"])) for each in tables)


@cache
def find_layout(model: str) -> MigLayout | None:
    """Return the layout of a GPU, by its model or by its label of GPU Feature Discovery; None if it is unknown."""
    name, table = normalize_model(LABEL_SUFFIX.sub("", model)), hardware_tables()["mig"]
    for layout, entry in zip(layouts(), table["layouts"].values(), strict=True):
        if name in map(normalize_model, entry["models"]):
            return layout
    is_known = find_model(name) is not None and name not in map(normalize_model, table["ambiguous"])
    return MigLayout({}, {}) if is_known else None


def declared_configurations(spec: MigManagerSpec) -> Mapping[str, Any]:
    """Return the configurations of the inventory, by name."""
    configurations: Mapping[str, Any] = spec.config.data.get("mig-configs", {})
    return configurations


def geometry_of(config: str, spec: MigManagerSpec, layout: MigLayout | None, count: int) -> Geometry | None:
    """Return the MIG devices that a configuration makes of ``count`` GPUs; None if that is not known."""
    declared = declared_configurations(spec)
    if config in declared:
        return _declared_geometry(declared[config], layout, count)
    known: Mapping[str, Instances | None] = layout.configurations if layout else {ALL_DISABLED: None, ALL_ENABLED: {}}
    return [known[config]] * count if config in known else None


def _declared_geometry(entries: Sequence[Mapping[str, Any]], layout: MigLayout | None, count: int) -> Geometry | None:
    found: dict[int, Instances | None] = {}
    for entry in entries:
        if not entry or not {"devices", "mig-enabled"} <= entry.keys():
            return None  # a mistake that the schema names
        if only := entry.get("device-filter"):
            wanted = {str(each).upper() for each in ([only] if isinstance(only, str) else only)}
            if layout is None or not layout.ids:
                return None
            if wanted.isdisjoint(map(str.upper, layout.ids)):
                continue
        devices = range(count) if entry["devices"] == "all" else {*entry["devices"]}.intersection(range(count))
        found |= dict.fromkeys(devices, entry.get("mig-devices", {}) if entry["mig-enabled"] else None)
    return [found[index] for index in range(count)] if len(found) == count else None  # others stay as they are


def offered_devices(geometry: Geometry, strategy: str) -> dict[str, int]:
    """Return what a node offers by the rules of the device plugin: resource -> number, without sharing."""
    whole = "nvidia.com/gpu"
    if strategy == "none":
        return {whole: len(geometry)}
    plain = sum(1 for each in geometry if each is None)
    made = Counter[str]()
    for each in geometry:
        made.update(each or {})
    if strategy == "single":
        return {whole: made.total() or plain}
    devices = {f"nvidia.com/mig-{profile.replace('+', '.')}": count for profile, count in sorted(made.items())}
    return ({whole: plain} if plain else {}) | devices


def layout_problem(geometry: Geometry, layout: MigLayout | None) -> str:
    """Return why no node with these GPUs can have a geometry; empty if one can, or if that is not known."""
    if layout is None:
        return ""
    divided = (each for each in geometry if each is not None)
    return next(filter(None, (_instance_problem(each, layout) for each in divided)), "")


def strategy_problem(geometry: Geometry, strategy: str) -> str:
    """Return why the device plugin cannot offer a geometry; empty if it can."""
    divided = [each for each in geometry if each is not None]
    if strategy == "none" and divided:
        return "mig.strategy is none, so its devices would not be offered to pods"
    kinds = {profile for each in divided for profile in each}
    if strategy == "single" and divided and (len(kinds) > 1 or len(divided) < len(geometry)):
        made = ", ".join(sorted(kinds)) if len(kinds) > 1 else "GPUs with and without MIG"
        return f"mig.strategy is single, which offers devices of one kind only, and it makes {made}"
    return ""


def _instance_problem(instances: Instances, layout: MigLayout) -> str:
    if any(re.match(r"\d+c\.", profile) for profile in instances):
        return ""  # parts of an instance, which the table does not have
    for profile, count in instances.items():
        if profile not in layout.profiles:
            return f"this GPU has no profile {profile}; it has {', '.join(layout.profiles)}"
        if count > (most := layout.profiles[profile]):
            return f"this GPU holds {most} x {profile} at most, not {count}"
    slices, memory = _size(instances)
    # Sizes are rounded, so that what fits may add up to a little more than the memory.
    most_memory = max(_size(each)[1] for each in layout.configurations.values() if each)
    if slices > layout.slices:
        return f"its instances need {slices} compute slices of a GPU that has {layout.slices}"
    return f"its instances need {memory} GB of a GPU that has {most_memory} GB" if memory > most_memory else ""


def _size(instances: Instances) -> tuple[int, int]:
    """Return the compute slices and the GB of instances."""
    parts = [(count, _SIZE.match(profile)) for profile, count in instances.items()]
    sizes = [(count * int(match[1]), count * int(match[2])) for count, match in parts if match]
    return sum(slices for slices, _ in sizes), sum(memory for _, memory in sizes)


def check_mig(context: CheckContext) -> Iterator[Problem]:
    """Yield geometries that GPUs cannot have, that would not be offered, or that nothing declares."""
    yield from _check_entries(context)
    specs = context.inventory.specs
    strategy = _ANY_DEVICES if context.is_refused(("mig", "strategy")) else specs.mig_strategy
    for name, pool in context.inventory.pools.items():
        if pool.mig is None or not pool.mig.config:
            continue
        path = ("pools", name, "mig", "config")
        holders: list[KeyPath] = [
            ("pools", name),
            *(("nodes", at) for at, node in enumerate(context.nodes) if node.get("pool") == name),
        ]
        for holder in (each for each in holders if CONFIG_LABEL in context.mapping_at(each).get("labels", {})):
            what = f"The label {CONFIG_LABEL} and mig.config of the pool {name} exclude each other."
            yield context.error("GP158", (*holder, "labels", CONFIG_LABEL), what, "Remove the label.")
        if pool.gpu is None:
            if not context.is_refused(("pools", name, "gpu")):
                what = f"The pool {name} has no gpu, so it has no MIG devices."
                yield context.error("GP158", path, what, "Declare its gpu, or remove mig.")
            continue
        layout = find_layout(pool.gpu.model)
        geometry = geometry_of(pool.mig.config, specs.mig_manager, layout, pool.gpu.count)
        if layout is not None and not layout.profiles and pool.mig.config != ALL_DISABLED:
            yield context.error("GP158", path, f"{pool.gpu.model} has no MIG.", "Remove mig.")
        elif geometry is None:
            yield from _unknown_configuration(context, name, pool.mig.config, layout)
        elif text := layout_problem(geometry, layout) or strategy_problem(geometry, strategy):
            what = f"The MIG configuration {pool.mig.config} does not work on {pool.gpu.model}: {text}."
            fix = "Set mig.strategy: mixed, or choose a configuration with devices of one kind."
            fix = "Set mig.strategy: single or mixed, or remove mig." if strategy == "none" else fix
            if layout_problem(geometry, layout):
                fix = f"Correct it in mig_manager.config.data, or choose one of {', '.join(_names(layout))}."
            yield context.error("GP158", path, what, fix)


_CONFIGS: KeyPath = ("mig_manager", "config", "data", "mig-configs")


def _check_entries(context: CheckContext) -> Iterator[Problem]:
    """Yield entries of which the MIG manager reads none, as one is wrong.

    Source: https://github.com/NVIDIA/mig-parted, api/spec/v1/spec.go, MigConfigSpec.UnmarshalJSON.
    """
    for name, entries in context.mapping_at(_CONFIGS).items():
        for position, entry in enumerate(entries):
            path: KeyPath = (*_CONFIGS, name, position)
            item = context.document.item(path)
            if not entry or item is None or item.value.keys() != entry.keys():
                continue  # a mistake that the schema names
            is_on, devices = entry.get("mig-enabled"), entry.get("mig-devices")
            if is_on is False and devices:
                what = "GPUs with mig-enabled: false have no MIG devices (mig-parted, api/spec/v1/spec.go)."
                fix = "Set mig-enabled: true, or remove mig-devices."
                yield context.error("GP158", (*path, "mig-devices"), what, fix)
            elif devices and not any(devices.values()):
                what = "Profiles without any instance are refused (mig-parted, pkg/types/mig_config.go)."
                yield context.error("GP158", (*path, "mig-devices"), what, "Write mig-devices: {} for no instance.")
            elif is_on and devices is None:
                what = "GPUs with mig-enabled: true need mig-devices (mig-parted, api/spec/v1/spec.go)."
                fix = "Add mig-devices, such as {1g.10gb: 7}; {} makes none."
                yield context.error("GP158", (*path, "mig-enabled"), what, fix)


def _names(layout: MigLayout | None) -> list[str]:
    return [name for name in (layout.configurations if layout else ()) if name != ALL_ENABLED]


def _unknown_configuration(
    context: CheckContext, pool: str, config: str, layout: MigLayout | None
) -> Iterator[Problem]:
    """Yield a problem if no configuration of this name can exist for the GPUs of a pool."""
    spec = context.inventory.specs.mig_manager
    declared = declared_configurations(spec)
    if context.is_refused((*_CONFIGS, config)):
        return
    if not declared and "data" in context.mapping_at(("mig_manager", "config")):
        return  # a mistake that the schema names
    if (spec.config.name and not declared) or config in declared or (layout is None and config.startswith("all-")):
        return  # in a ConfigMap, or it depends on GPUs whose layout is unknown
    known, model = [*declared, *_names(layout)], context.mapping_at(("pools", pool, "gpu")).get("model", "")
    what = f"There is no MIG configuration {config}{f' for {model}' if layout else ''}."
    choice = f", or choose one of {', '.join(known)}" if known else ""
    meant = partial(did_you_mean, config, declared, f"Declare it in mig_manager.config.data{choice}.")
    yield context.error("GP158", ("pools", pool, "mig", "config"), what, meant)
