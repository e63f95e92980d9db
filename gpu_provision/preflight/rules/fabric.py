"""NVSwitches and what they need."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_provision.model.findings import Finding
from gpu_provision.preflight import codes
from gpu_provision.preflight.subject import Subject

_UNIT = "nvidia-fabricmanager"
_PACKAGES = ("nvidia-fabricmanager*", "nvidia-fabric-manager*")
_NVLINK_5 = frozenset({"B200", "B300", "GB200", "GB300"})
_INFINIBAND = ("ib_umad", "mlx5_ib")


def manager(subject: Subject) -> Iterator[Finding]:
    """Yield NVSwitches without a fabric manager of the driver's version. A driver container brings its own."""
    host = subject.host
    if not host.pci.nvswitches or subject.expected.driver_container or not subject.expected.gpu_count:
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


def infiniband(subject: Subject) -> Iterator[Finding]:
    """Yield NVLink 5 systems without the modules that their fabric is managed through."""
    host = subject.host
    models = {model.name for gpu in host.pci.gpus for model in gpu.model.models}
    present = {*host.modules.loaded, *host.modules.built_in}
    missing = [name for name in _INFINIBAND if name not in present]
    if subject.expected.gpu_count and models & _NVLINK_5 and missing and host.pci.network_cards:
        yield subject.warning(
            codes.FABRIC_MODULES,
            f"the kernel modules {' and '.join(missing)} are not loaded, which an NVLink 5 fabric is managed through",
            evidence=f"{', '.join(sorted(models & _NVLINK_5))}; not in /proc/modules: {', '.join(missing)}",
            consequence="the fabric manager takes the wrong path, and the fabric stays In Progress",
            fix=f"host_prerequisites.kernel_modules: [i2c_core, ipmi_msghandler, {', '.join(missing)}]",
        )
