"""Node Feature Discovery's worker: reads the machine through its mounts and publishes what it found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from gpu_provision.sandbox.nodes.behaviours.behaviour import Behaviour
from gpu_provision.sandbox.nodes.behaviours.node_features import PREFIX, differs, node_feature, publish
from gpu_provision.sandbox.nodes.container import Container
from gpu_provision.sandbox.nodes.machine import PciDevice

_CONFIG = "/etc/kubernetes/node-feature-discovery/nfd-worker.conf"
_FEATURES_D = "/etc/kubernetes/node-feature-discovery/features.d"
_CLASSES = ("03", "0b40", "12")
_FIELDS = ("class", "vendor")
_CPUID = ("ADX", "AESNI", "AVX", "AVX2", "FMA3")


async def _work(container: Container) -> int:
    node = container.env.get("NODE_NAME", "")
    if not node:
        container.log("unable to get node name: environment variable NODE_NAME is not set")
        return 1
    config = _config(container)
    container.log("Node Feature Discovery Worker", f'configuration file "{_CONFIG}" parsed')
    container.up()
    machine = container.machine
    while True:
        await machine.until(lambda: machine.faults.of("nfd-silent", machine.name) is None)
        labels, features = discover(container, config)
        await publish(container, node_feature(node, container, labels, features))
        await machine.until(differs(lambda: discover(container, config)[0], labels))


def _config(container: Container) -> Mapping[str, Any]:
    try:
        parsed = yaml.safe_load(container.files.read(_CONFIG))
    except yaml.YAMLError as error:
        container.log(f"failed to parse config file: {error}")
        return {}
    return parsed if isinstance(parsed, dict) else {}


def discover(container: Container, config: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the labels and the raw features of a machine, as far as the container's mounts show them."""
    found = {**_system(container), **_kernel(container), **_cpu(), **_local(container)}
    devices = container.machine.pci_devices() if container.files.host_path("/host-sys/bus/pci") else ()
    pci = ((config.get("sources") or {}).get("pci")) or {}
    classes = pci.get("deviceClassWhitelist") or _CLASSES
    shown = [device for device in devices if device.pci_class.startswith(tuple(map(str, classes)))]
    found |= {f"pci-{_name(device, pci.get('deviceLabelFields') or _FIELDS)}.present": "true" for device in shown}
    labels = {name if "/" in name else f"{PREFIX}{name}": value for name, value in found.items()}
    return labels, _features(shown, found)


def _name(device: PciDevice, fields: Sequence[str]) -> str:
    values = {"class": device.pci_class, "vendor": device.vendor, "device": device.device}
    return "_".join(values[field] for field in fields if field in values)


def _features(devices: Sequence[PciDevice], found: Mapping[str, str]) -> dict[str, Any]:
    elements = [{"attributes": {"class": d.pci_class, "vendor": d.vendor, "device": d.device}} for d in devices]
    kernel = {
        key.removeprefix("kernel-version."): value for key, value in found.items() if key.startswith("kernel-version.")
    }
    release = {
        key.removeprefix("system-os_release."): value
        for key, value in found.items()
        if key.startswith("system-os_release.")
    }
    return {
        "attributes": {"kernel.version": {"elements": kernel}, "system.osrelease": {"elements": release}},
        "flags": {},
        "instances": {"pci.device": {"elements": elements}},
    }


def _system(container: Container) -> dict[str, str]:
    if container.files.host_path("/host-etc/os-release") != "/etc/os-release":
        return {}
    spec = container.machine.spec
    major, _, minor = spec.os_version.partition(".")
    return {
        "system-os_release.ID": spec.os_id,
        "system-os_release.VERSION_ID": spec.os_version,
        "system-os_release.VERSION_ID.major": major,
        **({"system-os_release.VERSION_ID.minor": minor} if minor else {}),
    }


def _kernel(container: Container) -> dict[str, str]:
    full = container.machine.spec.kernel
    major, minor, revision = [*full.split("-")[0].split("."), "0", "0"][:3]
    return {
        "kernel-config.NO_HZ": "true",
        "kernel-config.NO_HZ_IDLE": "true",
        "kernel-version.full": full,
        "kernel-version.major": major,
        "kernel-version.minor": minor,
        "kernel-version.revision": revision,
    }


def _cpu() -> dict[str, str]:
    cpuid = {f"cpu-cpuid.{flag}": "true" for flag in _CPUID}
    return {**cpuid, "cpu-hardware_multithreading": "true", "cpu-model.vendor_id": "Intel"}


def _local(container: Container) -> dict[str, str]:
    """Return what other programs left in features.d, one ``name=value`` on a line."""
    path = container.files.host_path(_FEATURES_D)
    texts = [text for name, text in container.machine.state.files.items() if path and name.startswith(f"{path}/")]
    lines = [line.strip() for text in texts for line in text.splitlines()]
    return {name: value for name, _, value in (line.partition("=") for line in lines if line[:1] not in {"", "#"})}


WORKER = Behaviour(_work)

__all__ = ["WORKER", "discover"]
