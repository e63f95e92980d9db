"""Kernel headers that are installed, and packages that are held, decided from the host's record alone."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyinfra.api.command import StringCommand
from pyinfra.context import host, state
from pyinfra.facts.server import Command

from gpu_provision.hosts.facts.host import HostRecord
from gpu_provision.hosts.facts.packages import Package
from gpu_provision.hosts.operations.backups import HostChange, change, exclusively, make_changes
from gpu_provision.hosts.operations.base import PATH, Commands, host_operation, read_host, record_changes, require_host
from gpu_provision.hosts.operations.driver import has_own_driver
from gpu_provision.hosts.scripts import HEADERS_LOG, HELD_FILE, HOME, INSTALLED_FILE
from gpu_provision.model import codes
from gpu_provision.model.findings import Finding, RunFailedError

_INSTALLERS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "dpkg": (("apt-mark", "apt-get"),),
    "rpm": (("zypper", "zypper"), ("dnf", "dnf")),
}
"""Package manager -> (tool that is known to be there, what installs then); the first that is there does."""

_INSTALL = {
    "apt-get": "DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends"
    " -o DPkg::Lock::Timeout=300 install {names}",
    "zypper": "zypper --non-interactive install --no-recommends {names}",
    "dnf": "dnf -q -y --setopt=install_weak_deps=False install {names}",
}

_REFRESH = {
    "apt-get": "apt-get -q -o DPkg::Lock::Timeout=300 update",
    "zypper": "zypper --non-interactive refresh",
    "dnf": "dnf -q makecache",
}

_NEWER = {
    "apt-get": "apt-get install linux-image-generic (Debian: linux-image-amd64)",
    "zypper": "zypper update kernel-default",
    "dnf": "dnf upgrade kernel",
}

_LISTED = {
    "dpkg": r"dpkg-query -W -f '${db:Status-Abbrev} ${Package}\n' | sed -nE 's/^.i[^ ]* +([^ ]+).*/\1/p' | sort",
    "rpm": r"rpm -qa --qf '%{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}\n' | sort",
}

_REMOVE = {"dpkg": "dpkg --remove {names}", "rpm": "rpm -e {names}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderChanges:
    """What is missing."""

    kernels: tuple[str, ...] = ()  # kernels without headers that need some
    # what to install for them, as the tool wants it named; fewer than kernels if a name is not known
    packages: tuple[str, ...] = ()
    tool: str = ""  # what installs packages here; empty for nothing
    manager: str = ""  # the package manager below it


def is_compiled_here(record: HostRecord) -> bool:
    """Return whether a host compiles its driver itself: by DKMS, or by NVIDIA's installer."""
    by_package = record.packages.matching("*nvidia*dkms*")
    return bool(record.driver.dkms or by_package or "/usr/bin/nvidia-uninstall" in record.driver.programs)


def header_changes(record: HostRecord) -> HeaderChanges:
    """Return what is missing for the kernel that runs and the one that boots next."""
    following = record.kernels.next
    releases = dict.fromkeys((record.kernel.running, following.release if following else record.kernel.running))
    kernels = tuple(release for release in releases if release not in record.kernels.with_headers)
    manager, there = record.packages.manager, record.holds.tools
    tool = next((installs for known, installs in _INSTALLERS.get(manager, ()) if known in there), "")
    names = (_headers_package(record, tool, release) for release in kernels) if tool else ()
    return HeaderChanges(kernels=kernels, packages=tuple(filter(None, names)), tool=tool, manager=manager)


def _headers_package(record: HostRecord, tool: str, release: str) -> str:
    """Return the package with a kernel's headers, by its exact version; empty if its name is not known."""
    if tool == "apt-get":
        return f"linux-headers-{release}"
    if tool == "dnf":
        return f"kernel-devel-uname-r = {release}"
    # SUSE: ``uname -r`` leaves out which build of the kernel this is, its own package says it
    version, _, flavor = release.rpartition("-")
    builds = (each.version for each in record.packages.matching(f"kernel-{flavor}"))
    found = next((build for build in builds if re.fullmatch(rf"{re.escape(version)}(\.\d+)?", build)), "")
    return f"kernel-{flavor}-devel = {found}" if found else ""


