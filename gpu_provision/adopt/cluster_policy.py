"""Settings of a ClusterPolicy as settings of an inventory; and those that an inventory does not have.

Field names and defaults are those of the GPU Operator's custom resource. Every field is either carried over, known to
be of no effect, or reported: nothing is lost in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

Path = tuple[str, ...]
Spec = Mapping[str, Any]


class SettingMapping(NamedTuple):
    """A field, the setting that it becomes, and how its value is written there."""

    field: str
    setting: str
    write: Callable[[Any], Any] = lambda value: value


class UnmappedField(NamedTuple):
    """A field, or all below it, that no setting takes.

    Attributes:
        harmless: Values with which it says nothing that we do not do as well; None for any value.
        meaning: What it does otherwise.
        is_needed: Whether workloads may depend on that.
    """

    field: str
    harmless: tuple[Any, ...] | None
    meaning: str = ""
    is_needed: bool = False


@dataclass(frozen=True, slots=True)
class UnsupportedSetting:
    """Something that the ClusterPolicy says and an inventory cannot."""

    path: str
    value: str
    meaning: str
    is_needed: bool


def _variables(entries: Any) -> dict[str, str]:
    return {entry["name"]: str(entry.get("value", "")) for entry in entries or ()}


def _number(value: Any) -> Any:
    return int(value) if str(value).isdigit() else value


def _after_init(arguments: Any) -> list[str]:
    """A ClusterPolicy's arguments replace ``init``; an inventory's follow it."""
    found = list(arguments)
    return found[1:] if found[:1] == ["init"] else found


# What the chart's template adds to the labels that the user asks for (`gpu-operator.operand-labels`).
_CHARTS_LABELS: Mapping[str, str | None] = {"helm.sh/chart": None, "app.kubernetes.io/managed-by": "gpu-operator"}

# Values of older charts, such as 25.3. As the user's, this DEVICE_LIST_STRATEGY would turn CDI off.
_CHARTS_VARIABLES: Mapping[str, Mapping[str, str]] = {
    "devicePlugin": {
        "PASS_DEVICE_SPECS": "true",
        "FAIL_ON_INIT_ERROR": "true",
        "DEVICE_LIST_STRATEGY": "envvar",
        "DEVICE_ID_STRATEGY": "uuid",
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "all",
    },
    "gfd": {"GFD_SLEEP_INTERVAL": "60s", "GFD_FAIL_ON_INIT_ERROR": "true"},
    "dcgmExporter": {
        "DCGM_EXPORTER_LISTEN": ":9400",
        "DCGM_EXPORTER_KUBERNETES": "true",
        "DCGM_EXPORTER_COLLECTORS": "/etc/dcgm-exporter/dcp-metrics-included.csv",
    },
}
_WITH_WORKLOAD = tuple([{"name": "WITH_WORKLOAD", "value": value}] for value in ("true", "false"))


def _without(defaults: Mapping[str, str | None], said: Mapping[str, str]) -> dict[str, str]:
    """Return the entries that are not the chart's own; a default of None stands for any value."""
    return {key: value for key, value in said.items() if key not in defaults or defaults[key] not in {value, None}}


def _users_labels(said: Any) -> dict[str, str]:
    return _without(_CHARTS_LABELS, said)


def _users_variables(section: str, entries: Any) -> dict[str, str]:
    return _without(_CHARTS_VARIABLES.get(section, {}), _variables(entries))


OPERANDS: Mapping[str, str] = {
    "validator": "validator",
    "driver": "driver",
    "toolkit": "toolkit",
    "devicePlugin": "device_plugin",
    "gfd": "gfd",
    "dcgm": "dcgm",
    "dcgmExporter": "dcgm_exporter",
}
"""Section of a ClusterPolicy -> component."""

_EVERY_OPERAND: tuple[tuple[str, str, Callable[[Any], Any]], ...] = (
    ("imagePullPolicy", "image_pull_policy", str),
    ("imagePullSecrets", "image_pull_secrets", list),
    ("resources", "resources", dict),
)

