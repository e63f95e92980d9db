"""Packages that matter to drivers, what holds them, and what replaces them unattended."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gpu_provision.hosts.facts import SectionOutput


@dataclass(frozen=True, slots=True)
class Package:
    """An installed package."""

    name: str
    version: str
    held: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Packages:
    """The package manager's view."""

    manager: str = ""  # ``dpkg`` or ``rpm``; empty for neither
    installed: tuple[Package, ...] = ()  # packages of drivers and kernels
    # patterns of names that the package manager leaves alone: version locks, excludes, zypper's locks
    locks: tuple[str, ...] = ()
    unattended: tuple[str, ...] = ()  # settings by which packages are replaced without anybody asking; empty for none
    unattended_exceptions: tuple[str, ...] = ()  # regular expressions of names that unattended upgrades leave alone

    def matching(self, *patterns: str) -> tuple[Package, ...]:
        """Return the installed packages whose names match a shell pattern."""
        return tuple(each for each in self.installed if any(fnmatchcase(each.name, pattern) for pattern in patterns))

    def is_kept(self, package: Package) -> bool:
        """Return whether unattended upgrades leave a package as it is."""
        locked = any(_names(lock, package.name) for lock in self.locks)
        return package.held or locked or any(_search(rule, package.name) for rule in self.unattended_exceptions)


def read_packages(output: SectionOutput) -> Packages:
    """Read the section's lines."""
    return Packages(
        manager=output.first("manager"),
        installed=tuple(_packages(output.all("package"))),
        locks=(
            *output.all("lock"),
            *(name for line in output.all("exclude") for name in re.split(r"[\s,]+", line) if name),
        ),
        unattended=tuple(_unattended(output)),
        unattended_exceptions=tuple(_values(output.all("apt"), "Unattended-Upgrade::Package-Blacklist::")),
    )


def _packages(lines: Iterable[str]) -> Iterator[Package]:
    """Read ``h linux-image-generic 5.15.0.122.122``: h for a package on hold."""
    for line in lines:
        match line.split():
            case [status, name, version]:
                yield Package(name, version, held=status == "h")


def _unattended(output: SectionOutput) -> Iterable[str]:
    """Yield what upgrades packages by itself, as it was read."""
    switched_off = '"0"' in "".join(line for line in output.all("apt") if line.startswith("APT::Periodic::Enable "))
    for line in output.all("apt"):
        active = line.startswith("APT::Periodic::Unattended-Upgrade ") and '"0"' not in line
        installed = any(package.name == "unattended-upgrades" for package in _packages(output.all("package")))
        if active and installed and not switched_off:
            yield line
    timers = output.all("timer")
    if "dnf-automatic-install" in timers:
        yield "dnf-automatic-install.timer is enabled"
    if "dnf-automatic" in timers and output.first("automatic") in {"yes", "true", "True", "1", "on"}:
        yield "apply_updates = yes in /etc/dnf/automatic.conf, and dnf-automatic.timer is enabled"
    if "transactional-update" in timers:
        yield "transactional-update.timer is enabled"
    yield from output.all("job")


def _values(lines: Iterable[str], key: str) -> Iterable[str]:
    """Yield the values of an apt list: ``Unattended-Upgrade::Package-Blacklist:: "linux-";``."""
    for line in lines:
        found = re.fullmatch(rf'{re.escape(key)}\s*"(.*)";', line)
        if found:
            yield found[1]


def _names(lock: str, name: str) -> bool:
    """Return whether a lock keeps a package: ``kernel*``, ``nvidia-driver-3:550.54.15-1.el9.*``.

    One that begins with an exclamation mark shuts out a single version, and holds nothing.
    """
    if lock.startswith("!"):
        return False
    without_epoch = re.sub(r"^\d+:", "", lock)
    bare = re.sub(r"-(?:\d+:)?\d[^-]*-[^-]*$", "", without_epoch)
    return fnmatchcase(name, bare) or fnmatchcase(name, without_epoch)


def _search(rule: str, name: str) -> bool:
    try:
        return re.match(rule, name) is not None
    except re.error:
        return rule in name


@dataclass(frozen=True, slots=True, kw_only=True)
class Holds:
    """What there is."""

    # those of ``apt-mark``, ``zypper`` and ``dnf`` that are installed, and ``versionlock``, dnf's plugin
    tools: tuple[str, ...] = ()
    ours: tuple[str, ...] = ()  # packages that gpu-provision holds, or held until others released them
    installed: tuple[str, ...] = ()  # packages that gpu-provision installed


def read_holds(output: SectionOutput) -> Holds:
    """Read the section's lines."""
    return Holds(tools=tuple(output.all("tool")), ours=output.names("ours"), installed=output.names("installed"))
