"""pyinfra operations for GPU hosts. Each reads the host once and changes only what differs."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from pyinfra.api.command import StringCommand
from pyinfra.api.operation import operation
from pyinfra.context import host, state

from gpu_provision.hosts import driver_image
from gpu_provision.hosts.changes.holds import cannot_hold, hold_changes
from gpu_provision.hosts.changes.modules import (
    missing_modules,
    module_changes,
    nouveau_changes,
    reboot_needed,
    reboot_reasons,
    unreadable,
)
from gpu_provision.hosts.changes.settings import set_now, settings_changes
from gpu_provision.hosts.checks.judge import decided, judge
from gpu_provision.hosts.checks.subject import Subject
from gpu_provision.hosts.facts.host import ALL
from gpu_provision.hosts.facts.kernel import MODULES_FILE, NOUVEAU_FILE
from gpu_provision.hosts.facts.system import LINKS_SCRIPT
from gpu_provision.hosts.findings import Commands, add_finding, fail, record_changes, show_diff
from gpu_provision.hosts.gpu_host import RECORD, forget_sections, read_host
from gpu_provision.hosts.operations.backups import alone, put
from gpu_provision.model.findings import Severity
from gpu_provision.model.hosts import Expectation

PATH = "PATH=$PATH:/usr/sbin:/sbin"
"""Before a command of root's: an ordinary user's may lack them, and sudo may keep it."""


@operation()
def preflight(expected: Mapping[str, Any]) -> Commands:
    """Judge a host before anything is changed on it: an error fails the host; never a change.

    Args:
        expected: What the inventory expects of this machine: the fields of
            gpu_provision.model.hosts.Expectation, as ``host.data.gpu_expected`` has them.
    """
    wanted = Expectation.of(expected)
    if state.is_executing:  # somebody may have thought about the plan for a while
        forget_sections()
    record = read_host(ALL, wanted.kernel_modules)
    if record is None:
        yield from fail(unreadable(host.name))
        return
    host.connector_data[RECORD] = record
    wanted = decided(wanted, record)
    findings = judge(Subject(wanted, record, driver_image.answer(wanted, record)))
    for finding in findings:
        if finding.severity is Severity.WARNING:
            add_finding(finding)
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if errors:
        yield from fail(*errors)


@operation()
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
    record = read_host(("system", "kernel", "modules"), modules)
    if record is None:
        yield from fail(unreadable(host.name))
        return
    changes = module_changes(record, modules)
    if changes.missing:
        yield from fail(missing_modules(record, host.name, changes.missing))
        return
    record_changes(changes.words, "modules", "originals")
    show_diff(MODULES_FILE, record.modules.own_file, changes.file)
    if changes.load:
        yield StringCommand(f"{PATH} modprobe -a -- {shlex.join(changes.load)}")
    if changes.file_differs:
        yield put(MODULES_FILE, changes.file)
    if not changes.load and not changes.file_differs:
        host.noop(f"kernel modules are present: {', '.join(modules)}")


@operation()
def nouveau(blacklisted: bool = True) -> Commands:  # noqa: FBT001, FBT002 - pyinfra operations take their state so: service(running=True)
    """Keep the nouveau driver away from the GPUs, now and at every boot; or remove gpu-provision's blacklist.

    The initramfs is rebuilt only if it does not know the blacklist. A nouveau that is in use stays until the
    next boot: the warning GP603 says so, and it is not a change.

    Args:
        blacklisted: False removes gpu-provision's blacklist and leaves all others alone.

    Example::

        nouveau(name="No nouveau on GPU machines", blacklisted=True, _sudo=True)
    """
    record = read_host(("system", "kernel", "modules", "nouveau"))
    if record is None:
        yield from fail(unreadable(host.name))
        return
    changes = nouveau_changes(record, blacklisted=blacklisted)
    record_changes(changes.words, "modules", "nouveau", "originals")
    show_diff(NOUVEAU_FILE, record.nouveau.own_file, changes.file)
    if changes.file_differs:
        yield put(NOUVEAU_FILE, changes.file)
    if changes.rebuild_initramfs:
        yield StringCommand(alone(rebuild_initramfs(record.nouveau.initramfs_tool, record.kernel.running)))
    if changes.unload:
        yield StringCommand(f"{PATH} modprobe -r nouveau")
    reasons = reboot_reasons(record, nouveau_unwanted=blacklisted)
    if reasons:
        add_finding(reboot_needed(host.name, reasons))


@operation()
def packages_held(held: bool = True) -> Commands:  # noqa: FBT001, FBT002 - as above
    """Hold the installed kernel and driver packages against upgrades; or release those that gpu-provision holds.

    Uses apt-mark, zypper or dnf's versionlock plugin; a host with none of them fails (GP681). Packages that are held
    already, such as by an administrator, stay as they are.

    Args:
        held: False releases what gpu-provision holds, and leaves all other holds alone.

    Example::

        packages_held(name="Kernel and driver stay", held=True, _sudo=True)
    """
    record = read_host(("system", "kernel", "packages", "holds"))
    if record is None:
        yield from fail(unreadable(host.name))
        return
    changes = hold_changes(record, held=held)
    if changes.hold and not changes.tool:
        yield from fail(cannot_hold(record, host.name))
        return
    record_changes(changes.words, "packages", "holds")
    for command in changes.commands:
        yield StringCommand(alone(f"{PATH}; {command}"))


@operation()
def settings(sysctls: Mapping[str, str], dev_char_symlinks: bool = False) -> Commands:  # noqa: FBT001, FBT002 - as above
    """Have kernel parameters set, and GPUs linked by their numbers, now and at every boot.

    What is no longer declared is no longer kept for the boot; what it has set stays until then.

    Args:
        sysctls: Kernel parameters by name: ``{"vm.max_map_count": "262144"}``.
        dev_char_symlinks: Whether a udev rule links GPUs in /dev/char whenever a driver loads.
    """
    record = read_host(("system", "kernel", "settings"))
    if record is None:
        yield from fail(unreadable(host.name))
        return
    changes = settings_changes(record.settings, sysctls=sysctls, links=dev_char_symlinks)
    record_changes(changes.words, "settings", "originals")
    for path, lines in changes.files.items():
        show_diff(path, record.settings.files.get(path), lines)
    if changes.sysctls:
        yield StringCommand(set_now(changes.sysctls))
    for path, lines in changes.files.items():
        yield put(path, lines)
    if changes.rules:
        yield StringCommand(f"{PATH}; ! command -v udevadm >/dev/null || udevadm control --reload || :")
    if changes.links:
        yield StringCommand(f"sh {LINKS_SCRIPT}")


def rebuild_initramfs(tool: str, kernel: str) -> str:
    """Return the shell command that makes the initramfs of a kernel anew."""
    commands = {
        "update-initramfs": f"update-initramfs -u -k {shlex.quote(kernel)}",
        "dracut": f"dracut --force --kver {shlex.quote(kernel)}",
    }
    return f"{PATH} {commands[tool]}"