_PROBE = (
    ("initialDelaySeconds", "initial_delay_seconds"),
    ("periodSeconds", "period_seconds"),
    ("timeoutSeconds", "timeout_seconds"),
    ("failureThreshold", "failure_threshold"),
)
_UPGRADES = (
    ("autoUpgrade", "auto_upgrade"),
    ("maxParallelUpgrades", "max_parallel_upgrades"),
    ("waitForCompletion.podSelector", "wait_for_completion.pod_selector"),
    ("waitForCompletion.timeoutSeconds", "wait_for_completion.timeout_seconds"),
    ("podDeletion.force", "pod_deletion.force"),
    ("podDeletion.timeoutSeconds", "pod_deletion.timeout_seconds"),
    ("podDeletion.deleteEmptyDir", "pod_deletion.delete_empty_dir"),
    ("drain.enable", "drain.enable"),
    ("drain.force", "drain.force"),
    ("drain.podSelector", "drain.pod_selector"),
    ("drain.timeoutSeconds", "drain.timeout_seconds"),
    ("drain.deleteEmptyDir", "drain.delete_empty_dir"),
)

ROWS: tuple[SettingMapping, ...] = (
    *(
        SettingMapping(f"{section}.{field}", f"{component}.{setting}", write)
        for section, component in OPERANDS.items()
        for field, setting, write in _EVERY_OPERAND
    ),
    *(
        SettingMapping(f"{section}.env", f"{component}.env", partial(_users_variables, section))
        for section, component in OPERANDS.items()
    ),
    *(
        SettingMapping(f"{section}.args", f"{component}.args", _after_init if section == "driver" else list)
        for section, component in OPERANDS.items()
    ),
    *(
        SettingMapping(f"{section}.enabled", f"{component}.enabled")
        for section, component in OPERANDS.items()
        if section != "validator"
    ),
    SettingMapping("driver.kernelModuleType", "driver.kernel_module_type"),
    SettingMapping("driver.repoConfig.configMapName", "driver.repo_config"),
    SettingMapping("driver.certConfig.name", "driver.cert_config"),
    SettingMapping("driver.kernelModuleConfig.name", "driver.kernel_module_config"),
    SettingMapping("driver.licensingConfig.secretName", "driver.licensing_config"),
    *(SettingMapping(f"driver.startupProbe.{field}", f"driver.startup_probe.{setting}") for field, setting in _PROBE),
    *(
        SettingMapping(f"driver.upgradePolicy.{field}", f"driver.upgrade_policy.{setting}")
        for field, setting in _UPGRADES
    ),
    SettingMapping("driver.upgradePolicy.maxUnavailable", "driver.upgrade_policy.max_unavailable", _number),
    SettingMapping("toolkit.installDir", "toolkit.install_dir"),
    SettingMapping("devicePlugin.config.name", "device_plugin.config_name"),
    SettingMapping("devicePlugin.config.default", "device_plugin.config_default"),
    SettingMapping("dcgmExporter.config.name", "dcgm_exporter.metrics_config"),
    SettingMapping("dcgmExporter.service.type", "dcgm_exporter.service_type"),
    SettingMapping("dcgmExporter.serviceMonitor.enabled", "dcgm_exporter.service_monitor.enabled"),
    SettingMapping("dcgmExporter.serviceMonitor.interval", "dcgm_exporter.service_monitor.interval"),
    SettingMapping("dcgmExporter.serviceMonitor.scrapeTimeout", "dcgm_exporter.service_monitor.scrape_timeout"),
    SettingMapping("dcgmExporter.serviceMonitor.honorLabels", "dcgm_exporter.service_monitor.honor_labels"),
    SettingMapping("dcgmExporter.serviceMonitor.additionalLabels", "dcgm_exporter.service_monitor.additional_labels"),
    SettingMapping("daemonsets.labels", "daemonsets.labels", _users_labels),
    SettingMapping("daemonsets.annotations", "daemonsets.annotations", dict),
    SettingMapping("daemonsets.tolerations", "daemonsets.tolerations", list),
    SettingMapping("daemonsets.priorityClassName", "daemonsets.priority_class_name"),
    SettingMapping("daemonsets.rollingUpdate.maxUnavailable", "daemonsets.max_unavailable", _number),
    SettingMapping("cdi.enabled", "cdi.enabled"),
    SettingMapping("mig.strategy", "mig.strategy"),
    SettingMapping("operator.runtimeClass", "operator.runtime_class"),
)
"""Every field that is carried over; images are, too, see `images`."""

