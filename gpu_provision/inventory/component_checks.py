"""Checks the settings of components: what contradicts another one, and what a component would not start with."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from gpu_provision.inventory.checks import CheckContext
from gpu_provision.inventory.discovery import check_discovery
from gpu_provision.inventory.document import KeyPath, Problem, format_path
from gpu_provision.inventory.json_schema import schema
from gpu_provision.inventory.mig import check_mig
from gpu_provision.inventory.plugin_configs import check_plugin_configs
from gpu_provision.model.driver_specs import DriverSpec
from gpu_provision.model.monitoring_specs import ServiceMonitorSpec
from gpu_provision.model.operand_specs import DRIVER_CONTAINER_ROOT
from gpu_provision.model.text import join_or

_METRIC_FIELDS = 3
_METRIC_TYPES = ("counter", "gauge", "histogram", "label", "summary")
_CSV_FIELD = r'(?:"(?:[^"]|"")*"|[^",]*)'
_CSV_LINE = re.compile(f"{_CSV_FIELD}(?:,{_CSV_FIELD})*")
_CSV_FIELDS = re.compile(f"(?:^|,)({_CSV_FIELD})")


def check_components(context: CheckContext) -> Iterator[Problem]:
    """Yield settings of components that contradict each other, or that a component does not start with."""
    yield from _check_toolkit(context)
    yield from _check_drop_in(context)
    yield from _check_driver_directory(context)
    yield from _check_nri(context)
    yield from _check_validations(context)
    yield from _check_digest(context)
    yield from _check_monitors(context)
    yield from _check_config_maps(context)
    yield from _check_licences(context)
    for key, (check, parts) in _CONFIGURED.items():
        idle = [] if _is_on(context, key) else [part for part in parts if _is_declared(context, (key, *part))]
        if not idle:
            yield from check(context)
        elif context.is_complete:
            names = join_or(format_path(part) for part in idle).replace(" or ", " and ")
            has, it = ("has", "it") if len(idle) == 1 else ("have", "them")
            what = f"{key} is off{_WHY_OFF.get(key, '')}, so its {names} {has} no effect."
            yield context.warning("GP145", (key, *idle[0]), what, f"Set {key}.enabled: true, or remove {it}.")


def _check_toolkit(context: CheckContext) -> Iterator[Problem]:
    """Yield a problem if the toolkit is off and drivers are containers, which a host's own toolkit does not find."""
    if not _lacks_toolkit(context):
        return
    specs = context.inventory.specs
    able = ("device_plugin", "gfd", "dcgm", "dcgm_exporter")
    needing = [key for key in able if getattr(specs, key).enabled] or ["validator"]
    who = join_or(needing).replace(" or ", " and ")
    what = f"{who} need{'' if len(needing) > 1 else 's'} toolkit, which is off while the driver is a container."
    fix = "Set toolkit.enabled: true, or driver.enabled: false if the hosts have both driver and toolkit."
    yield context.error("GP160", ("toolkit", "enabled"), what, fix)


def _lacks_toolkit(context: CheckContext) -> bool:
    has_container = any(pool.has_driver_container for pool in context.inventory.pools.values())
    return has_container and not context.inventory.specs.toolkit.enabled


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
    has_no_toolkit = not specs.toolkit.enabled and not _lacks_toolkit(context)  # else that is a finding already
    needs = (
        ("CDI, which is off", "cdi.enabled: true", not specs.cdi_enabled),
        ("the toolkit, which is off", "toolkit.enabled: true", has_no_toolkit),
        (f"a toolkit since 1.19, not {specs.toolkit.image.version}", "release: 26.3.0 or newer", is_old),
    )
    lacking = [(need, setting) for need, setting, is_lacking in needs if is_lacking]
    if lacking:
        what = f"The NRI plugin needs {'; '.join(need for need, _ in lacking)}."
        fix = f"Set {', '.join(setting for _, setting in lacking)}; or remove this line."
        yield context.error("GP160", path, what, fix)