def install_headers(changes: HeaderChanges) -> str:
    """Return the shell command that installs packages and writes down which ones are new; it does not fail.

    Package lists are refreshed only if these packages are not in them.
    """
    command = _INSTALL[changes.tool].format(names=shlex.join(changes.packages))
    listed = _LISTED[changes.manager]
    return f"""mkdir -p {HOME} {HEADERS_LOG.rpartition("/")[0]}
before=$({listed})
{{ {command} || {{ {_REFRESH[changes.tool]} && {command}; }}; }} >{HEADERS_LOG} 2>&1 </dev/null || :
{{ {listed}; }} | grep -vxF "$before" >>{INSTALLED_FILE} || :"""


def remove_packages(manager: str, packages: Sequence[str]) -> str:
    """Return the shell command that removes packages that we installed; one that others need by now stays."""
    return f"{_REMOVE[manager].format(names=shlex.join(packages))} || :"


def headers_missing(changes: HeaderChanges, host: str, kernels: Sequence[str], log: Sequence[str]) -> Finding:
    """Return the error about kernels that there are no headers for."""
    said = [line.strip() for line in log if line.strip()]
    told = next((line for line in said if line.startswith(("E:", "Error", "No provider"))), "")
    return Finding(
        code=codes.NO_HEADERS,
        what=f"there are no headers for kernel {', '.join(kernels)}, which the driver is compiled with",
        where=host,
        evidence=re.sub(r"://[^/@\s]+@", "://", told or (said[-1] if said else ""))
        or f"{changes.tool or 'no package manager'} said nothing",
        consequence="DKMS cannot build the driver, and the next boot has none",
        fix=f"install a kernel that the archives have headers for: {_NEWER[changes.tool]}, then reboot into it; or"
        " host_prerequisites: {kernel_headers: false}",
    )


KERNELS = ("linux-image-*", "linux-headers-*", "linux-modules-*", "kernel", "kernel-*")

DRIVERS = ("*nvidia*", "cuda-drivers*")

TOOLKIT = ("nvidia-container-*", "libnvidia-container*")
"""Patterns of packages that are held, and of those that are not though they look so: no driver depends on them."""

_HOLD_TOOLS: Mapping[str, tuple[str, ...]] = {"dpkg": ("apt-mark",), "rpm": ("zypper", "dnf")}
"""Package manager -> what may hold its packages; the first that is installed does."""

# dnf without repositories: it locks what is installed, offline.
_HOLD = {
    "apt-mark": "apt-mark -q hold {names}",
    "zypper": "zypper --non-interactive --quiet addlock {names}",
    "dnf": "dnf -q --disablerepo='*' versionlock add {names}",
}

_RELEASE = {
    "apt-mark": "apt-mark -q unhold {names}",
    "zypper": "zypper --non-interactive --quiet removelock {names}",
    "dnf": "dnf -q --disablerepo='*' versionlock delete {names}",
}


def hold_changes(record: HostRecord, host: str, *, held: bool) -> Iterator[HostChange]:
    """Yield what is missing. Raises RunFailedError if nothing on this host can hold packages.

    Packages that are kept by anything, such as the user's own hold, stay as they are and are not listed.
    """
    apart = set(record.packages.matching(*TOOLKIT))
    matching = record.packages.matching(*KERNELS, *DRIVERS) if held else ()
    watched = {package.name: package for package in matching if package not in apart}
    hold = sorted(name for name, package in watched.items() if not record.packages.is_kept(package))
    ours, tool = record.holds.ours, hold_tool(record)
    if hold and not tool:
        with_dnf = "dnf" in record.holds.tools
        raise RunFailedError(
            Finding(
                code=codes.HOLDS_UNSUPPORTED,
                what="packages cannot be held on this host",
                where=host,
                evidence="dnf has no versionlock plugin: no /etc/dnf/plugins/versionlock.conf"
                if with_dnf
                else "no apt-mark, zypper or dnf that goes with its package manager",
                fix=f"{'dnf install python3-dnf-plugin-versionlock, or ' if with_dnf else ''}"
                "host_prerequisites: {hold_packages: false} for this node",
            )
        )
    release = [name for name in ours if name not in watched and tool and _is_locked(record, name)]
    listed = sorted({*(name for name in ours if name in watched), *hold})
    commands = [exclusively(f"{PATH}; {_write_held(listed)}")] if set(listed) != set(ours) else []
    if hold:  # listed before they are held, in case of an interruption
        names, command = ", ".join(hold), _HOLD[tool].format(names=shlex.join(hold))
        yield change(f"packages held: {names}", *commands, exclusively(f"{PATH}; {command}"))
        commands = []
    if release:
        names, command = ", ".join(release), _RELEASE[tool].format(names=shlex.join(release))
        yield change(f"packages released: {names}", exclusively(f"{PATH}; {command}"), *commands)
        commands = []
    if commands:
        yield change("", *commands)


