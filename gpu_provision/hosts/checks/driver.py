"""A driver on the host against what the inventory says about drivers."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_provision.hosts.checks.findings import CheckedHost
from gpu_provision.hosts.facts.gpus import Driver, PciDevice
from gpu_provision.hosts.facts.host import HostRecord
from gpu_provision.model import codes
from gpu_provision.model.findings import Finding

_PACKAGES = ("nvidia-driver*", "nvidia-dkms*", "nvidia-kernel*", "nvidia-open*", "cuda-drivers*", "libnvidia-compute*",
             "linux-modules-nvidia-*", "linux-objects-nvidia-*", "kmod-nvidia*", "nvidia-open-driver-*",
             "nvidia-compute*", "nvidia-gfx*")  # fmt: skip
_PURGE = {
    "dpkg": "apt-get purge {names} && apt-get autoremove --purge",
    "rpm": "dnf remove {names}   (SUSE: zypper remove {names})",
}


def host_driver_conflict(subject: CheckedHost) -> Iterator[Finding]:
    """Yield a driver of the host's own where a container is to bring one."""
    host = subject.host
    expected = subject.expected
    if not (expected.driver_container and host.driver.on_host) or expected.driver_auto:
        return
    yield subject.error(
        codes.HOST_DRIVER,
        f"the driver is to come as a container, and the host has {_name(host.driver)} {_origin(host)}",
        evidence=_evidence(host),
        consequence="the container cannot unload it, or leaves two drivers side by side",
        fix=f"keep the host's driver: {subject.driver_key}.enabled: false, or auto if other hosts have none;"
        f" or remove it: {_removal(host)}",
    )


def no_host_driver(subject: CheckedHost) -> Iterator[Finding]:
    """Yield a host without the driver that the inventory relies on."""
    driver = subject.host.driver
    if subject.expected.driver_container or driver.on_host:
        return
    loaded = "a driver container has put the loaded one there" if driver.in_container else "no module, no libnvidia-ml"
    yield subject.error(
        codes.NO_HOST_DRIVER,
        f"{subject.driver_key}.enabled is false, and the host has no NVIDIA driver",
        evidence=f"{loaded}; {_packages(subject.host) or 'no driver package'}",
        consequence="the toolkit and all that follows wait for a driver that never comes",
        fix="install a driver on the host, or let a container bring it:"
        f" {subject.driver_key}.enabled: true, or auto if other hosts have their own",
    )


def host_driver_removed(subject: CheckedHost) -> Iterator[Finding]:
    """Yield a driver of the host's that is gone but for its loaded modules, where a container is to follow."""
    driver = subject.host.driver
    if not _is_left_to_host(subject) or not driver.loaded or driver.in_container or driver.has_files:
        return
    yield subject.error(
        codes.HOST_DRIVER_REMOVED,
        f"the host's driver {driver.loaded} was removed, and is still loaded",
        evidence=f"/sys/module/nvidia/version: {driver.loaded}; no module for this kernel, no libnvidia-ml,"
        " no nvidia-smi",
        consequence="programs that run go on with it; the driver container would have to end them to unload it",
        fix="drain the node and reboot it; then the container brings the driver",
    )


def host_driver_waits(subject: CheckedHost) -> Iterator[Finding]:
    """Yield a driver that was installed on the host while a container's is loaded."""
    driver = subject.host.driver
    if not _is_left_to_host(subject) or not (driver.loaded and driver.in_container and driver.on_host):
        return
    yield subject.warning(
        codes.HOST_DRIVER_WAITS,
        f"the host has {_name(driver)} {_origin(subject.host)}, and a container's {driver.loaded} is loaded",
        evidence=f"{_evidence(subject.host)}; /run/nvidia/driver is mounted",
        consequence="the node keeps the container's until it reboots",
        fix=f"drain the node and reboot it: then it has its own; or remove that before: {_removal(subject.host)}",
    )


def mixed_versions(subject: CheckedHost) -> Iterator[Finding]:
    """Yield libraries that do not go with the loaded module."""
    driver = subject.host.driver
    versions = driver.library_versions
    loaded = "" if driver.in_container else driver.loaded
    if not versions or set(versions) == {loaded} or (len(versions) == 1 and not loaded):
        return
    yield subject.error(
        codes.DRIVER_MIXED,
        f"the host's driver is a mix: {', '.join(versions)} in the libraries, {loaded or 'none'} loaded",
        evidence=f"/sys/module/nvidia/version: {loaded or 'absent'}; {', '.join(driver.libraries)}",
        consequence="nvidia-smi and every container say: driver/library version mismatch",
        fix="drain the node and reboot it; then hold the packages: apt-mark hold, dnf versionlock",
    )


def driver_not_loaded(subject: CheckedHost) -> Iterator[Finding]:
    """Yield a driver of the host's that is installed and not loaded."""
    driver = subject.host.driver
    hosts = not subject.expected.driver_container or subject.expected.driver_auto
    if hosts and driver.on_host and not driver.loaded and subject.host.pci.gpus:
        built = ", ".join(f"{version} for {kernel}" for version, kernel in driver.dkms)
        yield subject.error(
            codes.DRIVER_NOT_LOADED,
            f"the host's driver {driver.version} is installed and not loaded",
            evidence=f"no /sys/module/nvidia; module: {driver.module or 'none for this kernel'}"
            f"{f'; built by DKMS: {built}' if built else ''}",
            consequence="no container gets a GPU",
            fix=_awakening(subject),
        )


