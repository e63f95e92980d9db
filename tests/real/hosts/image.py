"""The disk that virtual machines start from, built once and kept: as long as what it is made of stays the same."""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.real.binaries import CACHE_VARIABLE

RECIPE = Path(__file__).with_name("build_image.sh")
_PROGRAMS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "ssh": "openssh-client",
    "setpriv": "util-linux",
}
_BUILDERS = {"mmdebstrap": "mmdebstrap", "mke2fs": "e2fsprogs", "ssh-keygen": "openssh-client"}
_BUILD_SECONDS = 1800


@dataclass(frozen=True, slots=True)
class Image:
    """A folder with a disk and what boots it; nobody writes to it."""

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
    lacking = _lacking(_PROGRAMS)
    if not _place().exists():
        lacking += _lacking(_BUILDERS)
        if os.geteuid():
            return (
                "the disk of the virtual machines is not built yet, and only root can: run make test-hosts as root once"
            )
    if lacking:
        return f"not installed: apt-get install --no-install-recommends {' '.join(dict.fromkeys(lacking))}"
    return ""


def image() -> Image:
    """Return the image, built unless it is there already; others who want it meanwhile wait for it.

    Raises:
        subprocess.CalledProcessError: It could not be built; why is in its output.
    """
    place = _place()
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            _build(place)
    return Image(place)


def _build(place: Path) -> None:
    """Build it beside its place, so that a build which is interrupted leaves nothing that looks whole."""
    with tempfile.TemporaryDirectory(prefix="building-", dir=place.parent) as made:
        subprocess.run([RECIPE, made], check=True, stdin=subprocess.DEVNULL, timeout=_BUILD_SECONDS)
        Path(made, "whole").mkdir()
        for name in ("disk.ext4", "vmlinuz", "initrd.img", "key"):
            Path(made, name).rename(Path(made, "whole", name))
        _forget(place.parent)
        Path(made, "whole").rename(place)


def _forget(folder: Path) -> None:
    """Remove what older recipes made: an image has half a gigabyte."""
    for old in folder.glob("image-*"):
        shutil.rmtree(old)


def _place() -> Path:
    """Return where the image is, or will be: another recipe, system or processor has another place."""
    system = platform.freedesktop_os_release()
    inputs = (RECIPE.read_text(), system.get("ID", ""), system.get("VERSION_CODENAME", ""), platform.machine())
    digest = hashlib.sha256("\0".join(inputs).encode()).hexdigest()[:12]
    return Path(os.environ[CACHE_VARIABLE], "hosts", f"image-{digest}")


def _lacking(programs: dict[str, str]) -> list[str]:
    return [package for program, package in programs.items() if not shutil.which(program)]


def main(_: Iterable[str]) -> int:
    """Build the image for the tests, and say where it is; or say what is missing."""
    if reason := missing():
        sys.stderr.write(f"make test-hosts cannot run: {reason}\n")
        return 1
    sys.stdout.write(f"image of the virtual machines: {image().folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
