"""Checks the settings of components: what contradicts another one, and what a component would not start with."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator

from gpu_provision.inventory.checks import CheckContext
from gpu_provision.inventory.document import KeyPath, Problem
from gpu_provision.inventory.json_schema import schema
from gpu_provision.inventory.mig import check_mig
from gpu_provision.inventory.plugin_configs import check_plugin_configs
from gpu_provision.model.monitoring_specs import ServiceMonitorSpec
from gpu_provision.model.operand_specs import DRIVER_CONTAINER_ROOT
from gpu_provision.model.text import join_or

_METRIC_FIELDS = 3


def check_components(context: CheckContext) -> Iterator[Problem]:
    """Yield settings of components that contradict each other, or that a component does not start with."""
    yield from _check_toolkit(context)
    yield from _check_drop_in(context)
    yield from _check_driver_directory(context)
    yield from _check_nri(context)
    yield from _check_validations(context)
    yield from _check_metrics(context)
    yield from _check_monitors(context)
    yield from _check_config_maps(context)
    yield from _check_discovery(context)
    yield from check_mig(context)
    yield from check_plugin_configs(context)


def _check_toolkit(context: CheckContext) -> Iterator[Problem]:
    """Yield a problem if the toolkit is off and drivers are containers, which a host's own toolkit does not find."""
    specs = context.inventory.specs
    containerized = any(pool.has_driver_container for pool in context.inventory.pools.values())
    if specs.toolkit.enabled or not containerized:
        return
    able = ("device_plugin", "gfd", "dcgm", "dcgm_exporter")
    needing = [key for key in able if getattr(specs, key).enabled] or ["validator"]
    who = join_or(needing).replace(" or ", " and ")
    what = f"{who} need{'' if len(needing) > 1 else 's'} toolkit, which is off while the driver is a container."
    fix = "Set toolkit.enabled: true, or driver.enabled: false if the hosts have both driver and toolkit."
    yield context.error("GP160", ("toolkit", "enabled"), what, fix)


def _check_driver_directory(context: CheckContext) -> Iterator[Problem]:
    """Yield a problem if drivers are containers, and operands look for them where no container installs them."""
    path = ("host_paths", "driver_install_dir")
    directory = context.inventory.specs.host_paths.driver_install_dir
    pools = [pool for pool in context.inventory.pools.values() if pool.has_driver_container]
    if directory.rstrip("/") == DRIVER_CONTAINER_ROOT or not pools:
        return
    what = f"The driver container of the pool {pools[0].name} installs into {DRIVER_CONTAINER_ROOT} alone."
    fix = "Set driver.enabled: false if the hosts have drivers there, or remove driver_install_dir."
    yield context.error("GP185", path, what, fix)


_NRI_SINCE = (1, 19)
"""First toolkit with an NRI plugin: https://github.com/NVIDIA/nvidia-container-toolkit/pull/1498."""


def _check_nri(context: CheckContext) -> Iterator[Problem]:
    """Yield a problem if the NRI plugin is on without what it needs, as the GPU Operator's chart refuses it."""
    specs, path = context.inventory.specs, ("cdi", "nri_plugin_enabled")
    if not specs.nri_plugin_enabled:
        return
    version = re.match(r"v?(\d+)\.(\d+)", specs.toolkit.image.version)
    is_old = version is not None and (int(version[1]), int(version[2])) < _NRI_SINCE
    lacking = {
        "CDI, which is off": ("Set cdi.enabled: true", not specs.cdi_enabled),
        "the toolkit, which is off": ("Set toolkit.enabled: true", not specs.toolkit.enabled),
        f"a toolkit since 1.19, not {specs.toolkit.image.version}": ("Use the release 26.3.0 or newer", is_old),
    }
    for need, (remedy, is_lacking) in lacking.items():
        if is_lacking:
            yield context.error("GP160", path, f"The NRI plugin needs {need}.", f"{remedy}, or remove this line.")


def _check_validations(context: CheckContext) -> Iterator[Problem]:
    """Yield a problem for each validation that would start pods: the validator has no permission to."""
    for name in ("cuda", "plugin"):
        path: KeyPath = ("validator", name, "env")
        if str(context.mapping_at(path).get("WITH_WORKLOAD", "")).lower() == "true":
            what = "The validator starts no pods: a run validates the node with its own vectorAdd."
            yield context.error("GP186", (*path, "WITH_WORKLOAD"), what, "Remove the line.")


def _check_metrics(context: CheckContext) -> Iterator[Problem]:
    """Yield problems of the exporter's metrics."""
    path: KeyPath = ("dcgm_exporter", "config")
    section, short = context.mapping_at(path), context.mapping_at(("dcgm_exporter",)).get("metrics_config")
    if short and section.get("name"):
        what = "metrics_config is the short form of config.name; both are set."
        yield context.error("GP186", ("dcgm_exporter", "metrics_config"), what, "Remove the line.")
    # As ExtractCounters of dcgm-exporter reads it: https://github.com/NVIDIA/dcgm-exporter.
    for number, line in enumerate(str(section.get("data", "")).splitlines(), start=1):
        try:
            fields = next(csv.reader([line], skipinitialspace=True), [])
        except csv.Error as error:
            what = f"Line {number} of the metrics cannot be read: {error}."
            yield context.error("GP187", (*path, "data"), what, "Shorten it.")
            return
        if fields and not line.startswith("#") and len(fields) != _METRIC_FIELDS:
            what = (
                f"Line {number} of the metrics has {len(fields)} fields, so the exporter would not start: {line[:80]}"
            )
            fix = "Write the DCGM field, the type and the help: DCGM_FI_DEV_GPU_UTIL, gauge, GPU utilization."
            yield context.error("GP187", (*path, "data"), what, fix)
            return


