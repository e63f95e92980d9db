"""Checks the configurations of the device plugin: names that do not exist, and combinations that cannot work.

The rules are those of the plugin, https://github.com/NVIDIA/k8s-device-plugin at v0.20.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpu_provision.inventory.checks import CheckContext
from gpu_provision.inventory.document import KeyPath, Problem, format_path
from gpu_provision.inventory.mig import ALL_DISABLED
from gpu_provision.model.text import did_you_mean

_CONFIG: KeyPath = ("device_plugin", "config")
_DATA: KeyPath = (*_CONFIG, "data")
_MAX_CLIENTS = 48  # cmd/mps-control-daemon/mps/device.go; 16 before compute capability 7.5
_PREFIX, _GPU = "nvidia.com/", "gpu"  # a configuration may leave the prefix out

# Flag -> the variable of the pods that overrides it, and the setting to use, if there is one. The programs take the
# variable if it is set: api/config/v1/flags.go.
OVERRIDDEN_FLAGS: Mapping[KeyPath, tuple[str, str]] = {
    ("migStrategy",): ("MIG_STRATEGY", "mig.strategy"),
    ("failOnInitError",): ("FAIL_ON_INIT_ERROR", "device_plugin.env"),
    ("mpsRoot",): ("MPS_ROOT", "device_plugin.mps.root"),
    ("nvidiaDriverRoot",): ("NVIDIA_DRIVER_ROOT", ""),
    ("nvidiaDevRoot",): ("NVIDIA_DEV_ROOT", ""),
    ("plugin", "passDeviceSpecs"): ("PASS_DEVICE_SPECS", "device_plugin.env"),
    ("plugin", "deviceListStrategy"): ("DEVICE_LIST_STRATEGY", "device_plugin.env"),
    ("plugin", "deviceIDStrategy"): ("DEVICE_ID_STRATEGY", "device_plugin.env"),
    ("gfd", "sleepInterval"): ("GFD_SLEEP_INTERVAL", "gfd.env"),
}


def check_plugin_configs(context: CheckContext) -> Iterator[Problem]:
    """Yield problems of `device_plugin.config`, and of the pools' choices."""
    yield from _check_names(context)
    yield from _check_choices(context)
    yield from _check_mig(context)
    for name, declared in context.mapping_at(_DATA).items():
        path = (*_DATA, name)
        yield from _check_sharing(context, path, declared.get("sharing") or {})
        yield from _check_flags(context, path, declared.get("flags") or {})
        if "resources" in declared:
            what = "The device plugin ignores resources."
            yield context.warning("GP145", (*path, "resources"), what, "Remove it; sharing.*.renameByDefault renames.")


def _check_names(context: CheckContext) -> Iterator[Problem]:
    """Yield keys that are written twice, and a default without configurations."""
    plugin = context.mapping_at(("device_plugin",))
    for key in ("name", "default"):
        if f"config_{key}" in plugin and key in plugin.get("config", {}):
            what = f"config_{key} is the short form of config.{key}; both are set."
            yield context.error("GP176", ("device_plugin", f"config_{key}"), what, "Remove the line.")
    if not context.is_complete or context.inventory.specs.device_plugin.config_map:
        return
    for path in (("device_plugin", "config_default"), (*_CONFIG, "default")):
        if context.document.item(path):
            what = f"{format_path(path[1:])} has no effect without configurations."
            fix = (
                "Declare them in device_plugin.config.data, or set device_plugin.config.name to a ConfigMap with them."
            )
            yield context.warning("GP145", path, what, fix)


def _check_choices(context: CheckContext) -> Iterator[Problem]:
    """Yield names that no configuration has; the content of a ConfigMap is not known here."""
    plugin, known = context.inventory.specs.device_plugin, context.mapping_at(_DATA)
    choices: dict[KeyPath, str] = {}
    for name, pool in context.inventory.pools.items():
        path: KeyPath = ("pools", name, "device_plugin", "config")
        choice = pool.device_plugin.config
        if choice and context.is_complete and pool.gpu is None:
            what = f"The pool {name} has no gpu, so its configuration has no effect."
            yield context.warning("GP145", path, what, "Declare its gpu, or remove the line.")
        elif choice and context.is_complete and not plugin.enabled and not plugin.config_map:
            what = "The device plugin is off, so the pool's configuration has no effect."
            yield context.warning("GP145", path, what, "Set device_plugin.enabled: true, or remove the line.")
        elif choice and context.is_complete and not plugin.config_map:
            what = f"There is no configuration {choice}: device_plugin.config declares none."
            yield context.error("GP177", path, what, f"Add device_plugin.config.data.{choice}, or remove the line.")
        choices[path] = choice
    choices[context.first_declared(("device_plugin", "config_default"), (*_CONFIG, "default"))] = plugin.default_config
    for path, choice in choices.items():
        if known and choice and choice not in known and not context.is_refused((*_DATA, choice)):
            fix = did_you_mean(choice, known, f"Known configurations: {', '.join(known)}")
            yield context.error("GP177", path, f"device_plugin.config.data has no configuration {choice}.", fix)


