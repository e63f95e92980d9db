"""Headers of the kernels that a host compiles its driver for, decided from the host's record alone."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpu_provision.hosts.facts.backups import HOME
from gpu_provision.hosts.facts.host import HostRecord
from gpu_provision.hosts.facts.packages import INSTALLED_FILE
from gpu_provision.model import codes
from gpu_provision.model.findings import Finding

LOG = "/run/gpu-provision/headers.log"
"""What the package manager printed last."""

_TOOLS: Mapping[str, tuple[tuple[str, str], ...]] = {
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
    """What is missing.

    Attributes:
        kernels: Kernels without headers that need some.
        packages: What to install for them, as the tool wants it named; fewer than kernels if a name is not known.
        tool: What installs packages here; empty for nothing.
        manager: The package manager below it.
    """

    kernels: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    tool: str = ""
    manager: str = ""

    @property
    def words(self) -> tuple[str, ...]:
        """Every change in words; empty for none."""
        return (f"kernel headers installed: {', '.join(self.kernels)}",) if self.kernels else ()


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
    tool = next((installs for known, installs in _TOOLS.get(manager, ()) if known in there), "")
    names = (_package(record, tool, release) for release in kernels) if tool else ()
    return HeaderChanges(kernels=kernels, packages=tuple(filter(None, names)), tool=tool, manager=manager)


def _package(record: HostRecord, tool: str, release: str) -> str:
    """Return the package with a kernel's headers, by its exact version; empty if its name is not known."""
    match tool:
        case "apt-get":
            return f"linux-headers-{release}"
        case "dnf":
            return f"kernel-devel-uname-r = {release}"
        case _:
            return _package_of_suse(record, release)


def _package_of_suse(record: HostRecord, release: str) -> str:
    """Return SUSE's package: ``uname -r`` leaves out which build of the kernel this is, its own package says it."""
    version, _, flavor = release.rpartition("-")
    builds = (each.version for each in record.packages.matching(f"kernel-{flavor}"))
    found = next((build for build in builds if re.fullmatch(rf"{re.escape(version)}(\.\d+)?", build)), "")
    return f"kernel-{flavor}-devel = {found}" if found else ""


def install(changes: HeaderChanges) -> str:
    """Return the shell command that installs packages and writes down which ones are new; it does not fail.

    Package lists are refreshed only if these packages are not in them.
    """
    command = _INSTALL[changes.tool].format(names=shlex.join(changes.packages))
    listed = _LISTED[changes.manager]
    return f"""mkdir -p {HOME} {LOG.rpartition("/")[0]}
before=$({listed})
{{ {command} || {{ {_REFRESH[changes.tool]} && {command}; }}; }} >{LOG} 2>&1 </dev/null || :
{{ {listed}; }} | grep -vxF "$before" >>{INSTALLED_FILE} || :"""


def remove(manager: str, packages: Sequence[str]) -> str:
    """Return the shell command that removes packages that we installed; one that others need by now stays."""
    return f"{_REMOVE[manager].format(names=shlex.join(packages))} || :"


def not_there(changes: HeaderChanges, host: str, kernels: Sequence[str], log: Sequence[str]) -> Finding:
    """Return the error about kernels that there are no headers for."""
    said = [line.strip() for line in log if line.strip()]
    told = next((line for line in said if line.startswith(("E:", "Error", "No provider"))), "")
    return Finding(
        code=codes.NO_HOST_HEADERS,
        what=f"there are no headers for kernel {', '.join(kernels)}, which the driver is compiled with",
        where=host,
        evidence=re.sub(r"://[^/@\s]+@", "://", told or (said[-1] if said else ""))
        or f"{changes.tool or 'no package manager'} said nothing",
        consequence="DKMS cannot build the driver, and the next boot has none",
        fix=f"install a kernel that the archives have headers for: {_NEWER[changes.tool]}, then reboot into it; or"
        " host_prerequisites: {kernel_headers: false}",
    )


def no_tool(record: HostRecord, host: str, kernels: Sequence[str]) -> Finding:
    """Return the error about a host on which nobody knows how headers are installed."""
    return Finding(
        code=codes.NO_HOST_HEADERS,
        what=f"headers for kernel {', '.join(kernels)} cannot be installed: the name of their package is not known",
        where=host,
        evidence=f"{record.packages.manager or 'no package manager'}; no apt-get, zypper or dnf that goes with it, or"
        f" no package of the kernel {record.kernel.running}",
        fix="install them by hand, or host_prerequisites: {kernel_headers: false} for this node",
    )