def hold_tool(record: HostRecord) -> str:
    """Return what holds packages on a host; empty for nothing. dnf can with its plugin alone."""
    tools = record.holds.tools
    found = next((tool for tool in _HOLD_TOOLS.get(record.packages.manager, ()) if tool in tools), "")
    return "" if found == "dnf" and "versionlock" not in tools else found


def _is_locked(record: HostRecord, name: str) -> bool:
    """Return whether a package is held; one that is not installed any more may be locked still."""
    packages = replace(record.packages, unattended_exceptions=())
    installed = packages.matching(name) or (Package(name, ""),)
    return any(packages.is_kept(package) for package in installed)


def _write_held(names: Sequence[str]) -> str:
    if not names:
        return f"rm -f {HELD_FILE}"
    fresh = f"{HELD_FILE}.new"
    return f"mkdir -p {HOME} && printf '%s\\n' {shlex.join(names)} >{fresh} && mv -f {fresh} {HELD_FILE}"


@host_operation
def kernel_headers(mode: bool | str = "auto", expected: Mapping[str, Any] | None = None) -> Commands:  # noqa: FBT001 - as above
    """Have headers of the running kernel, and of the one that boots next, where the driver is compiled on the host.

    Installed by the host's package manager in the kernel's exact version. ``auto`` is where the host has a driver of
    its own, by DKMS or NVIDIA's installer; True in any case; False nowhere. Headers that are there stay.
    """
    record = require_host(("system", "kernel", "kernels", "packages", "driver", "holds"))
    compiled = is_compiled_here(record) and has_own_driver(record, expected)
    wanted = mode is True or (mode == "auto" and compiled)
    changes = header_changes(record) if wanted else HeaderChanges()
    if len(changes.packages) < len(changes.kernels):
        kernels = ", ".join(changes.kernels)
        raise RunFailedError(
            Finding(
                code=codes.NO_HEADERS,
                what=f"headers for kernel {kernels} cannot be installed: the name of their package is not known",
                where=host.name,
                evidence=f"{record.packages.manager or 'no package manager'}; no apt-get, zypper or dnf that goes with"
                f" it, or no package of the kernel {record.kernel.running}",
                fix="install them by hand, or host_prerequisites: {kernel_headers: false} for this node",
            )
        )
    words = [f"kernel headers installed: {', '.join(changes.kernels)}"] if changes.kernels else []
    record_changes(words, "system", "kernels", "packages", "holds", "originals")
    if not changes.kernels:
        return
    yield StringCommand(exclusively(f"{PATH}; {install_headers(changes)}"))
    after = read_host(("kernel", "kernels")) if state.is_executing else None
    missing = [release for release in changes.kernels if after and release not in after.kernels.with_headers]
    if missing:
        log: str = host.get_fact(Command, f"tail -n 20 {HEADERS_LOG} || :") or ""
        raise RunFailedError(headers_missing(changes, host.name, missing, log.splitlines()))


@host_operation
def packages_held(held: bool = True) -> Commands:  # noqa: FBT001, FBT002 - as above
    """Hold the installed kernel and driver packages against upgrades; or release those that gpu-provision holds.

    Uses apt-mark, zypper or dnf's versionlock plugin; a host with none of them fails (GP681). Packages that are held
    already, such as by an administrator, stay as they are.

    Args:
        held: False releases what gpu-provision holds, and leaves all other holds alone.

    Example::

        packages_held(name="Kernel and driver stay", held=True, _sudo=True)
    """
    record = require_host(("system", "kernel", "packages", "holds"))
    yield from make_changes(hold_changes(record, host.name, held=held), "packages", "holds")
