"""The kernel that runs, the one that comes, and who replaces it."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_provision.hosts.checks.findings import CheckedHost
from gpu_provision.hosts.facts.kernel import Certainty
from gpu_provision.hosts.facts.system import Firmware
from gpu_provision.model import codes
from gpu_provision.model.findings import Finding
from gpu_provision.model.text import join_limited

_KERNELS = ("linux-image-*", "kernel", "kernel-core", "kernel-default")
_DRIVERS = ("nvidia-driver*", "nvidia-dkms*", "linux-modules-nvidia-*", "libnvidia-compute*", "kmod-nvidia*",
            "nvidia-open-driver*")  # fmt: skip
_HOLD = {"dpkg": "apt-mark hold {names}", "rpm": "dnf versionlock add {names}   (SUSE: zypper addlock {names})"}
_HEADERS = {
    "apt": ("package linux-headers-{release}", "/var/lib/apt/lists"),
    "dnf": ("provider of kernel-devel-uname-r = {release}", "dnf -C repoquery"),
    "zypp": ("devel package of {release}", "/var/cache/zypp/solv"),
}
_REFRESH = {"apt": "apt-get update", "dnf": "dnf makecache", "zypp": "zypper refresh"}
_MANY = 4


def kernel_pending(subject: CheckedHost) -> Iterator[Finding]:
    """Yield another kernel for the next boot."""
    running, following = subject.host.kernel.running, subject.host.kernels.next
    if following is None or following.release == running:
        return
    probably = "" if following.certainty is Certainty.KNOWN else "probably "
    headers = "has its headers" if following.release in subject.host.kernels.with_headers else "has no headers for it"
    yield subject.warning(
        codes.KERNEL_PENDING,
        f"kernel {running} runs, and {following.release} {probably}boots next",
        evidence=f"{following.source}: {following.release} ({following.certainty.value}); the host {headers}",
        consequence="after the next boot the driver is rebuilt, for a kernel that was not tested",
        fix="reboot now (drained), before the GPUs are in use; or hold the kernel",
    )


def headers_unavailable(subject: CheckedHost) -> Iterator[Finding]:
    """Yield kernels that the distribution no longer has headers for, where a driver is compiled with them."""
    running, kernels = subject.host.kernel.running, subject.host.kernels
    following = kernels.next.release if kernels.next else running
    compiled = subject.expected.driver_container or subject.host.driver.dkms
    repository = f", or set {subject.driver_key}.repo_config to a repository with them"
    for release in kernels.without_headers(running, following) if compiled else ():
        package, lists = _HEADERS[kernels.lists]
        yield subject.warning(
            codes.HEADERS_UNAVAILABLE,
            f"the package lists have no headers for kernel {release},"
            f" which {'runs' if release == running else 'boots next'}",
            evidence=f"{lists}: no {package.format(release=release)}; no /lib/modules/{release}/build",
            consequence="the driver container asks the same archives for them, and cannot build the driver"
            if subject.expected.driver_container
            else "DKMS cannot build the host's driver for it",
            fix=f"{_REFRESH[kernels.lists]}; if they are gone for good, boot a kernel that has them"
            f"{repository if subject.expected.driver_container else ''}",
        )


def large_pages(subject: CheckedHost) -> Iterator[Finding]:
    """Yield Red Hat's kernels with large pages: a driver container asks for packages that they do not come from.

    Source: the images' own script (NVIDIA/gpu-driver-container, rhel9/nvidia-driver) asks for kernel-devel-$(uname -r);
    of these kernels it is called kernel-64k-devel. See also NVIDIA/gpu-operator#1503.
    """
    kernel = subject.host.kernel
    if subject.expected.driver_container and kernel.running.endswith("+64k"):
        yield subject.warning(
            codes.LARGE_PAGES,
            "the kernel has pages of 64 KiB, whose headers the driver container looks for under another name",
            evidence=f"uname -r: {kernel.running}, page size {kernel.page_size}",
            consequence=f"the container finds no package kernel-devel-{kernel.running}, and cannot build the driver",
            fix="boot the kernel with pages of 4 KiB (grubby --set-default), or install the driver on the host and set"
            f" {subject.driver_key}.enabled: false",
        )


def unattended_upgrades(subject: CheckedHost) -> Iterator[Finding]:
    """Yield kernels, and drivers of the host's, that may be replaced under running GPUs and that are not held."""
    packages = subject.host.packages
    if not packages.unattended or subject.expected.hold_packages:
        return
    watched = (*packages.matching(*_KERNELS), *packages.matching(*_DRIVERS))
    loose = [package for package in watched if not packages.is_kept(package)]
    if not loose:
        return
    drivers = any(package.name.startswith(("nvidia", "kmod-nvidia", "libnvidia")) for package in loose)
    what = "kernel and driver packages" if drivers else "kernel packages"
    names = sorted({package.name for package in loose})
    unheld = [f"{package.name} {package.version}" for package in loose]
    yield subject.warning(
        codes.UNATTENDED,
        f"{what} are replaced unattended, and are not held",
        evidence=f"{'; '.join(packages.unattended)}; not held: {join_limited(unheld, _MANY)}",
        consequence="a morning on which nvidia-smi says version mismatch, or the next boot has no driver",
        fix="host_prerequisites: {hold_packages: true}, or by hand: "
        + _HOLD.get(packages.manager, "hold {names}").format(names=" ".join(names)),
    )