_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def _seconds_of(duration: str) -> float:
    return sum(int(number) * _SECONDS[unit] for number, unit in re.findall(r"([0-9]+)(ms|s|m|h)", duration))


def _check_monitors(context: CheckContext) -> Iterator[Problem]:
    """Yield ServiceMonitors that the Prometheus Operator refuses."""
    specs = context.inventory.specs
    monitors: dict[KeyPath, ServiceMonitorSpec] = {
        ("dcgm_exporter",): specs.dcgm_exporter.service_monitor,
        ("operator", "metrics"): specs.operator_metrics.service_monitor,
    }
    for holder, monitor in monitors.items():
        if monitor.enabled and _seconds_of(monitor.scrape_timeout) > _seconds_of(monitor.interval):
            path: KeyPath = (*holder, "service_monitor")
            what = f"The scrape_timeout {monitor.scrape_timeout} is longer than the interval {monitor.interval}."
            place = context.first_declared((*path, "scrape_timeout"), (*path, "interval"))
            yield context.error("GP186", place, what, "Write a shorter scrape_timeout, or a longer interval.")


def _check_config_maps(context: CheckContext) -> Iterator[Problem]:
    """Yield ConfigMaps of the inventory that have the name of another one."""
    first: dict[str, str] = {}
    for section, short in (("device_plugin", "config_name"), ("mig_manager", ""), ("dcgm_exporter", "metrics_config")):
        config = context.mapping_at((section, "config"))
        name = config.get("name") or context.mapping_at((section,)).get(short)
        if not config.get("data") or not name:
            continue
        other = first.setdefault(name, section)
        if other != section:
            place = context.first_declared((section, "config", "name"), (section, short))
            what = f"{other}.config and {section}.config make ConfigMaps of the same name."
            yield context.error("GP186", place, what, "Give one of them another name, or remove this line.")


_GPU_CLASSES = ("0300", "0302")
_GPU_LABEL_FIELDS = (["vendor"], ["class", "vendor"])


def _check_discovery(context: CheckContext) -> Iterator[Problem]:
    """Yield problems of Node Feature Discovery's configuration by which nodes lose the labels that the stack needs."""
    worker, master = ("nfd", "worker_config"), ("nfd", "master_config")
    pci: KeyPath = (*worker, "sources", "pci")
    for path in ((*worker, "sources"), pci):
        item = context.document.item(path)
        if item is not None and not isinstance(item.value, dict):
            yield context.error("GP188", path, f"{path[-1]} is no mapping of keys to values.", "Write a mapping.")
    custom: KeyPath = (*worker, "sources", "custom")
    if not isinstance(context.mapping_at(custom[:-1]).get("custom", []), list):
        yield context.error("GP188", custom, "custom is no list of rules.", "Write lines that begin with a dash.")
    classes = context.mapping_at(pci).get("deviceClassWhitelist")
    if isinstance(classes, list) and not all(
        any(each.startswith(str(one)) for one in classes) for each in _GPU_CLASSES
    ):
        what = "The worker would not report every GPU: their PCI classes are 0300 and 0302."
        yield context.error("GP188", (*pci, "deviceClassWhitelist"), what, "Add 0300 and 0302, or 03.")
    fields = context.mapping_at(pci).get("deviceLabelFields")
    if fields is not None and fields not in _GPU_LABEL_FIELDS:
        what = "The labels of GPUs would have other names than the stack looks for."
        yield context.error("GP188", (*pci, "deviceLabelFields"), what, "Write [vendor] or [class, vendor].")
    names = context.mapping_at(master).get("extraLabelNs")
    if names is not None and not (isinstance(names, list) and "nvidia.com" in names):
        what = "The master would drop the labels of GPU Feature Discovery, which begin with nvidia.com."
        yield context.error("GP188", (*master, "extraLabelNs"), what, "Add nvidia.com to the list.")


def _check_drop_in(context: CheckContext) -> Iterator[Problem]:
    """Yield a drop-in of the toolkit that the configuration of containerd could not import."""
    rule, name = schema()["$defs"]["host_path"], "RUNTIME_DROP_IN_CONFIG"
    drop_in = context.mapping_at(("toolkit", "env")).get(name)
    if isinstance(drop_in, str) and drop_in and not re.fullmatch(rule["pattern"], drop_in):
        what = f"{rule['patternErrorMessage']}."
        yield context.error("GP124", ("toolkit", "env", name), what, "Correct it, or remove the line.")
