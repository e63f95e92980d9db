"""What has to change on a host, decided from its record alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpu_provision.hosts.facts.host import HostRecord
from gpu_provision.hosts.facts.kernel import FileLines, canonical
from gpu_provision.model import codes
from gpu_provision.model.findings import Finding, Severity

MODULES_HEADER = "# Written by gpu-provision: kernel modules that GPU nodes need at boot."
NOUVEAU_LINES = (
    "# Written by gpu-provision: nouveau and the NVIDIA driver cannot share a GPU.",
    "blacklist nouveau",
    "options nouveau modeset=0",
)

# Where the modules that minimal and cloud kernels leave out come from.
MODULE_PACKAGES = {
    "ubuntu": "apt-get install linux-modules-extra-{kernel}",
    "debian": "apt-get install linux-image-amd64 (the cloud kernel leaves modules out), then reboot into it",
    "rhel": "dnf install kernel-modules-{kernel} kernel-modules-extra-{kernel}",
    "rocky": "dnf install kernel-modules-{kernel} kernel-modules-extra-{kernel}",
    "centos": "dnf install kernel-modules-{kernel} kernel-modules-extra-{kernel}",
    "ol": "dnf install kernel-modules-{kernel} kernel-modules-extra-{kernel}",
    "sles": "zypper install kernel-default",
}
UNKNOWN_PACKAGE = "install the package that holds the modules of kernel {kernel}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleChanges:
    """What is missing for kernel modules to be there now and after a boot.

    Attributes:
        load: Modules to load now.
        file: What our file for the boot shall hold; None for no file.
        file_differs: Whether it holds something else.
        missing: Modules that this kernel neither has nor could load.
    """

    load: tuple[str, ...]
    file: FileLines
    file_differs: bool
    missing: tuple[str, ...]

    @property
    def words(self) -> tuple[str, ...]:
        """Every change in words; empty for none."""
        listed = ", ".join((self.file or ())[1:]) or "none"
        changes = (
            (bool(self.load), f"kernel modules loaded: {', '.join(self.load)}"),
            (self.file_differs, f"kernel modules listed for the boot: {listed}"),
        )
        return tuple(words for applies, words in changes if applies)


@dataclass(frozen=True, slots=True, kw_only=True)
class NouveauChanges:
    """What is missing for nouveau to be away, or for our blacklist to be gone.

    Attributes:
        file: What our blacklist shall hold; None for no file.
        file_differs: Whether it holds something else.
        rebuild_initramfs: Whether the image that boots does not know the blacklist as it shall be.
        unload: Whether nouveau is loaded and nobody uses it.
    """

    file: FileLines
    file_differs: bool
    rebuild_initramfs: bool
    unload: bool

    @property
    def words(self) -> tuple[str, ...]:
        """Every change in words; empty for none."""
        changes = (
            (self.file_differs, "nouveau blacklisted" if self.file else "nouveau no longer blacklisted"),
            (self.rebuild_initramfs, "initramfs rebuilt"),
            (self.unload, "nouveau unloaded"),
        )
        return tuple(words for applies, words in changes if applies)


def module_changes(record: HostRecord, modules: Iterable[str]) -> ModuleChanges:
    """Return what is missing. A module built into the kernel is present, and needs no loading at boot."""
    names = list(dict.fromkeys(map(canonical, modules)))
    loadable = [name for name in names if name not in record.modules.built_in]
    file = (MODULES_HEADER, *loadable) if loadable else None
    absent = [name for name in loadable if name not in record.modules.loaded]
    return ModuleChanges(
        load=tuple(name for name in absent if name in record.modules.available),
        file=file,
        file_differs=file != record.modules.own_file,
        missing=tuple(name for name in absent if name not in record.modules.available),
    )


def nouveau_changes(record: HostRecord, *, blacklisted: bool) -> NouveauChanges:
    """Return what is missing. A blacklist by somebody else is as good as ours, and is left alone.

    An image older than our blacklist is rebuilt also when the file is as it shall be: an earlier run may have
    been interrupted between the two.
    """
    file = NOUVEAU_LINES if blacklisted and _needs_own_file(record) else None
    differs = file != record.nouveau.own_file
    stale = differs or (file is not None and record.nouveau.initramfs_stale)
    return NouveauChanges(
        file=file,
        file_differs=differs,
        rebuild_initramfs=bool(stale and record.nouveau.initramfs and record.nouveau.initramfs_tool),
        unload=blacklisted and record.modules.loaded.get("nouveau") == 0,
    )


def _needs_own_file(record: HostRecord) -> bool:
    return record.nouveau.own_file is not None or not record.nouveau.blacklisted_elsewhere


def reboot_reasons(record: HostRecord, *, nouveau_unwanted: bool = True) -> tuple[str, ...]:
    """Return why this host needs a reboot, each in a few words; empty if it does not."""
    held = nouveau_unwanted and record.modules.loaded.get("nouveau", 0) != 0
    reasons = (
        (held, "nouveau is loaded and in use; it stays away from the next boot on"),
        (record.system.reboot_required, "the system itself asks for one (/run/reboot-required)"),
    )
    return tuple(reason for applies, reason in reasons if applies)


def missing_modules(record: HostRecord, host: str, modules: Sequence[str]) -> Finding:
    """Return the error about kernel modules that a host cannot have with the kernel it runs."""
    kernel, names = record.kernel.running, ", ".join(modules)
    verb, them = ("is", "it") if len(modules) == 1 else ("are", "them")
    directory = f"/lib/modules/{kernel}"
    source = MODULE_PACKAGES.get(record.system.id, UNKNOWN_PACKAGE).format(kernel=kernel)
    return Finding(
        code=codes.MODULE_MISSING,
        what=f"kernel {kernel} has no module {names}",
        where=host,
        evidence=f"{names} {verb} neither loaded, nor built in, nor in {directory}"
        if record.modules.directory
        else f"{names} {verb} not loaded, and there is no {directory}: a container, or a kernel without modules",
        fix=f"{source if record.modules.directory else 'load modules on the machine whose kernel this is'},"
        f" or take {them} off host_prerequisites.kernel_modules",
    )


def unreadable(host: str) -> Finding:
    """Return the error about a host whose state could not be read."""
    return Finding(
        code=codes.UNREADABLE,
        what="the state of this host could not be read",
        where=host,
        fix="see what its shell printed above; it needs a POSIX shell with uname, sed, grep and find",
    )


def reboot_needed(host: str, reasons: Sequence[str]) -> Finding:
    """Return the warning about a host that needs a reboot."""
    return Finding(
        code=codes.REBOOT_NEEDED,
        what=f"reboot needed: {'; '.join(reasons)}",
        where=host,
        fix="drain the node, reboot it, run again",
        severity=Severity.WARNING,
    )
