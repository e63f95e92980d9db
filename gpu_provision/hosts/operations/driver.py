"""What the driver needs of a host: kernel modules, nouveau kept away, and persistence mode of a host driver.

Without persistence mode the driver releases a GPU whenever no process uses it, and takes seconds to have it again. A
driver container starts NVIDIA's daemon by itself.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pyinfra.context import host

from gpu_provision.hosts import errors
from gpu_provision.hosts.checks.judge import resolve_driver
from gpu_provision.hosts.facts import FileLines
from gpu_provision.hosts.facts.gpus import DAEMON
from gpu_provision.hosts.facts.host import HostFacts
from gpu_provision.hosts.facts.kernel import NOVA, canonical_name
from gpu_provision.hosts.operations import PATH, Commands, add_finding, add_warning, host_operation, require_host
from gpu_provision.hosts.operations.backups import HostChange, change, change_files, make_changes, run_exclusively
from gpu_provision.hosts.operations.reboot import reboot_needed, reboot_reasons
from gpu_provision.hosts.scripts import (
    ENABLED_FILE,
    HOME,
    MODULES_FILE,
    NOUVEAU_FILE,
    PERSISTENCE_FILE,
    PERSISTENCE_UNIT,
)
from gpu_provision.model.findings import Finding, RunFailedError
from gpu_provision.model.hosts import Expectation

MODULES_HEADER = "# Written by gpu-provision: kernel modules that GPU nodes need at boot."

NOUVEAU_LINES = (
    "# Written by gpu-provision: nouveau and the NVIDIA driver cannot share a GPU.",
    "blacklist nouveau",
    "options nouveau modeset=0",
)

_RED_HAT = "dnf install kernel-modules-{kernel} kernel-modules-extra-{kernel}"

# Where the modules that minimal and cloud kernels leave out come from.
_MODULE_PACKAGES = {
    "ubuntu": "apt-get install linux-modules-extra-{kernel}",
    "debian": "apt-get install linux-image-amd64 (the cloud kernel leaves modules out), then reboot into it",
    **dict.fromkeys(("rhel", "rocky", "centos", "ol"), _RED_HAT),
    "sles": "zypper install kernel-default",
}


def _loadable(record: HostFacts, modules: Iterable[str]) -> list[str]:
    """Return modules by their names in the kernel; one that is built in needs no loading, now and at boot."""
    return [name for name in dict.fromkeys(map(canonical_name, modules)) if name not in record.modules.built_in]


def module_changes(record: HostFacts, modules: Iterable[str]) -> Iterator[HostChange]:
    """Yield what is missing."""
    loadable = _loadable(record, modules)
    absent = [name for name in loadable if name not in record.modules.loaded]
    if absent:
        yield change(f"kernel modules loaded: {', '.join(absent)}", f"{PATH} modprobe -a -- {shlex.join(absent)}")
    lines, known = (MODULES_HEADER, *loadable) if loadable else None, record.modules.own_file
    if lines != known:
        listed = ", ".join(loadable) or "none"
        yield change_files(f"kernel modules listed for the boot: {listed}", {MODULES_FILE: (known, lines)})


def nouveau_changes(record: HostFacts, *, blacklisted: bool) -> Iterator[HostChange]:
    """Yield what is missing. A blacklist of nouveau of another origin will do, and is left alone.

    An image older than the blacklist is rebuilt also when the file is right: an earlier run may have been interrupted
    between the two.
    """
    nouveau, modules = record.nouveau, record.modules
    # A kernel without nova keeps the file that it has.
    nova = tuple(f"blacklist {name}" for name in NOVA if name in modules.available or name in modules.loaded)
    needs_own = nova or nouveau.own_file is not None or not nouveau.blacklisted_elsewhere
    lines = (*NOUVEAU_LINES, *nova) if blacklisted and needs_own else None
    differs = lines != nouveau.own_file
    if differs:
        description = "nouveau blacklisted" if lines else "nouveau no longer blacklisted"
        yield change_files(description, {NOUVEAU_FILE: (nouveau.own_file, lines)})
    stale = differs or (lines is not None and nouveau.initramfs_stale)
    if stale and nouveau.initramfs and nouveau.initramfs_tool:
        rebuild = rebuild_initramfs(nouveau.initramfs_tool, record.kernel.running)
        yield change("initramfs rebuilt", run_exclusively(rebuild))
    unused = [name for name, users in modules.in_tree_drivers.items() if users == 0]
    if blacklisted and unused:
        yield change(f"{' and '.join(unused)} unloaded", f"{PATH} modprobe -r {' '.join(unused)}")


def missing_modules(record: HostFacts, host: str, modules: Sequence[str]) -> Finding:
    """Return the error about kernel modules that a host cannot have with the kernel it runs."""
    kernel, names = record.kernel.running, ", ".join(modules)
    verb, them = ("is", "it") if len(modules) == 1 else ("are", "them")
    directory = f"/lib/modules/{kernel}"
    if not record.modules.directory:
        source = "load modules on the machine whose kernel this is"
        evidence = f"{names} {verb} not loaded, and there is no {directory}: a container, or a kernel without modules"
    else:
        evidence = f"{names} {verb} neither loaded, nor built in, nor in {directory}"
        source = _MODULE_PACKAGES.get(record.system.id, "install the package that holds the modules of kernel {kernel}")
    return errors.finding(
        "kernel_modules", host, evidence, kernel=kernel, names=names, source=source.format(kernel=kernel), them=them
    )


@host_operation
def kernel_modules(modules: Sequence[str]) -> Commands:
    """Load kernel modules now and at every boot.

    Modules that are built into the kernel count as loaded. A module that the running kernel does not have fails
    the host, before anything is changed on it (GP601). A module that a later run leaves out stays loaded until the
    next boot. One call names all that this host gets, with dashes or underscores.
    """
    record = require_host(("system", "kernel", "modules"), modules)
    present = {*record.modules.loaded, *record.modules.available}
    if missing := [name for name in _loadable(record, modules) if name not in present]:
        raise RunFailedError(missing_modules(record, host.name, missing))
    changes = list(module_changes(record, modules))
    yield from make_changes(changes, "modules", "originals")
    if not changes:
        host.noop(f"kernel modules are present: {', '.join(modules)}")


@host_operation
def nouveau(blacklisted: bool = True) -> Commands:  # noqa: FBT001, FBT002 - pyinfra operations take their state so: service(running=True)
    """Keep the nouveau driver away from the GPUs, now and at every boot; or remove gpu-provision's blacklist alone.

    The initramfs is rebuilt only if it does not know the blacklist. A nouveau that is in use stays until the
    next boot: the warning GP603 says so, and it is not a change.
    """
    record = require_host(("system", "kernel", "modules", "nouveau"))
    yield from make_changes(nouveau_changes(record, blacklisted=blacklisted), "modules", "nouveau", "originals")
    reasons = reboot_reasons(record, nouveau_unwanted=blacklisted)
    if reasons:
        add_finding(reboot_needed(host.name, reasons))


def rebuild_initramfs(tool: str, kernel: str) -> str:
    """Return the shell command that rebuilds the initramfs of a kernel."""
    options = {"update-initramfs": "-u -k", "dracut": "--force --kver"}
    return f"{PATH} {tool} {options[tool]} {shlex.quote(kernel)}"


PROGRAM = "/usr/bin/nvidia-smi"

UNIT_LINES = (
    "# Written by gpu-provision: keeps the driver initialized while the GPUs are idle.",
    "[Unit]",
    "Description=Persistence mode of NVIDIA GPUs",
    f"After={DAEMON}.service",
    "[Service]",
    "Type=oneshot",
    "RemainAfterExit=yes",
    f"ExecStart={PROGRAM} -pm 1",
    "TimeoutStartSec=120",
    "[Install]",
    "WantedBy=multi-user.target",
)


def persistence_changes(record: HostFacts, *, on: bool) -> Iterator[HostChange]:
    """Yield what is missing; what others have enabled stays as it is."""
    unit, known = _unit(record) if on else "", record.persistence
    if unwanted := [name for name in known.enabled if name != unit]:
        yield change(f"units disabled: {', '.join(unwanted)}", run_exclusively(f"{PATH}; {disable(unwanted)}"))
    lines = UNIT_LINES if unit == PERSISTENCE_UNIT else None
    if _without_comments(lines) != _without_comments(known.own_file):
        description = f"unit {PERSISTENCE_UNIT} {'made' if lines else 'removed'}"
        yield change_files(description, {PERSISTENCE_FILE: (known.own_file, lines)})
    state = record.services.unit(unit) if unit else None
    if unit and (state is None or state.enabled in {"", "disabled"}):
        # recorded first; systemd reloads no other unit
        listed = f"touch {ENABLED_FILE} && {{ grep -qx {unit} {ENABLED_FILE} || echo {unit} >>{ENABLED_FILE}; }}"
        enable = f"mkdir -p {HOME} && {listed} && systemctl --quiet --no-reload enable {unit}"
        yield change(f"persistence mode at every boot, by {unit}", run_exclusively(f"{PATH}; {enable}"))
    if unit and record.driver.loaded and (state is None or state.active != "active"):
        yield change(f"persistence mode on, by {unit}", f"{PATH} systemctl start {unit}")


def _without_comments(lines: FileLines) -> FileLines:
    return lines and tuple(line for line in lines if not line.startswith("#"))


def _unit(record: HostFacts) -> str:
    """Return the unit for persistence mode: NVIDIA's daemon unless that turns it off, else gpu-provision's own.

    Empty if there is neither the daemon nor nvidia-smi, or no systemd to run a unit.
    """
    if record.persistence.no_systemd:
        return ""
    daemon = record.services.unit(DAEMON)
    if daemon and daemon.enabled != "masked" and not record.persistence.daemon_off:
        return DAEMON
    return PERSISTENCE_UNIT if PROGRAM in record.driver.programs else ""


def disable(units: Sequence[str]) -> str:
    """Return the shell command that disables units that we enabled; one that is gone needs none."""
    fresh = f"{ENABLED_FILE}.new"
    return (
        f'for unit in {shlex.join(units)}; do systemctl --quiet --no-reload disable -- "$unit" || :;'
        f' grep -vxF -e "$unit" {ENABLED_FILE} >{fresh} || :; mv -f {fresh} {ENABLED_FILE}; done'
    )


@host_operation
def persistence_mode(on: bool = True, expected: Mapping[str, Any] | None = None) -> Commands:  # noqa: FBT001, FBT002 - pyinfra operations take their state so
    """Keep a host driver initialized, now and at every boot; or no longer, as far as that was our doing.

    A driver that a container has brought is left to it.
    """
    record = require_host(("system", "kernel", "driver", "services", "persistence"))
    wanted = on and has_own_driver(record, expected)
    if wanted and not _unit(record):
        why = f"no usable {DAEMON}.service, no {PROGRAM}"
        fix = "install the driver's own programs (Ubuntu: nvidia-utils-BRANCH-server; RHEL: nvidia-persistenced)"
        if record.persistence.no_systemd:
            why = "systemd does not run here"
            fix = f"have what starts this host's services run {PROGRAM} -pm 1 at boot"
        add_warning("persistence", version=record.driver.version or "of unknown version", why=why, way=fix)
    yield from make_changes(persistence_changes(record, on=wanted), "services", "persistence", "originals")


def has_own_driver(record: HostFacts, expected: Mapping[str, Any] | None) -> bool:
    """Return whether a host has a driver of its own, and its GPUs are used through it."""
    by_container = expected is not None and resolve_driver(Expectation.from_data(expected), record).driver_container
    return record.driver.on_host and not record.driver.in_container and not by_container
