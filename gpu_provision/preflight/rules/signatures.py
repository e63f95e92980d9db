"""Secure Boot and lockdown: which kernel modules this machine accepts."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_provision.facts.firmware import Firmware
from gpu_provision.model.findings import Finding
from gpu_provision.preflight import codes
from gpu_provision.preflight.subject import Subject


def container_driver(subject: Subject) -> Iterator[Finding]:
    """Yield a kernel that refuses what a driver container builds: it has no key to sign with."""
    firmware = subject.host.firmware
    if subject.expected.gpu_count and subject.expected.driver_container and firmware.refuses_unsigned:
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


def host_driver(subject: Subject) -> Iterator[Finding]:
    """Yield a host's own driver without a signature where one is needed."""
    firmware, driver = subject.host.firmware, subject.host.driver
    needed = subject.expected.gpu_count and not subject.expected.driver_container and firmware.refuses_unsigned
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
