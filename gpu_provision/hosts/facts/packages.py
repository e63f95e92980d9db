"""Packages that matter to drivers, what holds them, and what replaces them unattended."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gpu_provision.hosts.facts.backups import HOME
from gpu_provision.hosts.facts.section import Said, Section

_DEBIAN_NAMES = (
    "'*nvidia*' 'cuda-drivers*' 'linux-image-*' 'linux-headers-*' 'linux-modules-*' dkms "
    "'datacenter-gpu-manager*' unattended-upgrades"
)
_RPM_NAMES = (
    "'*nvidia*' 'cuda-drivers*' kernel kernel-core kernel-devel kernel-default kernel-default-devel "
    "kernel-headers dkms 'datacenter-gpu-manager*' dnf-automatic"
)


@dataclass(frozen=True, slots=True)
class Package:
    """An installed package."""

    name: str
    version: str
    held: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Packages:
    """The package manager's view.

    Attributes:
        manager: ``dpkg`` or ``rpm``; empty for neither.
        installed: Packages of drivers and kernels.
        locks: Patterns of names that the package manager leaves alone: version locks, excludes, zypper's locks.
        unattended: Settings by which packages are replaced without anybody asking; empty for none.
        unattended_exceptions: Regular expressions of names that unattended upgrades leave alone.
    """

    manager: str = ""
    installed: tuple[Package, ...] = ()
    locks: tuple[str, ...] = ()
    unattended: tuple[str, ...] = ()
    unattended_exceptions: tuple[str, ...] = ()

    def matching(self, *patterns: str) -> tuple[Package, ...]:
        """Return the installed packages whose names match a shell pattern."""
        return tuple(each for each in self.installed if any(fnmatchcase(each.name, pattern) for pattern in patterns))

    def is_kept(self, package: Package) -> bool:
        """Return whether unattended upgrades leave a package as it is."""
        locked = any(_names(lock, package.name) for lock in self.locks)
        return package.held or locked or any(_search(rule, package.name) for rule in self.unattended_exceptions)


# apt-config prints the settings of all its files as they count. SUSE's transactional-update and yast's online update
# are timers and cron files; what they would install nobody can say beforehand.
_PACKAGES_SCRIPT = rf"""
if command -v dpkg-query >/dev/null && [ -s /var/lib/dpkg/status ]; then
  echo "manager dpkg"
  $bounded dpkg-query -W -f '${{db:Status-Abbrev}} ${{Package}} ${{Version}}\n' {_DEBIAN_NAMES} |
    sed -nE 's/^([a-z])i[^ ]* +/package \1 /p'
  $bounded apt-config dump | sed -nE \
    's/^(APT::Periodic::(Enable|Unattended-Upgrade)|Unattended-Upgrade::(Package-Blacklist|Automatic-Reboot))/apt &/p'
elif command -v rpm >/dev/null; then
  echo "manager rpm"
  $bounded rpm -qa --qf 'package i %{{NAME}} %{{VERSION}}-%{{RELEASE}}\n' {_RPM_NAMES}
fi
for list in /etc/dnf/plugins/versionlock.list /etc/yum/pluginconf.d/versionlock.list; do
  [ -r "$list" ] && grep -Ev '^[[:space:]]*(#|$)' "$list" | sed 's/^/lock /'
done
for file in /etc/dnf/dnf.conf /etc/yum.conf; do
  [ -r "$file" ] && sed -nE 's/^(exclude|excludepkgs)[[:space:]]*=[[:space:]]*/exclude /p' "$file"
done
[ -r /etc/zypp/locks ] && sed -nE 's/^solvable_name:[[:space:]]*/lock /p' /etc/zypp/locks
file=/etc/dnf/automatic.conf
[ -r "$file" ] && sed -nE 's/^apply_updates[[:space:]]*=[[:space:]]*/automatic /p' "$file"
for timer in dnf-automatic dnf-automatic-install transactional-update apt-daily-upgrade; do
  [ -e "/etc/systemd/system/timers.target.wants/$timer.timer" ] && echo "timer $timer"
done
for job in /etc/cron.daily/opensuse.org-online_update /etc/cron.weekly/opensuse.org-online_update; do
  [ -e "$job" ] && echo "job $job"
done
"""


def read_packages(said: Said) -> Packages:
    """Read the section."""
    return Packages(
        manager=said.first("manager"),
        installed=tuple(_packages(said.all("package"))),
        locks=(
            *said.all("lock"),
            *(name for line in said.all("exclude") for name in re.split(r"[\s,]+", line) if name),
        ),
        unattended=tuple(_unattended(said)),
        unattended_exceptions=tuple(_values(said.all("apt"), "Unattended-Upgrade::Package-Blacklist::")),
    )


def _packages(lines: Iterable[str]) -> Iterator[Package]:
    """Read ``h linux-image-generic 5.15.0.122.122``: h for a package on hold."""
    for line in lines:
        match line.split():
            case [status, name, version]:
                yield Package(name, version, held=status == "h")


def _unattended(said: Said) -> Iterable[str]:
    """Yield what upgrades packages by itself, as it was read."""
    switched_off = '"0"' in "".join(line for line in said.all("apt") if line.startswith("APT::Periodic::Enable "))
    for line in said.all("apt"):
        active = line.startswith("APT::Periodic::Unattended-Upgrade ") and '"0"' not in line
        if active and not switched_off and _has_unattended_upgrades(said):
            yield line
    timers = said.all("timer")
    if "dnf-automatic-install" in timers:
        yield "dnf-automatic-install.timer is enabled"
    if "dnf-automatic" in timers and said.first("automatic") in {"yes", "true", "True", "1", "on"}:
        yield "apply_updates = yes in /etc/dnf/automatic.conf, and dnf-automatic.timer is enabled"
    if "transactional-update" in timers:
        yield "transactional-update.timer is enabled"
    yield from said.all("job")


def _has_unattended_upgrades(said: Said) -> bool:
    return any(package.name == "unattended-upgrades" for package in _packages(said.all("package")))


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


PACKAGES_SECTION = Section("packages", _PACKAGES_SCRIPT, read_packages)

HELD_FILE = f"{HOME}/held-packages"
"""Names of packages that we hold, one a line; holds of others are not in it."""

INSTALLED_FILE = f"{HOME}/installed-packages"
"""Names of packages that we installed, one a line, as the package manager lists them."""

VERSIONLOCK = "versionlock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holds:
    """What there is.

    Attributes:
        tools: Those of ``apt-mark``, ``zypper`` and ``dnf`` that are installed, and ``versionlock``, dnf's plugin.
        ours: Packages that we hold, or held until somebody released them.
        installed: Packages that we installed.
    """

    tools: tuple[str, ...] = ()
    ours: tuple[str, ...] = ()
    installed: tuple[str, ...] = ()


_HOLDS_SCRIPT = rf"""
for tool in apt-mark zypper dnf; do command -v "$tool" >/dev/null && echo "tool $tool"; done
[ -e /etc/dnf/plugins/versionlock.conf ] && echo "tool {VERSIONLOCK}"
show ours {HELD_FILE}
show installed {INSTALLED_FILE}
"""


def read_holds(said: Said) -> Holds:
    """Read the section."""
    return Holds(
        tools=tuple(said.all("tool")), ours=_held_names(said.all("ours")), installed=_held_names(said.all("installed"))
    )


def _held_names(lines: Iterable[str]) -> tuple[str, ...]:
    return tuple(name.strip() for name in lines if name.strip())


HOLDS_SECTION = Section("holds", _HOLDS_SCRIPT, read_holds)
