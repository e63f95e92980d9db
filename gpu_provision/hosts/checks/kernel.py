"""Check the running kernel, the next-boot kernel and unattended upgrades."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_provision.hosts.checks.findings import CheckedHost
from gpu_provision.hosts.facts.kernel import Certainty
from gpu_provision.hosts.facts.system import Firmware
from gpu_provision.model.findings import Finding
from gpu_provision.model.text import join_limited

_KERNELS = ("linux-image-*", "kernel", "kernel-core", "kernel-default")
_DRIVERS = ("nvidia-driver*", "nvidia-dkms*", "linux-modules-nvidia-*", "libnvidia-compute*", "kmod-nvidia*",
            "nvidia-open-driver*")  # fmt: skip
_HOLD = {"dpkg": "apt-mark hold {names}", "rpm": "dnf versionlock add {names}   (SUSE: zypper addlock {names})"}
# What the package lists name -> package of a kernel's headers, where it was looked for, how the lists are refreshed.
_HEADERS = {
    "apt": ("package linux-headers-{release}", "/var/lib/apt/lists", "apt-get update"),
    "dnf": ("provider of kernel-devel-uname-r = {release}", "dnf -C repoquery", "dnf makecache"),
    "zypp": ("devel package of {release}", "/var/cache/zypp/solv", "zypper refresh"),
}
_MANY = 4


def kernel_pending(subject: CheckedHost) -> Iterator[Finding]:
    """Yield another kernel for the next boot."""
    following = subject.host.kernels.next
    if following is None or following.release == subject.host.kernel.running:
        return
    probably = "" if following.certainty is Certainty.KNOWN else "probably "
    headers = "has its headers" if following.release in subject.host.kernels.with_headers else "has no headers for it"
    yield subject.finding("kernel_pending", next=following, probably=probably, headers=headers)


def headers_unavailable(subject: CheckedHost) -> Iterator[Finding]:
    """Yield kernels that the distribution no longer has headers for, where a driver is compiled with them."""
    running, kernels = subject.host.kernel.running, subject.host.kernels
    following = kernels.next.release if kernels.next else running
    in_container = subject.expected.driver_container
    effect = "DKMS cannot build the host driver for it"
    if in_container:
        effect = "the driver container asks the same archives for them, and cannot build the driver"
    repository = f", or set {subject.driver_key}.repo_config to a repository with them" if in_container else ""
    compiled = subject.host.driver.dkms or subject.expected.builds_driver
    for release in kernels.find_without_headers(running, following) if compiled else ():
        package, lists, refresh = _HEADERS[kernels.lists]
        yield subject.finding(
            "headers_unavailable",
            release=release,
            when="runs" if release == running else "boots next",
            lists=lists,
            package=package.format(release=release),
            effect=effect,
            refresh=refresh,
            repository=repository,
        )


def large_pages(subject: CheckedHost) -> Iterator[Finding]:
    """Yield Red Hat's kernels with large pages: a driver container asks for packages that they do not come from.

    Source: the images' own script (NVIDIA/gpu-driver-container, rhel9/nvidia-driver) asks for kernel-devel-$(uname -r);
    of these kernels it is called kernel-64k-devel. See also NVIDIA/gpu-operator#1503.
    """
    if subject.expected.builds_driver and subject.host.kernel.running.endswith("+64k"):
        yield subject.finding("large_pages")


def unattended_upgrades(subject: CheckedHost) -> Iterator[Finding]:
    """Yield kernels, and drivers of the host's, that may be replaced under running GPUs and that are not held."""
    packages = subject.host.packages
    if not packages.unattended or subject.expected.hold_packages:
        return
    watched = (*packages.find_installed(*_KERNELS), *packages.find_installed(*_DRIVERS))
    loose = [package for package in watched if not packages.is_kept(package)]
    if not loose:
        return
    drivers = any(package.name.startswith(("nvidia", "kmod-nvidia", "libnvidia")) for package in loose)
    names = " ".join(sorted({package.name for package in loose}))
    yield subject.finding(
        "unattended_upgrades",
        packages="kernel and driver packages" if drivers else "kernel packages",
        seen="; ".join(packages.unattended),
        unheld=join_limited((f"{package.name} {package.version}" for package in loose), _MANY),
        hold=_HOLD.get(packages.manager, "hold {names}").format(names=names),
    )


def secure_boot(subject: CheckedHost) -> Iterator[Finding]:
    """Yield a kernel that refuses what a driver container builds: it has no key to sign with.

    Ubuntu signs its precompiled modules: package linux-signatures-nvidia (NVIDIA/gpu-driver-container, precompiled).
    """
    firmware, system = subject.host.firmware, subject.host.system.name
    is_signed = subject.expected.driver_precompiled and system is not None and system.id == "ubuntu"
    if subject.expected.driver_container and firmware.refuses_unsigned and not is_signed:
        setting = "" if subject.expected.driver_auto else f" and set {subject.driver_key}.enabled: false"
        kernel = subject.host.kernel.running or "$(uname -r)"
        words = {"why": _signature_reason(firmware), "kernel": kernel, "setting": setting}
        yield subject.finding("secure_boot", _evidence(firmware), **words)


def unsigned_module(subject: CheckedHost) -> Iterator[Finding]:
    """Yield a host driver without a signature where one is needed."""
    firmware, driver = subject.host.firmware, subject.host.driver
    needed = not subject.expected.driver_container and firmware.refuses_unsigned
    if needed and driver.module and not driver.module_signer and not driver.loaded:
        yield subject.finding("unsigned_module", why=_signature_reason(firmware), seen=_evidence(firmware))


def _signature_reason(firmware: Firmware) -> str:
    if firmware.secure_boot:
        return "Secure Boot is on"
    if firmware.lockdown not in {"", "none"}:
        return f"the kernel is locked down ({firmware.lockdown})"
    return "the kernel enforces signatures of modules"


def _evidence(firmware: Firmware) -> str:
    enforced = "sig_enforce: Y" if firmware.signatures_enforced else ""
    lockdown = f"lockdown: {firmware.lockdown}" if firmware.lockdown else ""
    return ", ".join(filter(None, [firmware.source, lockdown, enforced]))


def nouveau_allowed(subject: CheckedHost) -> Iterator[Finding]:
    """Yield a driver of the kernel that the inventory keeps; the host phase removes any other."""
    host = subject.host
    if host.nouveau_loaded and not subject.expected.blacklist_nouveau:
        driver, users = next(iter(host.modules.in_tree_drivers.items()))
        stays = "; it is in the initramfs, too" if host.nouveau.in_initramfs else ""
        yield subject.finding("nouveau_allowed", driver=driver, users=max(users, 0), stays=stays)
