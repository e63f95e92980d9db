"""What has to change on a host, decided from its record alone."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyinfra.api.command import StringCommand
from pyinfra.context import host, state

from gpu_provision.hosts import codes
from gpu_provision.hosts.checks import images
from gpu_provision.hosts.checks.judge import check_host, resolve_driver
from gpu_provision.hosts.checks.subject import CheckedHost
from gpu_provision.hosts.facts.host import ALL, HostRecord
from gpu_provision.hosts.facts.kernel import canonical
from gpu_provision.hosts.facts.parser import FileLines
from gpu_provision.hosts.findings import (
    PATH,
    Commands,
    add_finding,
    host_operation,
    record_changes,
    show_diff,
)
from gpu_provision.hosts.gpu_host import RECORD, forget_sections, require_host
from gpu_provision.hosts.operations.backups import exclusively, write_with_backup
from gpu_provision.hosts.paths import (
    MODULES_FILE,
    NOUVEAU_FILE,
)
from gpu_provision.hosts.reboot_rules import reboot_needed, reboot_reasons
from gpu_provision.model.expectation import Expectation
from gpu_provision.model.findings import Finding, RunFailed, Severity

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


@host_operation
def preflight(expected: Mapping[str, Any]) -> Commands:
    """Judge a host before anything is changed on it: an error fails the host; never a change.

    Args:
        expected: What the inventory expects of this machine: the fields of
            gpu_provision.model.expectation.Expectation, as ``host.data.gpu_expected`` has them.
    """
    wanted = Expectation.of(expected)
    if state.is_executing:  # somebody may have thought about the plan for a while
        forget_sections()
    record = require_host(ALL, wanted.kernel_modules)
    host.connector_data[RECORD] = record
    wanted = resolve_driver(wanted, record)
    findings = check_host(CheckedHost(wanted, record, images.look_up_driver_image(wanted, record)))
    for finding in findings:
        if finding.severity is Severity.WARNING:
            add_finding(finding)
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if errors:
        raise RunFailed(*errors)
    yield from ()


@host_operation
def kernel_modules(modules: Sequence[str]) -> Commands:
    """Load kernel modules now and at every boot.

    Modules that are built into the kernel count as loaded. A module that the running kernel does not have fails
    the host, before anything is changed on it (GP601). A module that a later run leaves out stays loaded until the
    next boot.

    Args:
        modules: Names of modules, with dashes or underscores: all that this host gets, in one call.

    Example::

        kernel_modules(name="IPMI for DCGM", modules=["ipmi_devintf", "ipmi_si"], _sudo=True)
    """
    record = require_host(("system", "kernel", "modules"), modules)
    changes = module_changes(record, modules)
    if changes.missing:
        raise RunFailed(missing_modules(record, host.name, changes.missing))
    record_changes(changes.words, "modules", "originals")
    show_diff(MODULES_FILE, record.modules.own_file, changes.file)
    if changes.load:
        yield StringCommand(f"{PATH} modprobe -a -- {shlex.join(changes.load)}")
    if changes.file_differs:
        yield write_with_backup(MODULES_FILE, changes.file)
    if not changes.load and not changes.file_differs:
        host.noop(f"kernel modules are present: {', '.join(modules)}")


@host_operation
def nouveau(blacklisted: bool = True) -> Commands:  # noqa: FBT001, FBT002 - pyinfra operations take their state so: service(running=True)
    """Keep the nouveau driver away from the GPUs, now and at every boot; or remove gpu-provision's blacklist.

    The initramfs is rebuilt only if it does not know the blacklist. A nouveau that is in use stays until the
    next boot: the warning GP603 says so, and it is not a change.

    Args:
        blacklisted: False removes gpu-provision's blacklist and leaves all others alone.

    Example::

        nouveau(name="No nouveau on GPU machines", blacklisted=True, _sudo=True)
    """
    record = require_host(("system", "kernel", "modules", "nouveau"))
    changes = nouveau_changes(record, blacklisted=blacklisted)
    record_changes(changes.words, "modules", "nouveau", "originals")
    show_diff(NOUVEAU_FILE, record.nouveau.own_file, changes.file)
    if changes.file_differs:
        yield write_with_backup(NOUVEAU_FILE, changes.file)
    if changes.rebuild_initramfs:
        yield StringCommand(exclusively(rebuild_initramfs(record.nouveau.initramfs_tool, record.kernel.running)))
    if changes.unload:
        yield StringCommand(f"{PATH} modprobe -r nouveau")
    reasons = reboot_reasons(record, nouveau_unwanted=blacklisted)
    if reasons:
        add_finding(reboot_needed(host.name, reasons))


def rebuild_initramfs(tool: str, kernel: str) -> str:
    """Return the shell command that makes the initramfs of a kernel anew."""
    commands = {
        "update-initramfs": f"update-initramfs -u -k {shlex.quote(kernel)}",
        "dracut": f"dracut --force --kver {shlex.quote(kernel)}",
    }
    return f"{PATH} {commands[tool]}"
