"""The kernel that runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gpu_provision.hosts.facts import FileLines, Section, SectionOutput, every, first, flag, number, own_lines, part


def _page_size(output: SectionOutput) -> int:
    text = output.first("page-size")
    return (number(text.removesuffix("k")) or 0) * (1024 if text.endswith("k") else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel(Section):
    """The running kernel."""

    running: str = first("running")  # its release
    architecture: str = first("architecture")  # as ``uname -m`` prints it: ``x86_64``, ``aarch64``
    page_size: int = part(_page_size, empty=0)  # bytes; 0 if unknown


class Certainty(StrEnum):
    """How sure a conclusion is."""

    KNOWN = "known"  # the boot loader itself says so
    LIKELY = "likely"  # a convention of the distribution says so
    GUESSED = "guessed"  # the newest is taken


@dataclass(frozen=True, slots=True)
class NextKernel:
    """The kernel that boots next: its release, how sure that is, and what says so."""

    release: str
    certainty: Certainty
    source: str


def _candidates(output: SectionOutput) -> Iterator[NextKernel]:
    """Yield what tells the next kernel, most reliable first."""
    installed = output.all("installed")
    grubby = _release(output.first("grubby"), installed)
    if grubby:
        yield NextKernel(grubby, Certainty.KNOWN, "grubby --default-kernel")
    yield from _by_grub(output, installed)
    for line in output.all("link"):
        path, _, target = line.partition(" ")
        release = _release(target, installed)
        if release:
            yield NextKernel(release, Certainty.LIKELY, f"the link {path}")
    newest = max(output.all("bootable"), key=_version_key, default="")
    if newest:
        yield NextKernel(newest, Certainty.GUESSED, "the newest kernel with an image")


def _by_grub(output: SectionOutput, installed: list[str]) -> Iterator[NextKernel]:
    """Yield what GRUB's settings say; the last GRUB_DEFAULT wins, as its files are read in order."""
    default = (output.all("default") or ["0"])[-1].strip("\"' ")
    if default == "saved":
        saved = _release(output.first("saved"), installed)
        if saved:
            yield NextKernel(saved, Certainty.KNOWN, "GRUB's saved entry")
        return
    named = _release(default, installed)
    first = _release(output.first("menu"), installed)
    if named:
        yield NextKernel(named, Certainty.KNOWN, f"GRUB_DEFAULT={default}")
    elif default == "0" and first:
        yield NextKernel(first, Certainty.KNOWN, "the first entry of GRUB's menu")


def _release(text: str, installed: list[str]) -> str:
    """Return the installed release that a path or a menu entry names, the longest where several match."""
    found = [release for release in installed if release in text]
    return max(found, key=len, default="")


