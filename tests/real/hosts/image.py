"""The disk that virtual machines start from, built once and kept."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tests.real.hosts.built import BUILDERS, Recipe, lacking, not_installed

RECIPE = Recipe("image", Path(__file__).with_name("build_image.sh"), ("disk.ext4", "vmlinuz", "initrd.img", "key"))
_PROGRAMS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "ssh": "openssh-client",
    "setpriv": "util-linux",
}
_BUILDERS = {**BUILDERS, "mke2fs": "e2fsprogs"}


@dataclass(frozen=True, slots=True)
class Image:
    """A folder with a disk and what boots it; read-only."""

    folder: Path

    @property
    def disk(self) -> Path:
        """An ext4 file system without partitions."""
        return self.folder / "disk.ext4"

    @property
    def kernel(self) -> Path:
        """The kernel of the system on the disk."""
        return self.folder / "vmlinuz"

    @property
    def initrd(self) -> Path:
        """Its initramfs: drivers of the disk, no others."""
        return self.folder / "initrd.img"

    @property
    def key(self) -> Path:
        """The private key that opens root's and admin's account."""
        return self.folder / "key"


def missing() -> str:
    """Return what this machine lacks to run virtual machines, with the command that mends it; empty for nothing."""
    packages = lacking(_PROGRAMS)
    if not RECIPE.place.exists():
        packages += lacking(_BUILDERS)
        if os.geteuid():
            return (
                "the disk of the virtual machines is not built yet, and only root can: run make test-hosts as root once"
            )
    return not_installed(packages)


def image() -> Image:
    """Return the image, built unless it is there already; others who want it meanwhile wait for it.

    Raises:
        subprocess.CalledProcessError: It could not be built; why is in its output.
    """
    return Image(RECIPE.built())
