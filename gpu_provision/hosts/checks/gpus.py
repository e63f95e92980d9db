"""The GPUs on the PCI bus against those of the inventory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from gpu_provision.hosts.checks.findings import CheckedHost
from gpu_provision.hosts.facts.gpus import PciDevice
from gpu_provision.inventory import hardware as catalogue
from gpu_provision.inventory.hardware import Model
from gpu_provision.model import codes
from gpu_provision.model.findings import Finding

_OF_VIRTUAL_MACHINES = frozenset({"vfio-pci", "pci-stub", "xen-pciback"})


def gpu_absent(subject: CheckedHost) -> Iterator[Finding]:
    """Yield GPUs that are declared and not there."""
    expected, seen = subject.expected, subject.host.pci
    if not seen.gpus:
        others = ", ".join(device.address for device in seen.devices) or "no device of vendor 10de"
        yield subject.error(
            codes.GPU_ABSENT,
            f"the inventory declares {expected.gpu_count} x {expected.gpu_model}, and the PCI bus has no NVIDIA GPU",
            evidence=f"/sys/bus/pci/devices: {others}",
            consequence="Node Feature Discovery will not label the node, and nothing is deployed on it",
            fix="see whether the card is seated and enabled (lspci -d 10de:), or passed through to a virtual machine;"
            f" else put {expected.node} into a pool without gpu",
        )


def gpu_count(subject: CheckedHost) -> Iterator[Finding]:
    """Yield another number of GPUs than declared."""
    expected, seen = subject.expected, subject.host.pci.gpus
    if seen and len(seen) != expected.gpu_count:
        number = f"{len(seen)} NVIDIA GPU{'' if len(seen) == 1 else 's'}"
        yield subject.warning(
            codes.GPU_COUNT,
            f"the PCI bus shows {number}, the inventory declares {expected.gpu_count}",
            evidence=_listed(seen),
            consequence="the run waits for the declared number to be allocatable, and fails the node without it",
            fix=f"correct pools.{expected.pool}.gpu.count,"
            " or see to the hardware: dmesg | grep -i -e pcieport -e nvrm -e 'fallen off the bus'",
        )


def gpu_undeclared(subject: CheckedHost) -> Iterator[Finding]:
    """Yield GPUs on a machine whose pool declares none."""
    seen = subject.host.pci.gpus
    if seen and not subject.expected.gpu_count:
        yield subject.warning(
            codes.GPU_UNDECLARED,
            f"there {'is a GPU' if len(seen) == 1 else f'are {len(seen)} GPUs'}, and pool {subject.expected.pool}"
            " declares none",
            evidence=_listed(seen),
            consequence="the node gets no GPU software",
            fix=f"give {subject.expected.node} a pool with gpu: {{model: ..., count: {len(seen)}}}",
        )


def gpu_model(subject: CheckedHost) -> Iterator[Finding]:
    """Yield models that are certainly others than the declared one."""
    declared = catalogue.find_model(subject.expected.gpu_model)
    if declared is None:
        return
    others = [gpu for gpu in subject.host.pci.gpus if gpu.model.models and not _matches_model(gpu, declared)]
    if others:
        yield subject.warning(
            codes.GPU_MODEL,
            f"the inventory declares {subject.expected.gpu_model}, and there is {others[0].model.name}",
            evidence=_listed(others),
            consequence="driver and GPU were checked against each other for the wrong model",
            fix=f"correct pools.{subject.expected.pool}.gpu.model",
        )


def gpu_taken(subject: CheckedHost) -> Iterator[Finding]:
    """Yield GPUs that are set aside for virtual machines."""
    held = [gpu for gpu in subject.host.pci.gpus if gpu.driver in _OF_VIRTUAL_MACHINES]
    if held:
        addresses = " ".join(gpu.address for gpu in held)
        yield subject.error(
            codes.GPU_TAKEN,
            f"{len(held)} of {len(subject.host.pci.gpus)} GPUs are bound to {held[0].driver}",
            evidence=_listed(held),
            consequence="the NVIDIA driver does not find them",
            fix=f"take vfio-pci.ids off the kernel's command line and /etc/modprobe.d, reboot; or at once, for each of"
            f" {addresses}: echo ADDRESS > /sys/bus/pci/drivers/{held[0].driver}/unbind",
        )


def _listed(gpus: Iterable[PciDevice]) -> str:
    """Return devices with their addresses, equal ones together: ``0000:10:00.0 0000:11:00.0 10de:2330 NVIDIA H100``."""
    alike: dict[str, list[str]] = {}
    for gpu in gpus:
        driver = f" ({gpu.driver})" if gpu.driver else ""
        alike.setdefault(f"{gpu.vendor}:{gpu.device} {gpu.model.name}{driver}", []).append(gpu.address)
    return ", ".join(f"{' '.join(addresses)} {kind}" for kind, addresses in alike.items())


def _matches_model(gpu: PciDevice, declared: Model) -> bool:
    """Return whether a device may be meant: inventories often leave out board and memory."""
    return any(
        each.family == declared.family and _designation(each.name) == _designation(declared.name)
        for each in gpu.model.models
    )


def _designation(name: str) -> str:
    """Return the part of a name that tells models apart: ``A100`` of A100-SXM4-40GB, ``4090`` of GeForce RTX 4090."""
    return next((word for word in re.split(r"[\s-]+", name) if re.search(r"\d", word)), name)


_UNIT = "nvidia-fabricmanager"
_PACKAGES = ("nvidia-fabricmanager*", "nvidia-fabric-manager*")
_NVLINK_5 = frozenset({"B200", "B300", "GB200", "GB300"})
_INFINIBAND = ("ib_umad", "mlx5_ib")


def fabric_manager(subject: CheckedHost) -> Iterator[Finding]:
    """Yield NVSwitches without a fabric manager of the driver's version. A driver container brings its own."""
    host = subject.host
    if not host.pci.nvswitches or subject.expected.driver_container:
        return
    packages = host.packages.matching(*_PACKAGES)
    version = host.driver.version
    fits = not packages or any(version and version in package.version for package in packages)
    if host.services.is_active(_UNIT) and fits:
        return
    unit = host.services.unit(_UNIT)
    state = f"{_UNIT}.service: {unit.active}, {unit.enabled}" if unit else f"no {_UNIT}.service"
    installed = ", ".join(f"{package.name} {package.version}" for package in packages) or "not installed"
    switches = len(host.pci.nvswitches)
    yield subject.error(
        codes.FABRIC_MANAGER,
        f"there {'is an NVSwitch' if switches == 1 else f'are {switches} NVSwitches'}, and no fabric manager"
        f" {version or 'of the driver'} runs",
        evidence=f"{state}; {installed}; driver {version or 'unknown'};"
        f" {', '.join(device.address for device in host.pci.nvswitches)}",
        consequence="nvidia-smi looks well, and every CUDA program fails with error 802 (system not yet initialized)",
        fix=f"install the fabric manager of exactly the driver's version, then: systemctl enable --now {_UNIT}",
    )


def fabric_modules(subject: CheckedHost) -> Iterator[Finding]:
    """Yield NVLink 5 systems without the modules that their fabric is managed through."""
    host = subject.host
    models = {model.name for gpu in host.pci.gpus for model in gpu.model.models}
    present = {*host.modules.loaded, *host.modules.built_in}
    missing = [name for name in _INFINIBAND if name not in present]
    if models & _NVLINK_5 and missing and host.pci.network_cards:
        yield subject.warning(
            codes.FABRIC_MODULES,
            f"the kernel modules {' and '.join(missing)} are not loaded, which an NVLink 5 fabric is managed through",
            evidence=f"{', '.join(sorted(models & _NVLINK_5))}; not in /proc/modules: {', '.join(missing)}",
            consequence="the fabric manager takes the wrong path, and the fabric stays In Progress",
            fix=f"host_prerequisites.kernel_modules: [i2c_core, ipmi_msghandler, {', '.join(missing)}]",
        )
