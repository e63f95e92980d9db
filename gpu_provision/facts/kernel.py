"""The kernel that runs."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_provision.facts.section import Said, Section, number


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """The running kernel.

    Attributes:
        running: Its release.
        architecture: As ``uname -m`` prints it: ``x86_64``, ``aarch64``.
        page_size: Bytes; 0 if unknown.
    """

    running: str = ""
    architecture: str = ""
    page_size: int = 0


# getconf is missing on some minimal systems; the kernel says it in smaps, too.
SCRIPT = r"""
echo "running $kernel"
echo "architecture $(uname -m)"
size=$(getconf PAGESIZE) || size=$(sed -n 's/^KernelPageSize: *\([0-9]*\) kB.*/\1k/p' /proc/self/smaps | head -n 1)
echo "page-size $size"
"""


def read(said: Said) -> Kernel:
    """Read the section."""
    return Kernel(
        running=said.first("running"),
        architecture=said.first("architecture"),
        page_size=_bytes(said.first("page-size")),
    )


def _bytes(text: str) -> int:
    return (number(text.removesuffix("k")) or 0) * (1024 if text.endswith("k") else 1)


SECTION = Section("kernel", SCRIPT, read)
