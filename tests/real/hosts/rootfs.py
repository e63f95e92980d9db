"""The root directory that hosts without a kernel of their own share, built once and kept."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.real.hosts.built import BUILDERS, Recipe, lacking, not_installed

RECIPE = Recipe("rootfs", Path(__file__).with_name("build_rootfs.sh"), ("root", "key"))
_PROGRAMS = {"ssh": "openssh-client", "unshare": "util-linux", "mount": "mount", "setpriv": "util-linux"}

ISOLATED = ("unshare", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child")
"""Before a command: it is the first process of a host, and ends with unshare."""


@dataclass(frozen=True, slots=True)
class Rootfs:
    """A folder with a system; read-only."""

    folder: Path

    @property
    def root(self) -> Path:
        """The system's root directory."""
        return self.folder / "root"

    @property
    def key(self) -> Path:
        """The private key that opens root's and admin's account."""
        return self.folder / "key"


def missing(**programs: str) -> str:
    """Return what this machine lacks to run such hosts, with what mends it; empty for nothing.

    Args:
        programs: What else they need: program -> its package.
    """
    if os.geteuid():
        return "only root can run them: they are mounts and namespaces"
    builders = {} if RECIPE.place.exists() else BUILDERS
    return not_installed(lacking({**_PROGRAMS, **programs, **builders})) or _refused()


def _refused() -> str:
    """Return what the kernel says against such hosts; it may have its reasons in a container."""
    tried = subprocess.run([*ISOLATED, "true"], check=False, capture_output=True, text=True)
    return f"this machine does not let root make them: {tried.stderr.strip()}" if tried.returncode else ""


def rootfs() -> Rootfs:
    """Return the root directory, built unless it is there already; others who want it meanwhile wait for it.

    Raises:
        subprocess.CalledProcessError: It could not be built; why is in its output.
    """
    return Rootfs(RECIPE.built())
