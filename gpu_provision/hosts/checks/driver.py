"""A driver on the host against what the inventory says about drivers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpu_provision.hosts.checks.findings import CheckedHost
from gpu_provision.hosts.facts.gpus import Driver, PciDevice
from gpu_provision.hosts.facts.host import HostFacts
from gpu_provision.model.findings import Finding

_PACKAGES = ("nvidia-driver*", "nvidia-dkms*", "nvidia-kernel*", "nvidia-open*", "cuda-drivers*", "libnvidia-compute*",
             "linux-modules-nvidia-*", "linux-objects-nvidia-*", "kmod-nvidia*", "nvidia-open-driver-*",
             "nvidia-compute*", "nvidia-gfx*")  # fmt: skip
_PURGE = {
    "dpkg": "apt-get purge {names} && apt-get autoremove --purge",
    "rpm": "dnf remove {names}   (SUSE: zypper remove {names})",
}


def host_driver_conflict(subject: CheckedHost) -> Iterator[Finding]:
    """Yield a host driver where a container is to bring one."""
    host, expected = subject.host, subject.expected
    if expected.driver_container and host.driver.on_host and not expected.driver_auto:
        words = {"name": _name(host.driver), "origin": _origin(host), "removal": _removal(host)}
        yield subject.finding("host_driver_conflict", _evidence(host), **words)


def no_host_driver(subject: CheckedHost) -> Iterator[Finding]:
    """Yield a host without the driver that the inventory relies on."""
    driver = subject.host.driver
    if not (subject.expected.driver_container or driver.on_host):
        container = "a driver container has put the loaded one there"
        loaded = container if driver.in_container else "no module, no libnvidia-ml"
        yield subject.finding("no_host_driver", f"{loaded}; {_packages(subject.host) or 'no driver package'}")


def host_driver_removed(subject: CheckedHost) -> Iterator[Finding]:
    """Yield a host driver that is gone but for its loaded modules, where a container is to follow."""
    driver = subject.host.driver
    if _is_left_to_host(subject) and driver.loaded and not driver.in_container and not driver.has_files:
        yield subject.finding("host_driver_removed")


def host_driver_waits(subject: CheckedHost) -> Iterator[Finding]:
    """Yield a driver that was installed on the host while a container's is loaded."""
    host, driver = subject.host, subject.host.driver
    if _is_left_to_host(subject) and driver.loaded and driver.in_container and driver.on_host:
        words = {"name": _name(driver), "origin": _origin(host), "removal": _removal(host)}
        yield subject.finding("host_driver_waits", f"{_evidence(host)}; /run/nvidia/driver is mounted", **words)


def mixed_versions(subject: CheckedHost) -> Iterator[Finding]:
    """Yield libraries that do not go with the loaded module."""
    driver = subject.host.driver
    versions = driver.library_versions
    loaded = "" if driver.in_container else driver.loaded
    if not versions or set(versions) == {loaded} or (len(versions) == 1 and not loaded):
        return
    evidence = f"/sys/module/nvidia/version: {loaded or 'absent'}; {', '.join(driver.libraries)}"
    yield subject.finding("mixed_versions", evidence, versions=", ".join(versions), loaded=loaded or "none")


def driver_not_loaded(subject: CheckedHost) -> Iterator[Finding]:
    """Yield a host driver that is installed and not loaded."""
    host, driver = subject.host, subject.host.driver
    hosts = not subject.expected.driver_container or subject.expected.driver_auto
    if not (hosts and driver.on_host and not driver.loaded and host.pci.gpus):
        return
    awakening = f"build it for this kernel: dkms autoinstall -k {host.kernel.running}"
    if driver.module:
        awakening = "modprobe nvidia, and read what the kernel says: dmesg | tail"
    elif _is_left_to_host(subject):
        awakening += f"; or let a container bring one, and remove it: {_removal(host)}"
    built = ", ".join(f"{version} for {kernel}" for version, kernel in driver.dkms)
    evidence = f"no /sys/module/nvidia; module: {driver.module or 'none for this kernel'}"
    built = f"; built by DKMS: {built}" if built else ""
    yield subject.finding("driver_not_loaded", evidence + built, awakening=awakening)


def device_held(subject: CheckedHost) -> Iterator[Finding]:
    """Yield services of the host that hold a GPU: a driver container cannot unload what they use."""
    services = [holder for holder in subject.host.services.holders if holder.unit]
    if subject.expected.driver_container and services:
        units = sorted({f"{holder.unit}.service" for holder in services})
        seen = "; ".join(f"{holder.command}[{holder.pid}] {' '.join(holder.devices)}" for holder in services)
        yield subject.finding("device_held", seen, units=", ".join(units), names=" ".join(units))


def _is_left_to_host(subject: CheckedHost) -> bool:
    """Return whether the host may have a driver of its own, and has none that is in charge."""
    expected = subject.expected
    return expected.driver_auto and expected.driver_container


def _name(driver: Driver) -> str:
    return f"driver {driver.version}" if driver.version else "parts of one"