def _version_key(release: str) -> tuple[tuple[int, int, str], ...]:
    """Return a key that sorts kernel releases as package managers do: numbers by value, words before numbers."""
    parts = re.findall(r"[0-9]{1,18}|[A-Za-z]+", release)
    return tuple((1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels(Section):
    """Installed kernels."""

    with_headers: tuple[str, ...] = every("headers")  # those of them that modules can be built for
    # whose package lists were looked at for headers: ``apt``, ``dnf`` or ``zypp``; empty if there are none
    lists: str = first("lists")
    offered: tuple[str, ...] = every("offered")  # releases whose headers these lists have
    # what boots next; None if nothing tells
    next: NextKernel | None = part(lambda output: next(_candidates(output), None), empty=None)

    def find_without_headers(self, *releases: str) -> tuple[str, ...]:
        """Return those of the releases that have no headers here, and none in the package lists."""
        known = {*self.with_headers, *self.offered}
        return tuple(release for release in dict.fromkeys(releases) if release not in known) if self.lists else ()


NOVA = ("nova_drm", "nova_core")
"""The kernel's other driver for NVIDIA GPUs, as a dependency is last (https://github.com/beclab/Olares/issues/3963)."""

IN_TREE_DRIVERS = ("nouveau", *NOVA)

_IPMI, _INFINIBAND = ("ipmi_msghandler", "ipmi_devintf", "ipmi_si"), ("mlx5_ib", "ib_umad")

ALWAYS = (*IN_TREE_DRIVERS, "nvidia", "i2c_core", *_IPMI, *_INFINIBAND)
"""Modules that are looked up whatever else is asked for."""

UNKNOWN_USERS = -1


def canonical_name(module: str) -> str:
    """Write a module's name as the kernel does: dashes and underscores are the same to it."""
    return module.strip().replace("-", "_")


def _parse_loaded(output: SectionOutput) -> dict[str, int]:
    """Read lines of /proc/modules: name, size, users ("-" if the kernel cannot unload), ..."""
    found = {}
    for line in output.all("loaded"):
        match line.split():
            case [name, size, users, *_] if number(size) is not None:
                count = number(users)
                found[canonical_name(name)] = UNKNOWN_USERS if count is None else count
    return found


def _modules(word: str) -> Any:
    """Return a field of modules, from ``kernel/drivers/i2c/i2c-core.ko.zst`` or bare names."""

    def read(output: SectionOutput) -> frozenset[str]:
        return frozenset(
            canonical_name(path.strip().rsplit("/", 1)[-1].split(".ko", 1)[0]) for path in output.all(word)
        )

    return part(read, empty=frozenset())


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelModules(Section):
    """Kernel modules; names are written with underscores."""

    # loaded modules, each with the number of its users; -1 if the kernel does not say
    loaded: Mapping[str, int] = part(_parse_loaded, empty={})
    built_in: frozenset[str] = _modules("builtin")  # those of the modules asked for that are part of the kernel
    available: frozenset[str] = _modules("available")  # those of the modules asked for that the kernel could load
    own_file: FileLines = own_lines()  # lines of our own file of modules
    # whether /lib/modules has a directory for the running kernel; in most containers it has not
    directory: bool = part(lambda output: not output.has("no-directory"), empty=True)

    @property
    def in_tree_drivers(self) -> dict[str, int]:
        """The loaded drivers of the kernel for NVIDIA GPUs, with the number of their users.

        nova_drm, which is unloaded with nova_core, does not count as a user of it.
        """
        users = {name: self.loaded[name] for name in IN_TREE_DRIVERS if name in self.loaded}
        if users.get("nova_core", 0) > 0 and "nova_drm" in users:
            users["nova_core"] -= 1
        return users


def _blacklists(lines: Iterable[str]) -> bool:
    """Return whether modprobe.d lines keep nouveau away, as a blacklist or by an install command that fails."""
    words = [line.split() for line in lines]
    return any(
        line[:2] == ["blacklist", "nouveau"]
        or (line[:2] == ["install", "nouveau"] and line[2:3] in (["/bin/false"], ["/bin/true"]))
        for line in words
    )


def _blacklisted_elsewhere(output: SectionOutput) -> bool:
    """Look at modprobe's files and at the parameters of modprobe, of the kernel and of dracut."""
    parameter = r"(?:modprobe\.blacklist|module_blacklist|rd\.driver\.blacklist)=(\S*)"
    kept_away = ",".join(re.findall(parameter, " ".join(output.all("cmdline")))).split(",")
    return _blacklists(output.all("modprobe")) or "nouveau" in kept_away


@dataclass(frozen=True, slots=True, kw_only=True)
class Nouveau(Section):
    """The blacklists of nouveau, and the initramfs of the running kernel."""

    # whether a file that is not ours, or the kernel's command line, keeps it away
    blacklisted_elsewhere: bool = part(_blacklisted_elsewhere, empty=False)
    own_file: FileLines = own_lines()  # lines of our own blacklist
    initramfs: str = first("initramfs")  # path of the running kernel's image; empty for none
    initramfs_stale: bool = flag("stale")  # whether our blacklist is newer than that image
    initramfs_tool: str = first("tool")  # ``update-initramfs`` or ``dracut``; empty for neither
    # whether the image holds the module; None if unknown. Listing an image takes seconds, so that is done only while
    # nouveau is loaded.
    in_initramfs: bool | None = part(
        lambda output: output.has("contains") if output.has("listed") else None, empty=None
    )

    @property
    def blacklisted(self) -> bool:
        """Whether nouveau stays away after the next boot."""
        return self.blacklisted_elsewhere or _blacklists(self.own_file or ())
