"""Huge pages: how many there are of each size, what keeps them for the boot, and whether the kubelet knows of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gpu_provision.facts.modules import own_file
from gpu_provision.facts.section import Said, Section, number

OWN_FILE = "/etc/tmpfiles.d/90-gpu-provision-hugepages.conf"
POOLS = "/sys/kernel/mm/hugepages"

STATE = "/run/gpu-provision"
"""Directory of what is remembered until the next boot."""

ATTEMPTS = f"{STATE}/hugepages"
"""For each size: how many pages were asked for since the boot, and how many the kernel found room for."""

UNAWARE = f"{STATE}/kubelets-before-hugepages"
"""Process id and start of each kubelet that ran while the number of pages changed."""

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


# A kubelet is the same one if it has the same process id and was started at the same moment.
SCRIPT = rf"""
for pool in {POOLS}/hugepages-*kB; do
  read -r count <"$pool/nr_hugepages" && echo "pages ${{pool##*hugepages-}} $count"
done
[ -e {OWN_FILE} ] && {{ echo "own "; show own {OWN_FILE}; }}
show attempt {ATTEMPTS}
sed -nE 's/^MemTotal: +([0-9]+) kB/memory \1/p' /proc/meminfo
[ -r {UNAWARE} ] && while read -r pid start name; do
  [ "$(cut -d' ' -f22 "/proc/$pid/stat")" = "$start" ] && echo "unaware $name[$pid]"
done <{UNAWARE}
true
"""


def kilobytes(size: str) -> int:
    """Return the KiB of a size such as ``2Mi``."""
    return int(size[:-2]) * _UNITS[size[-2:]]


def size_of(kilobytes_of_page: int) -> str:
    """Return a size as Kubernetes writes it: in the largest unit that it is a multiple of."""
    unit, factor = next((unit, factor) for unit, factor in _UNITS.items() if kilobytes_of_page % factor == 0)
    return f"{kilobytes_of_page // factor}{unit}"


def read(said: Said) -> Hugepages:
    """Read the section."""
    return Hugepages(
        pages=dict(_pools(said.all("pages"))),
        own_file=own_file(said.all("own")),
        attempts=dict(_attempts(said.all("attempt"))),
        memory=(number(said.first("memory")) or 0) * 1024,
        unaware=tuple(said.all("unaware")),
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


SECTION = Section("hugepages", SCRIPT, read)