_OFF = (False, "", None)

OTHERS: tuple[UnmappedField, ...] = (
    UnmappedField("driver.rdma.enabled", _OFF, "GPUDirect RDMA: the driver pod loads nvidia-peermem", is_needed=True),
    UnmappedField("driver.rdma", None),
    UnmappedField("driver.usePrecompiled", _OFF, "precompiled drivers, a DaemonSet per kernel", is_needed=True),
    UnmappedField("driver.useNvidiaDriverCRD", _OFF, "drivers come of NVIDIADriver resources", is_needed=True),
    UnmappedField("driver.virtualTopology.config", _OFF, "a topology of virtual GPUs", is_needed=True),
    UnmappedField(
        "driver.licensingConfig.configMapName", _OFF, "a licence in a ConfigMap; it belongs in a Secret", is_needed=True
    ),
    UnmappedField("driver.licensingConfig", None),
    UnmappedField("driver.secretEnv", _OFF, "variables of the driver out of a Secret", is_needed=True),
    UnmappedField("driver.driverType", ("", "gpu", None), "a driver for virtual GPUs", is_needed=True),
    UnmappedField("driver.livenessProbe", ({}, None), "a probe that the operator itself cannot set"),
    UnmappedField("driver.readinessProbe", ({}, None), "a probe that the operator itself cannot set"),
    UnmappedField("driver.useOpenKernelModules", None),
    UnmappedField("driver.manager.env", ([], None), "settings of the driver manager; ours follow from upgrade_policy"),
    UnmappedField("driver.manager.imagePullPolicy", None),
    UnmappedField("driver.manager.imagePullSecrets", None),
    UnmappedField("gds.enabled", _OFF, "GPUDirect Storage: a container beside the driver", is_needed=True),
    UnmappedField("gds", None),
    UnmappedField("gdrcopy.enabled", _OFF, "GDRCopy: a container beside the driver", is_needed=True),
    UnmappedField("gdrcopy", None),
    UnmappedField("cdi.nriPluginEnabled", _OFF, "GPUs are injected by an NRI plugin", is_needed=True),
    UnmappedField("cdi.default", None),
    UnmappedField("sandboxWorkloads.enabled", _OFF, "virtual machines get GPUs", is_needed=True),
    UnmappedField("sandboxWorkloads", None),
    UnmappedField("hostPaths.rootFS", ("", "/", None), "another root of the hosts", is_needed=True),
    UnmappedField(
        "hostPaths.driverInstallDir", ("", "/run/nvidia/driver", None), "another root of drivers", is_needed=True
    ),
    UnmappedField(
        "hostPaths.kubeletRootDir", ("", "/var/lib/kubelet", None), "another directory of kubelets", is_needed=True
    ),
    UnmappedField(
        "operator.use_ocp_driver_toolkit", _OFF, "drivers are built by OpenShift's Driver Toolkit", is_needed=True
    ),
    UnmappedField("operator", None),
    UnmappedField("validator.plugin.env", ([], None, *_WITH_WORKLOAD), "variables of one validation"),
    UnmappedField("daemonsets.updateStrategy", ("", "RollingUpdate", None), "operands are replaced only when deleted"),
    UnmappedField("daemonsets.podSecurityContext", ({}, None), "a security context of all pods"),
    UnmappedField("devicePlugin.mps.root", ("", "/run/nvidia/mps", None), "another directory of MPS", is_needed=True),
    UnmappedField("devicePlugin.config", None),
    UnmappedField("dcgm.hostPort", None),
    UnmappedField(
        "dcgmExporter.service.internalTrafficPolicy", ("", "Cluster", None), "a Service that stays on its node"
    ),
    UnmappedField("dcgmExporter.serviceMonitor.relabelings", ([], None), "relabelings of metrics"),
    UnmappedField("migManager.enabled", _OFF, "the MIG manager; its DaemonSet stays as it is, without updates"),
    UnmappedField("migManager", None),
    UnmappedField("nodeStatusExporter.enabled", _OFF, "its DaemonSet stays as it is, without updates"),
    UnmappedField("nodeStatusExporter", None),
    # These do nothing unless sandboxWorkloads is on; Kata's is not served any more.
    *(
        UnmappedField(name, None)
        for name in (
            "vgpuManager",
            "vgpuDeviceManager",
            "vfioManager",
            "sandboxDevicePlugin",
            "kataSandboxDevicePlugin",
            "kataManager",
            "ccManager",
        )
    ),
    UnmappedField("psp", None),
    UnmappedField("psa", None),
)
"""Fields that no setting takes; the first that fits counts."""

