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
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.real.binaries import CACHE_VARIABLE

_BUILD_SECONDS = 1800
_UNUSED_SECONDS = 24 * 3600
_SHARED = Path(__file__).with_name("debian.sh")

BUILDERS = {"mmdebstrap": "mmdebstrap", "ssh-keygen": "openssh-client"}
"""Programs that every build needs, and their packages."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A script that makes things in a folder.

    Attributes:
        name: What the results are called in the cache.
        script: Called with the folder.
        makes: What is kept of that folder.
    """

    name: str
    script: Path
    makes: tuple[str, ...]

    @property
    def place(self) -> Path:
        """Where the result is, or will be: another recipe, system or processor has another place."""
        system = platform.freedesktop_os_release()
        scripts = (self.script.read_text(), _SHARED.read_text())
        inputs = (*scripts, system.get("ID", ""), system.get("VERSION_CODENAME", ""), platform.machine())
        digest = hashlib.sha256("\0".join(inputs).encode()).hexdigest()[:12]
        return Path(os.environ[CACHE_VARIABLE], "hosts", f"{self.name}-{digest}")

    def built(self) -> Path:
        """Return the folder with the result, built unless it is there already; others who want it wait meanwhile.

        Raises:
            subprocess.CalledProcessError: It could not be built; why is in its output.
        """
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


def lacking(programs: dict[str, str]) -> list[str]:
    """Return the packages of those programs that are not installed."""
    return [package for program, package in programs.items() if not shutil.which(program)]


def not_installed(packages: Iterable[str]) -> str:
    """Return what installs packages; empty for none."""
    names = " ".join(dict.fromkeys(packages))
    return f"not installed: apt-get install --no-install-recommends {names}" if names else ""
