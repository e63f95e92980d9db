"""The kernel that runs, the one that comes, and who replaces it."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_provision.facts.kernels import Certainty
from gpu_provision.facts.packages import Package
from gpu_provision.model.findings import Finding
from gpu_provision.preflight import codes
from gpu_provision.preflight.subject import Subject

_KERNELS = ("linux-image-*", "kernel", "kernel-core", "kernel-default")
_DRIVERS = ("nvidia-driver*", "nvidia-dkms*", "linux-modules-nvidia-*", "libnvidia-compute*", "kmod-nvidia*",
            "nvidia-open-driver*")  # fmt: skip
_HOLD = {"dpkg": "apt-mark hold {names}", "rpm": "dnf versionlock add {names}   (SUSE: zypper addlock {names})"}
_MANY = 4


def pending(subject: Subject) -> Iterator[Finding]:
    """Yield another kernel for the next boot."""
    running, following = subject.host.kernel.running, subject.host.kernels.next
    if not subject.expected.gpu_count or following is None or following.release == running:
        return
    probably = "" if following.certainty is Certainty.KNOWN else "probably "
    headers = "has its headers" if following.release in subject.host.kernels.with_headers else "has no headers for it"
    yield subject.warning(
        codes.KERNEL_PENDING,
        f"kernel {running} runs, and {following.release} {probably}boots next",
        evidence=f"{following.source}: {following.release} ({following.certainty.value}); the host {headers}",
        consequence="after the next boot the driver is built anew, for a kernel that nobody tried it on",
        fix="reboot now (drained), before the GPUs are in use; or hold the kernel",
    )


def headers(subject: Subject) -> Iterator[Finding]:
    """Yield a running kernel that the distribution no longer has headers for: a driver is compiled with them."""
    running, kernels = subject.host.kernel.running, subject.host.kernels
    compiled = subject.expected.gpu_count and subject.expected.driver_container
    if compiled and kernels.headers_offered is False and running not in kernels.with_headers:
        yield subject.warning(
            codes.NO_HEADERS,
            f"the package lists have no linux-headers-{running}",
            evidence=f"/var/lib/apt/lists: no package linux-headers-{running}; no /lib/modules/{running}/build",
            consequence="the driver container asks the same archives for them, and cannot build the driver",
            fix=f"apt-get update; if they are gone for good, boot a kernel that has them, or set {subject.driver_key}"
            ".repo_config to a repository with them",
        )


def unattended(subject: Subject) -> Iterator[Finding]:
    """Yield kernels, and drivers of the host's, that may be replaced under running GPUs."""
    packages = subject.host.packages
    if not subject.expected.gpu_count or not packages.unattended:
        return
    watched = (*packages.matching(*_KERNELS), *packages.matching(*_DRIVERS))
    loose = [package for package in watched if not packages.is_kept(package)]
    if not loose:
        return
    drivers = any(package.name.startswith(("nvidia", "kmod-nvidia", "libnvidia")) for package in loose)
    what = "kernel and driver packages" if drivers else "kernel packages"
    names = sorted({package.name for package in loose})
    yield subject.warning(
        codes.UNATTENDED,
        f"{what} are replaced unattended, and are not held",
        evidence=f"{'; '.join(packages.unattended)}; not held: {_shortened(loose)}",
        consequence="a morning on which nvidia-smi says version mismatch, or the next boot has no driver",
        fix="host_prerequisites: {hold_packages: true}, or by hand: "
        + _HOLD.get(packages.manager, "hold {names}").format(names=" ".join(names)),
    )


def _shortened(packages: list[Package]) -> str:
    names = [f"{package.name} {package.version}" for package in packages]
    rest = len(names) - _MANY
    return ", ".join(names[:_MANY]) + (f" and {rest} more" if rest > 0 else "")