def secure_boot(subject: CheckedHost) -> Iterator[Finding]:
    """Yield a kernel that refuses what a driver container builds: it has no key to sign with."""
    firmware = subject.host.firmware
    if subject.expected.driver_container and firmware.refuses_unsigned:
        yield subject.error(
            codes.SECURE_BOOT,
            f"{_why(firmware)}, and the modules that the driver container builds are not signed",
            evidence=_evidence(firmware),
            consequence='the driver is built and then not loaded: "Key was rejected by service"',
            fix="install the distribution's signed driver on the host (Ubuntu: linux-modules-nvidia-BRANCH-server-open-"
            f"{subject.host.kernel.running or '$(uname -r)'})"
            f"{'' if subject.expected.driver_auto else f' and set {subject.driver_key}.enabled: false'};"
            " or turn Secure Boot off in the firmware",
        )


def unsigned_module(subject: CheckedHost) -> Iterator[Finding]:
    """Yield a host's own driver without a signature where one is needed."""
    firmware, driver = subject.host.firmware, subject.host.driver
    needed = not subject.expected.driver_container and firmware.refuses_unsigned
    if needed and driver.module and not driver.module_signer and not driver.loaded:
        yield subject.error(
            codes.MODULE_UNSIGNED,
            f"{_why(firmware)}, and the host's driver is not signed",
            evidence=f"modinfo nvidia: {driver.module} has no signer; {_evidence(firmware)}",
            consequence="modprobe nvidia fails",
            fix="sign it with a key that is enrolled (mokutil --import, reboot), or install signed modules",
        )


def _why(firmware: Firmware) -> str:
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
    """Yield a nouveau that the inventory keeps; the host phase removes any other."""
    host, expected = subject.host, subject.expected
    if not host.nouveau_loaded or expected.blacklist_nouveau:
        return
    users = host.modules.loaded["nouveau"]
    stays = "; it is in the initramfs, too" if host.nouveau.in_initramfs else ""
    yield subject.error(
        codes.NOUVEAU_WANTED,
        "nouveau is loaded, and the inventory leaves it alone",
        evidence=f"/proc/modules: nouveau, used by {max(users, 0)}{stays}",
        consequence="the NVIDIA driver cannot have the GPU",
        fix=f"remove blacklist_nouveau: false from pools.{expected.pool}.host_prerequisites or host_prerequisites",
    )
