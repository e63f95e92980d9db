"""Free space where images and drivers go, and swap."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpu_provision.facts.section import Said, Section, number

_PLACES = (
    "/ /boot /tmp /usr/local /var /var/lib/containerd /var/lib/containers /var/lib/docker /var/lib/kubelet "
    "/var/lib/rancher /var/snap/microk8s/common /var/lib/k0s"
)


@dataclass(frozen=True, slots=True)
class Place:
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

    places: tuple[Place, ...] = ()
    swap: tuple[str, ...] = ()

    def place(self, path: str) -> Place | None:
        """Return the place of a directory, or of the nearest one above it; None if nothing is known."""
        above = [each for each in self.places if path == each.path or path.startswith(f"{each.path.rstrip('/')}/")]
        return max(above, key=lambda each: len(each.path), default=None)


SCRIPT = rf"""
for place in {_PLACES}; do
  [ -d "$place" ] && $bounded df -Pk "$place" | sed -n "2s#^#place $place #p"
done
[ -r /proc/swaps ] && sed -n '2,$s/^/swap /p' /proc/swaps
"""


def read(said: Said) -> Storage:
    """Read the section."""
    return Storage(
        places=tuple(_places(said.all("place"))),
        swap=tuple(line.split()[0] for line in said.all("swap") if line.strip()),
    )


def _places(lines: list[str]) -> Iterable[Place]:
    """Read ``/var /dev/sda1 102400 51200 51200 50% /``; names of devices may hold blanks, so from the right."""
    for line in lines:
        match line.split():
            case [path, _, *_, size, _, free, _, mount]:
                blocks, left = number(size), number(free.removeprefix("-"))
                if blocks is not None and left is not None:
                    yield Place(path, mount, blocks * 1024, 0 if free.startswith("-") else left * 1024)


SECTION = Section("storage", SCRIPT, read)
