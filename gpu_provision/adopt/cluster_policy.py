"""What a ClusterPolicy says, in the words of an inventory; and what an inventory has no words for.

Field names and defaults are those of the GPU Operator's custom resource. Every field is either carried over, known to
be of no effect, or told: nothing is lost in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from functools import partial
from typing import Any, NamedTuple, get_type_hints

from gpu_provision.inventory.resolve import section_type
from gpu_provision.model.settings import camel_case, reference_of, settings_of

Path = tuple[str, ...]
Spec = Mapping[str, Any]


class SettingMapping(NamedTuple):
    """A field, the setting that it becomes, and how its value is written there."""

    field: str
    setting: str
    write: Callable[[Any], Any]


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
    camel_case(name): name
    for name in ("validator", "driver", "toolkit", "device_plugin", "gfd", "dcgm", "dcgm_exporter")
}
"""Section of a ClusterPolicy -> component."""

_SECTIONS = (*OPERANDS.values(), "daemonsets", "cdi", "mig", "operator")
_WRITERS: Mapping[str, Callable[[Any], Any]] = {
    "daemonsets.labels": _users_labels,
    "daemonsets.max_unavailable": _number,
    "driver.args": _after_init,
    "driver.upgrade_policy.max_unavailable": _number,
    **{f"{name}.env": partial(_users_variables, section) for section, name in OPERANDS.items()},
}
"""Setting -> how a value is written there, if otherwise than in a ClusterPolicy."""


def _rows(record: type[Any], field: str, setting: str) -> Iterator[SettingMapping]:
    """Yield the rows of a section, by the names that its settings have in the reference."""
    kinds = get_type_hints(record)
    for each in settings_of(record):
        reference, here = reference_of(each), f"{setting}.{each.name}"
        if reference is None or each.metadata["image"]:
            continue
        if is_dataclass(kinds[each.name]):
            yield from _rows(kinds[each.name], f"{field}.{reference}", here)
        else:
            yield SettingMapping(f"{field}.{reference}", here, _WRITERS.get(here, lambda value: value))


ROWS: tuple[SettingMapping, ...] = tuple(
    row for name in _SECTIONS for row in _rows(section_type(name), camel_case(name), name)
)
"""Every field that is carried over; images are, too, see `images`."""

# Fields, or all below them, that no setting takes, and what they do. Workloads may depend on these.
_NEEDED: Mapping[str, str] = {
    "driver.rdma.enabled": "GPUDirect RDMA: the driver pod loads nvidia-peermem",
    "driver.usePrecompiled": "precompiled drivers, a DaemonSet per kernel",
    "driver.useNvidiaDriverCRD": "drivers come of NVIDIADriver resources",
    "driver.virtualTopology.config": "a topology of virtual GPUs",
    "driver.licensingConfig.configMapName": "a licence in a ConfigMap; it belongs in a Secret",
    "driver.secretEnv": "variables of the driver out of a Secret",
    "driver.driverType": "a driver for virtual GPUs",
    "gds.enabled": "GPUDirect Storage: a container beside the driver",
    "gdrcopy.enabled": "GDRCopy: a container beside the driver",
    "cdi.nriPluginEnabled": "GPUs are injected by an NRI plugin",
    "sandboxWorkloads.enabled": "virtual machines get GPUs",
    "hostPaths.rootFS": "another root of the hosts",
    "hostPaths.driverInstallDir": "another root of drivers",
    "hostPaths.kubeletRootDir": "another directory of kubelets",
    "operator.use_ocp_driver_toolkit": "drivers are built by OpenShift's Driver Toolkit",
    "devicePlugin.mps.root": "another directory of MPS",
}
_NOT_NEEDED: Mapping[str, str] = {
    "driver.livenessProbe": "a probe that the operator itself cannot set",
    "driver.readinessProbe": "a probe that the operator itself cannot set",
    "driver.manager.env": "settings of the driver manager; ours follow from upgrade_policy",
    "validator.plugin.env": "variables of one validation",
    "daemonsets.updateStrategy": "operands are replaced only when deleted",
    "daemonsets.podSecurityContext": "a security context of all pods",
    "dcgmExporter.service.internalTrafficPolicy": "a Service that stays on its node",
    "dcgmExporter.serviceMonitor.relabelings": "relabelings of metrics",
    "migManager.enabled": "the MIG manager; its DaemonSet stays as it is, without updates",
    "nodeStatusExporter.enabled": "its DaemonSet stays as it is, without updates",
}
# Their values that change nothing, beside empty ones.
_DEFAULTS: Mapping[str, tuple[Any, ...]] = {
    "driver.driverType": ("gpu",),
    "hostPaths.rootFS": ("/",),
    "hostPaths.driverInstallDir": ("/run/nvidia/driver",),
    "hostPaths.kubeletRootDir": ("/var/lib/kubelet",),
    "devicePlugin.mps.root": ("/run/nvidia/mps",),
    "validator.plugin.env": _WITH_WORKLOAD,
    "daemonsets.updateStrategy": ("RollingUpdate",),
    "dcgmExporter.service.internalTrafficPolicy": ("Cluster",),
}
# What does nothing, or nothing beside the fields above.
_IGNORED = (
    *("driver.rdma", "driver.licensingConfig", "driver.useOpenKernelModules"),
    *("driver.manager.imagePullPolicy", "driver.manager.imagePullSecrets"),
    *("gds", "gdrcopy", "cdi.default", "operator", "devicePlugin.config", "dcgm.hostPort"),
    *("migManager", "nodeStatusExporter", "psp", "psa", "sandboxWorkloads"),
    # Without effect unless sandboxWorkloads is on; Kata's is not served any more.
    *("vgpuManager", "vgpuDeviceManager", "vfioManager", "sandboxDevicePlugin"),
    *("kataSandboxDevicePlugin", "kataManager", "ccManager"),
)

_NOTHING: tuple[Any, ...] = (None, "", {}, [])
_IMAGE = ("repository", "image", "version")
_CARRIED_OVER = frozenset(
    [*(row.field for row in ROWS), *(f"{each}.{part}" for each in (*OPERANDS, "driver.manager") for part in _IMAGE)]
)


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
        if any(".".join(path[:length]) in _CARRIED_OVER for length in range(1, len(path) + 1)):
            continue
        text, written = ".".join(path), str(value).lower() if isinstance(value, bool) else str(value)
        fields = (*_NEEDED, *_NOT_NEEDED, *_IGNORED)
        field = next((each for each in fields if f"{text}.".startswith(f"{each}.")), "")
        is_default = value is False or value in (*_NOTHING, *_DEFAULTS.get(field, ()))
        if field not in _IGNORED and not is_default:
            meaning = _NEEDED.get(field) or _NOT_NEEDED.get(field, "not known here")
            yield UnsupportedSetting(text, written, meaning, is_needed=field in _NEEDED)


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
