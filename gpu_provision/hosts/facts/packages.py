"""Packages and what holds them; files that gpu-provision has changed; what the container toolkit has left."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gpu_provision.hosts import scripts
from gpu_provision.hosts.facts import Section, SectionOutput, every, first, flag, names, part


@dataclass(frozen=True, slots=True)
class Package:
    """An installed package."""

    name: str
    version: str
    held: bool = False


def _parse_installed(output: SectionOutput) -> Iterator[Package]:
    """Read ``h linux-image-generic 5.15.0.122.122``: h for a package on hold."""
    for line in output.all("package"):
        match line.split():
            case [status, name, version]:
                yield Package(name, version, held=status == "h")


def _locks(output: SectionOutput) -> tuple[str, ...]:
    excluded = (name for line in output.all("exclude") for name in re.split(r"[\s,]+", line) if name)
    return (*output.all("lock"), *excluded)


def _find_unattended(output: SectionOutput) -> Iterator[str]:
    """Yield what upgrades packages by itself, as it was read."""
    switched_off = '"0"' in "".join(line for line in output.all("apt") if line.startswith("APT::Periodic::Enable "))
    installed = any(package.name == "unattended-upgrades" for package in _parse_installed(output))
    for line in output.all("apt") if installed and not switched_off else ():
        if line.startswith("APT::Periodic::Unattended-Upgrade ") and '"0"' not in line:
            yield line
    timers = output.all("timer")
    if "dnf-automatic-install" in timers:
        yield "dnf-automatic-install.timer is enabled"
    if "dnf-automatic" in timers and output.first("automatic") in {"yes", "true", "True", "1", "on"}:
        yield "apply_updates = yes in /etc/dnf/automatic.conf, and dnf-automatic.timer is enabled"
    if "transactional-update" in timers:
        yield "transactional-update.timer is enabled"
    yield from output.all("job")


def _exceptions(output: SectionOutput) -> tuple[str, ...]:
    """Read the values of an apt list: ``Unattended-Upgrade::Package-Blacklist:: "linux-";``."""
    pattern = re.compile(r'Unattended-Upgrade::Package-Blacklist::\s*"(.*)";')
    return tuple(found[1] for found in map(pattern.fullmatch, output.all("apt")) if found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Packages(Section):
    """The package manager's view."""

    manager: str = first("manager")  # ``dpkg`` or ``rpm``; empty for neither
    # packages of drivers and kernels
    installed: tuple[Package, ...] = part(lambda output: tuple(_parse_installed(output)), empty=())
    # patterns of names that the package manager leaves alone: version locks, excludes, zypper's locks
    locks: tuple[str, ...] = part(_locks, empty=())
    # settings by which packages are replaced without anybody asking; empty for none
    unattended: tuple[str, ...] = part(lambda output: tuple(_find_unattended(output)), empty=())
    # regular expressions of names that unattended upgrades leave alone
    unattended_exceptions: tuple[str, ...] = part(_exceptions, empty=())

    def find_installed(self, *patterns: str) -> tuple[Package, ...]:
        """Return the installed packages whose names match a shell pattern."""
        return tuple(each for each in self.installed if any(fnmatchcase(each.name, pattern) for pattern in patterns))

    def is_kept(self, package: Package) -> bool:
        """Return whether unattended upgrades leave a package as it is."""
        excepted = any(_matches(rule, package.name) for rule in self.unattended_exceptions)
        return package.held or excepted or any(_names(lock, package.name) for lock in self.locks)


def _names(lock: str, name: str) -> bool:
    """Return whether a lock keeps a package: ``kernel*``, ``nvidia-driver-3:550.54.15-1.el9.*``.

    One that begins with an exclamation mark shuts out a single version, and holds nothing.
    """
    if lock.startswith("!"):
        return False
    without_epoch = re.sub(r"^\d+:", "", lock)
    bare = re.sub(r"-(?:\d+:)?\d[^-]*-[^-]*$", "", without_epoch)
    return fnmatchcase(name, bare) or fnmatchcase(name, without_epoch)


def _matches(rule: str, name: str) -> bool:
    try:
        return re.match(rule, name) is not None
    except re.error:
        return rule in name


@dataclass(frozen=True, slots=True, kw_only=True)
class Holds(Section):
    """Packages that gpu-provision holds or has installed, and what could."""

    # those of ``apt-mark``, ``zypper`` and ``dnf`` that are installed, and ``versionlock``, dnf's plugin
    tools: tuple[str, ...] = every("tool")
    ours: tuple[str, ...] = names("ours")  # packages that gpu-provision holds, or held until others released them
    installed: tuple[str, ...] = names("installed")  # packages that gpu-provision installed


@dataclass(frozen=True, slots=True)
class Original:
    """One path that was changed, and how it was before."""

    kind: str  # ``file``, ``absent`` or ``directory``
    path: str
    differs: bool  # whether it is not so any more


def _parse_originals(output: SectionOutput) -> Iterator[Original]:
    for word, rest in output.lines:
        if word in {"differs", "restored"}:
            kind, _, path = rest.partition(" ")
            yield Original(kind, path, differs=word == "differs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Originals(Section):
    """What is kept of files that were changed: how they were, or that they were not."""

    # in the order in which paths were changed first
    kept: tuple[Original, ...] = part(lambda output: tuple(_parse_originals(output)), empty=())
    present: bool = flag("present")  # whether gpu-provision's directory exists
    # false if another user than root cannot look
    readable: bool = part(lambda output: not output.has("unreadable"), empty=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolkitRemains:
    """What the container toolkit has left on a host."""

    files: tuple[str, ...] = ()  # paths of what the toolkit's container installed
    # directory that may be ours -> names in it; those that are there, what is below comes first
    entries: tuple[tuple[str, frozenset[str]], ...] = ()
    uses: tuple[str, ...] = ()  # what still needs the programs, in words
    is_sure: bool = True  # whether all of it could be looked at: containers show what they use to root alone

    @property
    def hollow(self) -> tuple[str, ...]:
        """Directories that hold nothing but files and directories of the stack."""
        gone = set(self.files)
        for path, inside in self.entries:
            if {posixpath.join(path, name) for name in inside} <= gone:
                gone.add(path)
        return tuple(path for path, _ in self.entries if path in gone)


def toolkit_command(install_dir: str, configs: Iterable[str] = ()) -> str:
    """Return the shell command that looks for programs in ``toolkit`` below a directory, and for what names them."""
    variables = scripts.assign(install_dir=install_dir.rstrip("/"), configs="\n".join(configs))
    return f"{variables}{scripts.load('toolkit.sh')}"


def parse_toolkit(lines: Iterable[str]) -> ToolkitRemains | None:
    """Read what the command printed; None if it does not go to its end."""
    output = SectionOutput(lines)
    if not output.has("end"):
        return None
    entries: dict[str, set[str]] = {}
    folder = ""
    for word, rest in output.lines:
        if word == "folder":
            folder = rest
            entries[folder] = set()
        elif word == "entry":
            entries.setdefault(folder, set()).add(rest)
    return ToolkitRemains(
        files=tuple(path for path in output.all("file") if path.startswith("/")),
        entries=tuple((path, frozenset(inside)) for path, inside in entries.items() if path.startswith("/")),
        uses=tuple(dict.fromkeys(output.all("use"))),
        is_sure=not output.has("unsure"),
    )
