"""What root builds once for many tests, and keeps: as long as what it is made of stays the same."""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.real.binaries import CACHE_VARIABLE

_BUILD_SECONDS = 1800
_UNUSED_SECONDS = 24 * 3600
_HERE = Path(__file__).parent
_SHARED = _HERE / "debian.sh"


@dataclass(frozen=True, slots=True)
class Recipe:
    name: str  # what the results are called in the cache
    script: Path  # called with the folder
    makes: tuple[str, ...]  # what is kept of that folder

    @property
    def place(self) -> Path:
        """Where the result is, or will be: another recipe, system or processor has another place."""
        system = platform.freedesktop_os_release()
        scripts = (self.script.read_text(), _SHARED.read_text())
        inputs = (*scripts, system.get("ID", ""), system.get("VERSION_CODENAME", ""), platform.machine())
        digest = hashlib.sha256("\0".join(inputs).encode()).hexdigest()[:12]
        return Path(os.environ[CACHE_VARIABLE], "hosts", f"{self.name}-{digest}")

    def built(self) -> Path:
        """Return the folder with the result, built unless it is there already; others who want it wait meanwhile."""
        place = self.place
        place.parent.mkdir(parents=True, exist_ok=True)
        with (place.parent / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not place.exists():
                self._build(place)
            os.utime(place)
            self._forget(place)
        return place

    def _build(self, place: Path) -> None:
        """Build it beside its place, so that a build which is interrupted leaves nothing that looks whole."""
        with tempfile.TemporaryDirectory(prefix="building-", dir=place.parent) as made:
            subprocess.run([self.script, made], check=True, stdin=subprocess.DEVNULL, timeout=_BUILD_SECONDS)
            whole = Path(made, "whole")
            whole.mkdir()
            for name in self.makes:
                Path(made, name).rename(whole / name)
            whole.rename(place)

    def _forget(self, used: Path) -> None:
        """Remove what other recipes made and no test used for a day: it is large."""
        for old in used.parent.glob(f"{self.name}-*"):
            if old != used and time.time() - old.stat().st_mtime > _UNUSED_SECONDS:
                shutil.rmtree(old)


IMAGE = Recipe("image", _HERE / "build_image.sh", ("disk.ext4", "vmlinuz", "initrd.img", "key"))
"""The disk that virtual machines start from, what boots it, and the key of root's and admin's account."""
ROOTFS = Recipe("rootfs", _HERE / "build_rootfs.sh", ("root", "key"))
"""The root directory that hosts without a kernel of their own share, and the key of root's and admin's account."""

ISOLATED = ("unshare", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child")
"""Before a command: it is the first process of a host, and ends with unshare."""

_BUILDERS = {"mmdebstrap": "mmdebstrap", "ssh-keygen": "openssh-client"}
_FOR_MACHINES = {"qemu-system-x86_64": "qemu-system-x86", "qemu-img": "qemu-utils"}
_FOR_ALL = {"ssh": "openssh-client", "setpriv": "util-linux"}
_FOR_NAMESPACES = {"unshare": "util-linux", "mount": "mount"}


def machines_missing() -> str:
    """Return what this computer lacks to run virtual machines, with the command that mends it; empty for nothing."""
    programs = _FOR_ALL | _FOR_MACHINES
    if not IMAGE.place.exists():
        programs |= {**_BUILDERS, "mke2fs": "e2fsprogs"}
        if os.geteuid():
            return "their disk is not built yet, and only root can: run make test-hosts as root once"
    return _not_installed(programs)


def namespaces_missing(**programs: str) -> str:
    """Return what this computer lacks to run hosts in namespaces, with what mends it; empty for nothing."""
    if os.geteuid():
        return "only root can run them: they are mounts and namespaces"
    builders = {} if ROOTFS.place.exists() else _BUILDERS
    if lacking := _not_installed({**_FOR_ALL, **_FOR_NAMESPACES, **programs, **builders}):
        return lacking
    tried = subprocess.run([*ISOLATED, "true"], check=False, capture_output=True, text=True)
    return f"this machine does not let root make them: {tried.stderr.strip()}" if tried.returncode else ""


def _not_installed(programs: Mapping[str, str]) -> str:
    packages = " ".join(dict.fromkeys(package for program, package in programs.items() if not shutil.which(program)))
    return f"not installed: apt-get install --no-install-recommends {packages}" if packages else ""