def _awakening(subject: CheckedHost) -> str:
    """Say how a driver gets loaded; where a container may bring one, its removal helps as well."""
    host = subject.host
    if host.driver.module:
        return "modprobe nvidia, and read what the kernel says: dmesg | tail"
    build = f"build it for this kernel: dkms autoinstall -k {host.kernel.running}"
    return (
        f"{build}; or let a container bring one, and remove it: {_removal(host)}"
        if _is_left_to_host(subject)
        else build
    )


def device_held(subject: CheckedHost) -> Iterator[Finding]:
    """Yield services of the host that hold a GPU: a driver container cannot unload what they use."""
    services = [holder for holder in subject.host.services.holders if holder.unit]
    if not (subject.expected.driver_container and services):
        return
    units = sorted({f"{holder.unit}.service" for holder in services})
    yield subject.warning(
        codes.DEVICE_HELD,
        f"services of the host hold the GPU: {', '.join(units)}",
        evidence="; ".join(f"{holder.command}[{holder.pid}] {' '.join(holder.devices)}" for holder in services),
        consequence="an upgrade of the driver container waits for them, or fails",
        fix=f"systemctl disable --now {' '.join(units)}",
    )


def _is_left_to_host(subject: CheckedHost) -> bool:
    """Return whether the host may have a driver of its own, and has none that is in charge."""
    expected = subject.expected
    return expected.driver_auto and expected.driver_container


def _name(driver: Driver) -> str:
    return f"driver {driver.version}" if driver.version else "parts of one"


def _origin(host: HostRecord) -> str:
    """Say how the host's driver came there."""
    packages = host.packages.matching(*_PACKAGES)
    if any(package.name.startswith(("linux-modules-nvidia", "linux-objects-nvidia")) for package in packages):
        return "from the distribution's precompiled packages"
    if packages:
        return "from packages, built by DKMS" if host.driver.dkms else "from packages"
    if any(path.endswith("nvidia-uninstall") for path in host.driver.programs):
        return "from NVIDIA's installer (.run)"
    return "of unknown origin"


def _packages(host: HostRecord) -> str:
    return ", ".join(f"{package.name} {package.version}" for package in host.packages.matching(*_PACKAGES))


def _evidence(host: HostRecord) -> str:
    driver = host.driver
    own = "" if driver.in_container else driver.loaded
    parts = (
        f"/sys/module/nvidia/version: {own}" if own else "",
        f"modinfo nvidia: {driver.module}" if driver.module else "",
        ", ".join(driver.libraries),
        _packages(host),
    )
    return "; ".join(filter(None, parts))


def _removal(host: HostRecord) -> str:
    names = " ".join(package.name for package in host.packages.matching(*_PACKAGES))
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
        yield subject.error(
            codes.DRIVER_BRANCH,
            f"the driver {version} does not support {known.name}: {reason}",
            evidence=f"{gpu.address} {gpu.vendor}:{gpu.device} ({known.generation})",
            consequence="the driver loads and finds no device",
            fix=_set_version(subject, right),
        )


def module_flavor(subject: CheckedHost) -> Iterator[Finding]:
    """Yield GPUs that run with the other kind of kernel modules only."""
    chosen, source = _flavor(subject)
    for gpu in _kinds(subject):
        impossible = {"only": _PROPRIETARY, "never": _OPEN}.get(gpu.model.open_modules)
        if not chosen or chosen != impossible:
            continue
        other = _OPEN if chosen == _PROPRIETARY else _PROPRIETARY
        yield subject.error(
            codes.MODULE_FLAVOR,
            f"{gpu.model.name} runs with the {other} kernel modules only, and these are the {chosen} ones",
            evidence=f"{gpu.address} {gpu.vendor}:{gpu.device} ({gpu.model.generation}); {source}",
            consequence="the modules load and refuse the GPU (dmesg: NVRM: ... open kernel modules)",
            fix=f"{subject.driver_key}.kernel_module_type: auto"
            if subject.expected.driver_container
            else f"install the host's driver with the {other} kernel modules",
        )


def cuda_minimum(subject: CheckedHost) -> Iterator[Finding]:
    """Yield a driver that is too old for what today's images are built with."""
    version = _version(subject)
    oldest, name = CUDA_12
    if 0 < _branch(version) < oldest:
        yield subject.warning(
            codes.CUDA_MINIMUM,
            f"the driver {version} is older than {name}, which CUDA 12 needs",
            evidence=f"driver {version}",
            consequence="images built with CUDA 12 or newer need their own compatibility libraries, or fail",
            fix=_set_version(subject, f"{oldest} or newer"),
        )


def _version(subject: CheckedHost) -> str:
    """Return the version of the driver that will run: the declared one, or the host's own."""
    return subject.expected.driver_version if subject.expected.driver_container else subject.host.driver.version


def _branch(version: str) -> int:
    head = version.partition(".")[0]
    return int(head) if head.isdecimal() else 0


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
