"""Free space where images and drivers go, and swap."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gpu_provision.hosts.facts.parser import SectionOutput, number


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """A directory and the file system that it is on; sizes in bytes."""

    path: str
    mount: str
    size: int
    free: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Space and swap.

    Attributes:
        places: Directories that exist, with the free space of their file systems.
        swap: Devices and files that are swapped to.
    """

    places: tuple[DiskSpace, ...] = ()
    swap: tuple[str, ...] = ()

    def place(self, path: str) -> DiskSpace | None:
        """Return the place of a directory, or of the nearest one above it; None if nothing is known."""
        above = [each for each in self.places if path == each.path or path.startswith(f"{each.path.rstrip('/')}/")]
        return max(above, key=lambda each: len(each.path), default=None)


def read_storage(output: SectionOutput) -> Storage:
    """Read the section's lines."""
    return Storage(
        places=tuple(_places(output.all("place"))),
        swap=tuple(line.split()[0] for line in output.all("swap") if line.strip()),
    )


def _places(lines: list[str]) -> Iterable[DiskSpace]:
    """Read ``/var /dev/sda1 102400 51200 51200 50% /``; names of devices may hold blanks, so from the right."""
    for line in lines:
        match line.split():
            case [path, _, *_, size, _, free, _, mount]:
                blocks, left = number(size), number(free.removeprefix("-"))
                if blocks is not None and left is not None:
                    yield DiskSpace(path, mount, blocks * 1024, 0 if free.startswith("-") else left * 1024)


_UNITS = {"Gi": 1 << 20, "Mi": 1 << 10, "Ki": 1}
"""KiB of each unit."""

KUBELETS = "kubelet | kubelite | k0s | k3s | k3s-server | k3s-agent | rke2 | rke2-server | rke2-agent"
"""Processes that have a kubelet in them, as a pattern of the shell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hugepages:
    """Huge pages of a host; sizes are written as Kubernetes does: ``2Mi``, ``1Gi``.

    Attributes:
        pages: Sizes that the kernel knows, each with the number of its pages.
        own_file: Lines of our file for the boot; None if there is none.
        attempts: Size -> (wanted, got) of the last attempt since the boot.
        memory: Bytes of memory; 0 if unknown.
        unaware: Kubelets that have not been started since the number of pages changed.
    """

    pages: Mapping[str, int] = field(default_factory=dict)
    own_file: tuple[str, ...] | None = None
    attempts: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    memory: int = 0
    unaware: tuple[str, ...] = ()


def kilobytes(size: str) -> int:
    """Return the KiB of a size such as ``2Mi``."""
    return int(size[:-2]) * _UNITS[size[-2:]]


def size_of(kilobytes_of_page: int) -> str:
    """Return a size as Kubernetes writes it: in the largest unit that it is a multiple of."""
    unit, factor = next((unit, factor) for unit, factor in _UNITS.items() if kilobytes_of_page % factor == 0)
    return f"{kilobytes_of_page // factor}{unit}"


def read_hugepages(output: SectionOutput) -> Hugepages:
    """Read the section's lines."""
    return Hugepages(
        pages=dict(_pools(output.all("pages"))),
        own_file=output.own_file(),
        attempts=dict(_attempts(output.all("attempt"))),
        memory=(number(output.first("memory")) or 0) * 1024,
        unaware=tuple(output.all("unaware")),
    )


def _pools(lines: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Read ``2048kB 512``."""
    for line in lines:
        size, _, count = line.partition("kB ")
        kib, pages = number(size), number(count.strip())
        if kib and pages is not None:
            yield size_of(kib), pages


def _attempts(lines: Iterable[str]) -> Iterator[tuple[str, tuple[int, int]]]:
    """Read ``1Gi 16 3``: pages of this size that were wanted, and those that there were."""
    for line in lines:
        match line.split():
            case [size, wanted, got] if re.fullmatch(r"[0-9]+[GMK]i", size):
                counts = number(wanted), number(got)
                if counts[0] is not None and counts[1] is not None:
                    yield size, (counts[0], counts[1])