def _origin(host: HostFacts) -> str:
    """Say how the host driver came there."""
    packages = host.packages.find_installed(*_PACKAGES)
    if any(package.name.startswith(("linux-modules-nvidia", "linux-objects-nvidia")) for package in packages):
        return "from the distribution's precompiled packages"
    if packages:
        return "from packages, built by DKMS" if host.driver.dkms else "from packages"
    if any(path.endswith("nvidia-uninstall") for path in host.driver.programs):
        return "from NVIDIA's installer (.run)"
    return "of unknown origin"


def _packages(host: HostFacts) -> str:
    return ", ".join(f"{package.name} {package.version}" for package in host.packages.find_installed(*_PACKAGES))


def _evidence(host: HostFacts) -> str:
    driver = host.driver
    own = "" if driver.in_container else driver.loaded
    parts = (
        f"/sys/module/nvidia/version: {own}" if own else "",
        f"modinfo nvidia: {driver.module}" if driver.module else "",
        ", ".join(driver.libraries),
        _packages(host),
    )
    return "; ".join(filter(None, parts))


def _removal(host: HostFacts) -> str:
    names = " ".join(package.name for package in host.packages.find_installed(*_PACKAGES))
    if names and host.packages.manager in _PURGE:
        return f"{_PURGE[host.packages.manager].format(names=names)}, then reboot"
    return "nvidia-uninstall, then reboot"


# CUDA toolkit release notes, "CUDA driver": minor version compatibility begins at these drivers.
CUDA_12 = (525, "525.60.13")

_PROPRIETARY = "proprietary"
_OPEN = "open"


def driver_branch(subject: CheckedHost) -> Iterator[Finding]:
    """Yield GPUs that the driver's branch does not support yet, or no longer."""
    version = _version(subject)
    number = _branch(version)
    for gpu in _kinds(subject) if number else ():
        known = gpu.model
        if known.first_branch and number < known.first_branch:
            reason, right = f"it needs branch {known.first_branch} or newer", f"{known.first_branch} or newer"
        elif known.last_branch and number > known.last_branch:
            reason, right = f"branch {known.last_branch} is the last one for it", f"{known.last_branch} or older"
        else:
            continue
        set_version = _set_version(subject, right)
        yield subject.finding("driver_branch", version=version, gpu=gpu, reason=reason, set_version=set_version)


def module_flavor(subject: CheckedHost) -> Iterator[Finding]:
    """Yield GPUs that run with the other kind of kernel modules only."""
    chosen, source = _flavor(subject)
    for gpu in _kinds(subject):
        if not chosen or chosen != {"only": _PROPRIETARY, "never": _OPEN}.get(gpu.model.open_modules):
            continue
        other = _OPEN if chosen == _PROPRIETARY else _PROPRIETARY
        way = f"install the host driver with the {other} kernel modules"
        if subject.expected.driver_container:
            way = f"{subject.driver_key}.kernel_module_type: auto"
        yield subject.finding("module_flavor", gpu=gpu, other=other, chosen=chosen, source=source, way=way)


def cuda_minimum(subject: CheckedHost) -> Iterator[Finding]:
    """Yield a driver that is too old for what today's images are built with."""
    version = _version(subject)
    oldest, name = CUDA_12
    if 0 < _branch(version) < oldest:
        set_version = _set_version(subject, f"{oldest} or newer")
        yield subject.finding("cuda_minimum", version=version, name=name, set_version=set_version)


def _version(subject: CheckedHost) -> str:
    """Return the version of the driver that will run: the declared one, or the host's own."""
    return subject.expected.driver_version if subject.expected.driver_container else subject.host.driver.version


def _branch(version: str) -> int:
    """Return the branch of a driver; 0 for a tag of the user's own that does not tell it."""
    match = re.match(r"(\d{3})(?=[.-]|$)", version)
    return int(match[1]) if match else 0


def _kinds(subject: CheckedHost) -> list[PciDevice]:
    """Return one GPU of each kind."""
    return list({gpu.device: gpu for gpu in reversed(subject.host.pci.gpus)}.values())


def _flavor(subject: CheckedHost) -> tuple[str, str]:
    """Return which kind of kernel modules will run, and what says so; empty if nothing does."""
    if subject.expected.driver_container:
        chosen = subject.expected.kernel_module_type
        return (chosen if chosen in {_OPEN, _PROPRIETARY} else "", f"kernel_module_type: {chosen}")
    driver = subject.host.driver
    if driver.loaded_open is not None:
        return (_OPEN if driver.loaded_open else _PROPRIETARY), "/proc/driver/nvidia/version"
    if driver.module_license:
        is_open = "GPL" in driver.module_license
        return (_OPEN if is_open else _PROPRIETARY), f"modinfo nvidia: license {driver.module_license}"
    return "", ""


def _set_version(subject: CheckedHost, right: str) -> str:
    if subject.expected.driver_container:
        return f"set {subject.driver_key}.version to a driver of branch {right}"
    return f"install a driver of branch {right} on the host"