_NOTHING: tuple[Any, ...] = (None, "", {}, [])
_IMAGE = ("repository", "image", "version")
_IMAGES = frozenset(f"{section}.{part}" for section in (*OPERANDS, "driver.manager") for part in _IMAGE)
_ROWS: Mapping[str, SettingMapping] = {row.field: row for row in ROWS}


def settings(spec: Spec) -> dict[str, Any]:
    """Return everything that a ClusterPolicy's spec says and an inventory can say, but for images: nested settings."""
    found: dict[str, Any] = {}
    for row in ROWS:
        value = _at(spec, row.field)
        if value not in _NOTHING and (written := row.write(value)) not in _NOTHING:
            _put(found, row.setting, written)
    return found


def images(spec: Spec) -> dict[str, dict[str, str]]:
    """Return the images that a ClusterPolicy names, by component; ``driver_manager`` is one of them.

    A section without a version says nothing: its image then stands in the operator's own environment.
    """
    sections = {**OPERANDS, "driver.manager": "driver_manager"}
    found = {component: _at(spec, section) or {} for section, component in sections.items()}
    return {
        component: {part: said[part] for part in _IMAGE if said.get(part)}
        for component, said in found.items()
        if said.get("version")
    }


def unsupported_settings(spec: Spec) -> Iterator[UnsupportedSetting]:
    """Yield what a ClusterPolicy's spec says and an inventory cannot."""
    for path, value in _leaves(spec, ()):
        if _is_carried_over(path):
            continue
        text = ".".join(path)
        other = next((each for each in OTHERS if _is_below(text, each.field)), None)
        if other is None:
            if value not in (None, "", False, {}, []):
                yield UnsupportedSetting(text, _as_written(value), "not known here", is_needed=False)
        elif other.harmless is not None and value not in other.harmless:
            yield UnsupportedSetting(text, _as_written(value), other.meaning, is_needed=other.is_needed)


def _as_written(value: Any) -> str:
    """Return a value as people write it in a ClusterPolicy."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_carried_over(path: Path) -> bool:
    return any(".".join(path[:length]) in _ROWS.keys() | _IMAGES for length in range(1, len(path) + 1))


def _is_below(path: str, field: str) -> bool:
    return path == field or path.startswith(f"{field}.")


def _leaves(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, Mapping) and value:
        for key, below in value.items():
            yield from _leaves(below, (*path, key))
    else:
        yield path, value


def _at(value: Any, path: str) -> Any:
    for step in path.split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


def _put(settings: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for step in parents:
        settings = settings.setdefault(step, {})
    settings[last] = value
