"""The GPUs on the PCI bus against those of the inventory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from gpu_provision.hosts.checks.findings import CheckedHost
from gpu_provision.hosts.facts.gpus import PciDevice
from gpu_provision.hosts.facts.kernel import IN_TREE_DRIVERS
from gpu_provision.inventory import hardware as catalogue
from gpu_provision.model.findings import Finding

# Drivers that need no finding: NVIDIA's, and those that the host phase removes.
_EXPECTED_DRIVERS = frozenset({"", "nvidia", *IN_TREE_DRIVERS, "NovaCore"})
_PASSTHROUGH = "vfio-pci"


def gpu_absent(subject: CheckedHost) -> Iterator[Finding]:
    """Yield GPUs that are declared and not there."""
    seen = subject.host.pci
    if not seen.gpus:
        others = ", ".join(device.address for device in seen.devices) or "no device of vendor 10de"
        yield subject.finding("gpu_absent", others=others)


def gpu_count(subject: CheckedHost) -> Iterator[Finding]:
    """Yield another number of GPUs than declared."""
    seen = subject.host.pci.gpus
    if seen and not subject.expected.any_gpu and len(seen) != subject.expected.gpu_count:
        yield subject.finding("gpu_count", _describe_gpus(seen), count=len(seen), s="" if len(seen) == 1 else "s")


def gpu_undeclared(subject: CheckedHost) -> Iterator[Finding]:
    """Yield GPUs on a machine whose pool declares none."""
    seen = subject.host.pci.gpus
    if seen and not subject.expected.has_gpu:
        are = "is a GPU" if len(seen) == 1 else f"are {len(seen)} GPUs"
        yield subject.finding("gpu_undeclared", _describe_gpus(seen), are=are, count=len(seen))


def gpu_model(subject: CheckedHost) -> Iterator[Finding]:
    """Yield models that are certainly others than the declared one: inventories often leave out board and memory."""
    declared = catalogue.find_model(subject.expected.gpu_model)
    if declared is None:
        return
    wanted = declared.family, _designation(declared.name)
    kinds = {
        gpu: {(each.family, _designation(each.name)) for each in gpu.model.models} for gpu in subject.host.pci.gpus
    }
    others = [gpu for gpu, kind in kinds.items() if kind and wanted not in kind]
    if others:
        yield subject.finding("gpu_model", _describe_gpus(others), seen=others[0].model.name)


def gpu_taken(subject: CheckedHost) -> Iterator[Finding]:
    """Yield GPUs that another driver holds, such as for virtual machines.

    These are no error if the node's label may say that they are for virtual machines.
    """
    gpus = subject.host.pci.gpus
    held = [gpu for gpu in gpus if gpu.driver not in _EXPECTED_DRIVERS]
    may_be_meant = not subject.expected.workload_known and all(gpu.driver == _PASSTHROUGH for gpu in held)
    if held:
        words = {"count": str(len(held)), "all": str(len(gpus)), "driver": held[0].driver}
        words["addresses"] = " ".join(gpu.address for gpu in held)
        yield subject.finding("gpu_passed_through" if may_be_meant else "gpu_taken", _describe_gpus(held), **words)


def _describe_gpus(gpus: Iterable[PciDevice]) -> str:
    """Return devices with their addresses, equal ones together: ``0000:10:00.0 0000:11:00.0 10de:2330 NVIDIA H100``."""
    alike: dict[str, list[str]] = {}
    for gpu in gpus:
        driver = f" ({gpu.driver})" if gpu.driver else ""
        alike.setdefault(f"{gpu.vendor}:{gpu.device} {gpu.model.name}{driver}", []).append(gpu.address)
    return ", ".join(f"{' '.join(addresses)} {kind}" for kind, addresses in alike.items())


def _designation(name: str) -> str:
    """Return the part of a name that tells models apart: ``A100`` of A100-SXM4-40GB, ``4090`` of GeForce RTX 4090."""
    return next((word for word in re.split(r"[\s-]+", name) if re.search(r"\d", word)), name)


_UNIT = "nvidia-fabricmanager"
_PACKAGES = ("nvidia-fabricmanager*", "nvidia-fabric-manager*")
_NVLINK_5 = frozenset({"B200", "B300", "GB200", "GB300"})
_INFINIBAND = ("ib_umad", "mlx5_ib")


def fabric_manager(subject: CheckedHost) -> Iterator[Finding]:
    """Yield NVSwitches without a fabric manager of the driver's version. A driver container brings its own."""
    host, switches = subject.host, subject.host.pci.nvswitches
    if not switches or subject.expected.driver_container:
        return
    packages = host.packages.find_installed(*_PACKAGES)
    version = host.driver.version
    fits = not packages or any(version and version in package.version for package in packages)
    if host.services.is_active(_UNIT) and fits:
        return
    unit = host.services.unit(_UNIT)
    state = f"{_UNIT}.service: {unit.active}, {unit.enabled}" if unit else f"no {_UNIT}.service"
    installed = ", ".join(f"{package.name} {package.version}" for package in packages) or "not installed"
    addresses = ", ".join(device.address for device in switches)
    yield subject.finding(
        "fabric_manager",
        f"{state}; {installed}; driver {version or 'unknown'}; {addresses}",
        are="is an NVSwitch" if len(switches) == 1 else f"are {len(switches)} NVSwitches",
        version=version or "of the driver",
        unit=_UNIT,
    )


def no_network_card(subject: CheckedHost) -> Iterator[Finding]:
    """Yield hosts without a network card whose driver container would wait for that card's driver for ever."""
    expected = subject.expected
    if expected.rdma and expected.driver_container and not subject.host.pci.network_cards:
        yield subject.finding("no_network_card")


def fabric_modules(subject: CheckedHost) -> Iterator[Finding]:
    """Yield NVLink 5 systems without the modules that their fabric is managed through."""
    host = subject.host
    models = _NVLINK_5 & {model.name for gpu in host.pci.gpus for model in gpu.model.models}
    missing = [name for name in _INFINIBAND if name not in {*host.modules.loaded, *host.modules.built_in}]
    if models and missing and host.pci.network_cards:
        words = {"modules": " and ".join(missing), "missing": ", ".join(missing), "models": ", ".join(sorted(models))}
        yield subject.finding("fabric_modules", **words)