def _check_validations(context: CheckContext) -> Iterator[Problem]:
    """Yield a problem for each validation that would start pods: the validator has no permission to."""
    for name in ("cuda", "plugin"):
        path: KeyPath = ("validator", name, "env")
        if str(context.mapping_at(path).get("WITH_WORKLOAD", "")).lower() == "true":
            what = "The validator starts no pods: a run validates the node with its own vectorAdd."
            yield context.error("GP186", (*path, "WITH_WORKLOAD"), what, "Remove the line.")


_DIGEST = "DRIVER_CONFIG_DIGEST"


def _check_digest(context: CheckContext) -> Iterator[Problem]:
    """Yield variables of a name that the tool gives to the driver's containers, whatever they are."""
    drivers: list[KeyPath] = [("driver",), *(("pools", name, "driver") for name in context.pools)]
    for path in ((*driver, *holder, "env") for driver in drivers for holder in ((), ("manager",))):
        if _DIGEST in context.mapping_at(path):
            what = f"{_DIGEST} is the tool's own: by it the driver container knows whether it is installed already."
            yield context.error("GP186", (*path, _DIGEST), what, "Remove the line.")


def _check_metrics(context: CheckContext) -> Iterator[Problem]:
    """Yield problems of the exporter's metrics."""
    path: KeyPath = ("dcgm_exporter", "config")
    section, short = context.mapping_at(path), context.mapping_at(("dcgm_exporter",)).get("metrics_config")
    if short and section.get("name"):
        what = "metrics_config is the short form of config.name; both are set."
        yield context.error("GP186", ("dcgm_exporter", "metrics_config"), what, "Remove the line.")
    for number, line in enumerate(str(section.get("data", "")).splitlines(), start=1):
        if problem := _metric_problem(line):
            what = f"Line {number} of the metrics {problem[0]}, so the exporter would not start: {line[:80]}"
            yield context.error("GP187", (*path, "data"), what, problem[1])
            return


def _metric_problem(line: str) -> tuple[str, str] | None:
    """Return what is wrong with a line of metrics, and what to write instead; None if it is right.

    As dcgm-exporter reads it, whose reader takes a quote only as the first character of a field:
    https://github.com/NVIDIA/dcgm-exporter, internal/pkg/counters/counter_config.go.
    """
    if not line or line.startswith("#"):
        return None
    if not _CSV_LINE.fullmatch(line):
        return (
            "has a quote that does not begin a field, or is not closed",
            'Write the quotes around a whole field, without a blank before them: DCGM_FI_DEV_GPU_UTIL,gauge,"in %".',
        )
    fields = [each.strip('" ') for each in _CSV_FIELDS.findall(line)]
    if len(fields) != _METRIC_FIELDS:
        example = "DCGM_FI_DEV_GPU_UTIL, gauge, GPU utilization"
        return f"has {len(fields)} fields", f"Write the DCGM field, the type and the help: {example}."
    if fields[1] not in _METRIC_TYPES and not fields[0].startswith("DCGM_EXP_"):
        return f"has the type {fields[1]}", f"Write the type {join_or(_METRIC_TYPES)}."
    return None


_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def _seconds_of(duration: str) -> float:
    return sum(int(number) * _SECONDS[unit] for number, unit in re.findall(r"([0-9]+)(ms|s|m|h)", duration))


def _check_monitors(context: CheckContext) -> Iterator[Problem]:
    """Yield ServiceMonitors that the Prometheus Operator refuses."""
    specs = context.inventory.specs
    monitors: dict[KeyPath, ServiceMonitorSpec] = {("operator", "metrics"): specs.operator_metrics.service_monitor}
    if specs.dcgm_exporter.enabled:
        monitors["dcgm_exporter",] = specs.dcgm_exporter.service_monitor
    for holder, monitor in monitors.items():
        timeout, interval = ((*holder, "service_monitor", key) for key in ("scrape_timeout", "interval"))
        is_known = not (context.is_refused(timeout) or context.is_refused(interval))
        if is_known and monitor.enabled and _seconds_of(monitor.scrape_timeout) > _seconds_of(monitor.interval):
            what = f"The scrape_timeout {monitor.scrape_timeout} is longer than the interval {monitor.interval}."
            place = context.first_declared(timeout, interval)
            yield context.error("GP186", place, what, "Write a shorter scrape_timeout, or a longer interval.")


