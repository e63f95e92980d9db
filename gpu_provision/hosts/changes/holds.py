"""Kernel and driver packages that stay as they are until they are changed on purpose; decided from the record."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpu_provision.hosts.facts.backups import HOME
from gpu_provision.hosts.facts.host import HostRecord
from gpu_provision.hosts.facts.packages import HELD_FILE, VERSIONLOCK, Package
from gpu_provision.model import codes
from gpu_provision.model.findings import Finding

KERNELS = ("linux-image-*", "linux-headers-*", "linux-modules-*", "kernel", "kernel-*")
DRIVERS = ("*nvidia*", "cuda-drivers*")
TOOLKIT = ("nvidia-container-*", "libnvidia-container*")
"""Patterns of packages that are held, and of those that are not though they look so: no driver depends on them."""

_TOOLS: Mapping[str, tuple[str, ...]] = {"dpkg": ("apt-mark",), "rpm": ("zypper", "dnf")}
"""Package manager -> what may hold its packages; the first that is installed does."""

# dnf without repositories: it locks what is installed, and asks nobody.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldChanges:
    """What is missing for packages to be held, or to be held no longer.

    Attributes:
        tool: What holds packages here; empty for nothing.
        hold: Names of packages that are to be held.
        release: Names of packages that we hold and should not.
        ours: Names of all that we hold then.
        listed: Whether the list of these is another one.
    """

    tool: str
    hold: tuple[str, ...] = ()
    release: tuple[str, ...] = ()
    ours: tuple[str, ...] = ()
    listed: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        """Every change in words; empty for none."""
        changes = (("packages held", self.hold), ("packages released", self.release))
        return tuple(f"{what}: {', '.join(names)}" for what, names in changes if names)

    @property
    def commands(self) -> tuple[str, ...]:
        """Shell commands that make the changes. What we are to hold is listed before it is held."""
        release = [_RELEASE[self.tool].format(names=shlex.join(self.release))] if self.release else []
        hold = [_HOLD[self.tool].format(names=shlex.join(self.hold))] if self.hold else []
        return (*release, *([_list(self.ours)] if self.listed else []), *hold)


def hold_changes(record: HostRecord, *, held: bool) -> HoldChanges:
    """Return what is missing.

    Packages that are kept by anything, such as the user's own hold, stay as they are and are none of ours.
    """
    watched = {package.name: package for package in _watched(record)} if held else {}
    hold = tuple(sorted(name for name, package in watched.items() if not record.packages.is_kept(package)))
    gone = [name for name in record.holds.ours if name not in watched]
    tool = tool_of(record)
    release = tuple(name for name in gone if tool and _is_locked(record, name))
    ours = tuple(sorted({*(name for name in record.holds.ours if name in watched), *hold}))
    return HoldChanges(tool=tool, hold=hold, release=release, ours=ours, listed=set(ours) != set(record.holds.ours))


def tool_of(record: HostRecord) -> str:
    """Return what holds packages on a host; empty for nothing. dnf can with its plugin alone."""
    tools = record.holds.tools
    found = next((tool for tool in _TOOLS.get(record.packages.manager, ()) if tool in tools), "")
    return "" if found == "dnf" and VERSIONLOCK not in tools else found


def _watched(record: HostRecord) -> list[Package]:
    apart = set(record.packages.matching(*TOOLKIT))
    return [package for package in record.packages.matching(*KERNELS, *DRIVERS) if package not in apart]


def _is_locked(record: HostRecord, name: str) -> bool:
    """Return whether a package is held; one that is not installed any more may be locked still."""
    packages = replace(record.packages, unattended_exceptions=())
    installed = packages.matching(name) or (Package(name, ""),)
    return any(packages.is_kept(package) for package in installed)


def _list(names: tuple[str, ...]) -> str:
    if not names:
        return f"rm -f {HELD_FILE}"
    fresh = f"{HELD_FILE}.new"
    return f"mkdir -p {HOME} && printf '%s\\n' {shlex.join(names)} >{fresh} && mv -f {fresh} {HELD_FILE}"


def cannot_hold(record: HostRecord, name: str) -> Finding:
    """Return the error about a host on which nothing can hold packages."""
    with_dnf = "dnf" in record.holds.tools
    return Finding(
        code=codes.CANNOT_HOLD,
        what="packages cannot be held on this host",
        where=name,
        evidence="dnf has no versionlock plugin: no /etc/dnf/plugins/versionlock.conf"
        if with_dnf
        else "no apt-mark, zypper or dnf that goes with its package manager",
        fix=f"{'dnf install python3-dnf-plugin-versionlock, or ' if with_dnf else ''}"
        "host_prerequisites: {hold_packages: false} for this node",
    )