def _check_mig(context: CheckContext) -> Iterator[Problem]:
    """Yield pools that divide their GPUs by MIG, and share them by MPS."""
    plugin, known = context.inventory.specs.device_plugin, context.mapping_at(_DATA)
    for name, pool in context.inventory.pools.items():
        choice = pool.device_plugin.config or plugin.default_config
        is_mixed = context.inventory.specs.mig_strategy == "mixed"  # refused for all nodes, which is a finding already
        has_mps = not is_mixed and "mps" in (known.get(choice, {}).get("sharing") or {})
        if has_mps and pool.mig and pool.mig.config not in {"", ALL_DISABLED}:
            path = context.first_declared(("pools", name, "device_plugin", "config"), ("pools", name, "mig", "config"))
            what = f"{choice} declares MPS, which the device plugin refuses for MIG devices (internal/plugin/mps.go)."
            fix = "Let the pool choose a configuration with timeSlicing, or remove its mig."
            yield context.error("GP176", path, what, fix)


def _check_sharing(context: CheckContext, path: KeyPath, sharing: Mapping[str, Any]) -> Iterator[Problem]:
    path, specs = (*path, "sharing"), context.inventory.specs
    mps: KeyPath = (*path, "mps")
    for kind, replicated in sharing.items():
        yield from _check_resources(context, (*path, kind), replicated)
    if "mps" not in sharing:
        return
    if "timeSlicing" in sharing:
        what = "The device plugin ignores timeSlicing beside mps (api/config/v1/sharing.go)."
        fix = "Keep one of them; two pools can choose two configurations."
        yield context.error("GP176", (*path, "timeSlicing"), what, fix)
    if specs.mig_strategy == "mixed":
        what = "The device plugin refuses MPS where mig.strategy is mixed (cmd/nvidia-device-plugin/main.go)."
        yield context.error("GP176", mps, what, "Set mig.strategy: single, or share by timeSlicing.")
    if not specs.gfd.enabled:
        what = "MPS needs GPU Feature Discovery, which is off: it labels the nodes of the MPS control daemon."
        yield context.error("GP176", mps, what, "Set gfd.enabled: true, or share by timeSlicing.")


def _check_resources(context: CheckContext, path: KeyPath, replicated: Mapping[str, Any]) -> Iterator[Problem]:
    names: set[str] = set()
    is_mixed = context.inventory.specs.mig_strategy == "mixed"
    for position, resource in enumerate(replicated.get("resources") or ()):
        here: KeyPath = (*path, "resources", position)
        if not resource or "name" not in resource:  # removed, as it does not fit the schema
            continue
        name = f"{_PREFIX}{resource['name'].removeprefix(_PREFIX)}"
        if name in names:
            what = f"{name} stands here twice; the device plugin takes the larger number of replicas."
            yield context.error("GP176", (*here, "name"), what, "Remove one of them.")
        elif name != f"{_PREFIX}{_GPU}" and not (is_mixed and name.startswith(f"{_PREFIX}mig-")):
            what = f"No node offers {name}, so the device plugin ignores the entry."
            fix = f"Write {_PREFIX}{_GPU}; there are {_PREFIX}mig-<profile> with mig.strategy: mixed."
            yield context.warning("GP145", (*here, "name"), what, fix)
        names.add(name)
        if path[-1] == "mps" and resource.get("replicas", 0) > _MAX_CLIENTS:
            what = f"A GPU has at most {_MAX_CLIENTS} clients of MPS (cmd/mps-control-daemon/mps/device.go)."
            fix = f"Write {_MAX_CLIENTS} or less; 16 or less for GPUs before Turing."
            yield context.error("GP176", (*here, "replicas"), what, fix)
        if "rename" in resource:
            what = "The device plugin ignores rename."
            yield context.warning("GP145", (*here, "rename"), what, "Remove it; renameByDefault appends .shared.")


def _check_flags(context: CheckContext, path: KeyPath, flags: Mapping[str, Any]) -> Iterator[Problem]:
    strategy = context.inventory.specs.mig_strategy
    if context.is_refused(("mig", "strategy")):
        strategy = str(flags.get("migStrategy"))
    effective: dict[KeyPath, str] = {("migStrategy",): strategy}
    for flag, (variable, setting) in OVERRIDDEN_FLAGS.items():
        value: Any = flags
        for step in flag:
            value = (value or {}).get(step)
        if value is not None and value != effective.get(flag):
            what = f"{flag[-1]} has no effect: the variable {variable} of the pods overrides it."
            fix = f"Remove the line, and use {setting}." if setting else "Remove the line."
            yield context.warning("GP145", (*path, "flags", *flag), what, fix)