_RECORDS = ("history", "validations")
"""Ends of the names of ConfigMaps that a run writes, besides the one that has the name of the stack."""


def _check_config_maps(context: CheckContext) -> Iterator[Problem]:
    """Yield ConfigMaps of the inventory that have the name of another one, or of a record of the stack."""
    first: dict[str, str] = {}
    for section, short in (("device_plugin", "config_name"), ("mig_manager", ""), ("dcgm_exporter", "metrics_config")):
        config = context.mapping_at((section, "config"))
        name = config.get("name") or context.mapping_at((section,)).get(short)
        if not config.get("data") or not name or not _is_on(context, section):
            continue
        other, stack = first.setdefault(name, section), context.inventory.name
        place = context.first_declared((section, "config", "name"), (section, short))
        if name in {stack, *(f"{stack}-{record}" for record in _RECORDS)}:
            what = f"{name} is the name of a ConfigMap with the stack's own records."
            yield context.error("GP186", place, what, "Give it another name, or remove this line.")
        elif other != section:
            what = f"{other}.config and {section}.config make ConfigMaps of the same name."
            yield context.error("GP186", place, what, "Give one of them another name, or remove this line.")


def _check_licences(context: CheckContext) -> Iterator[Problem]:
    """Yield settings of a licence where no driver has one."""
    specs, pools = context.inventory.specs, context.inventory.pools
    drivers: dict[KeyPath, list[DriverSpec]] = {("driver",): [specs.driver, *(pool.driver for pool in pools.values())]}
    drivers |= {("pools", name, "driver"): [pool.driver] for name, pool in pools.items()}
    for path, having in drivers.items():
        place: KeyPath = (*path, "licensing_nls_enabled")
        is_off = context.mapping_at(path).get("licensing_nls_enabled") is False  # a GPUStack has the default
        if context.is_complete and is_off and not any(each.licensing_config for each in having):
            what = "licensing_nls_enabled has no effect without licensing_config."
            fix = "Set licensing_config to the Secret of the licence, or remove the line."
            yield context.warning("GP145", place, what, fix)


def _check_drop_in(context: CheckContext) -> Iterator[Problem]:
    """Yield a drop-in of the toolkit that the configuration of containerd could not import."""
    rule, name = schema()["$defs"]["host_path"], "RUNTIME_DROP_IN_CONFIG"
    drop_in = context.mapping_at(("toolkit", "env")).get(name)
    if isinstance(drop_in, str) and drop_in and not re.fullmatch(rule["pattern"], drop_in):
        what = f"{rule['patternErrorMessage']}."
        yield context.error("GP124", ("toolkit", "env", name), what, "Correct it, or remove the line.")


def _is_on(context: CheckContext, key: str) -> bool:
    """Return whether a component runs; the MIG manager does if a pool has MIG as well."""
    return getattr(context.inventory.specs, key).enabled or (
        key == "mig_manager" and any(pool.mig for pool in context.inventory.pools.values())
    )


def _is_declared(context: CheckContext, path: KeyPath) -> bool:
    """Return whether a setting has a value; a GPUStack has the defaults of all settings, which are empty or off."""
    value = context.mapping_at(path[:-1]).get(str(path[-1]))
    return bool(any(value.values()) and value.get("enabled", True) if isinstance(value, dict) else value)


_WHY_OFF = {"mig_manager": " while no pool has mig"}

_CONFIGURED: dict[str, tuple[Callable[[CheckContext], Iterator[Problem]], tuple[KeyPath, ...]]] = {
    "nfd": (check_discovery, (("worker_config",), ("master_config",))),
    "device_plugin": (check_plugin_configs, (("config", "data"),)),
    "mig_manager": (check_mig, (("config",),)),
    "dcgm_exporter": (_check_metrics, (("config",), ("metrics_config",), ("prometheus_rule",), ("dashboard",))),
}
"""Component -> check of its configuration, and settings that nothing reads while it is off.

Other settings of a component that is off wait for the day when it is on, without a finding.
"""
