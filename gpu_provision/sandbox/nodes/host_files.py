"""What a simulated machine shares with the simulated host of the same name: boot, kernel modules and the driver.

The host is a directory of files that shell commands see; it is there once somebody has used it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

_MODULES = "proc/modules"
_BOOT_ID = "proc/sys/kernel/random/boot_id"
_OWN_DRIVER = ".sandbox/nvidia"
_LOADED = "sys/module/nvidia"
_DRIVER_ROOT = "run/nvidia/driver"
_LOCAL = ".sandbox/local/"  # what the host sees as /usr/local


class HostFiles:
    """The files of one simulated host."""

    def __init__(self, directory: Path | None) -> None:
        """Take the host's root directory; None for machines without a host."""
        self._root = directory

    @property
    def directory(self) -> Path | None:
        """Where it is, or will be; None for machines without a host."""
        return self._root

    def boot_id(self) -> str:
        """Return the boot that it is in; empty while nobody used that host."""
        try:
            return (self._root / _BOOT_ID).read_text(encoding="ascii").strip() if self._root else ""
        except OSError:
            return ""

    def begin_boot(self, boot_id: str) -> None:
        """Let it be in another boot, if there is such a host; the rest of it stays as it is."""
        if self._root is not None and self.boot_id():
            (self._root / _BOOT_ID).write_text(f"{boot_id}\n", encoding="ascii")

    def modules(self) -> list[str] | None:
        """Return the lines of its /proc/modules; None while nobody used that host."""
        try:
            return (self._root / _MODULES).read_text(encoding="utf-8").splitlines() if self._root else None
        except OSError:
            return None

    def unload(self, module: str) -> bool:
        """Unload a module, if it is loaded; False if it is in use."""
        lines = self.modules()
        if lines is None or self._root is None:
            return True
        held = [line for line in lines if line.startswith(f"{module} ")]
        if any(line.split()[2] != "0" for line in held):
            return False
        if held:
            rest = "".join(f"{line}\n" for line in lines if line not in held)
            (self._root / _MODULES).write_text(rest, encoding="utf-8")
        return True

    def own_driver(self) -> str | None:
        """Return the version of the driver that is installed on it, empty for none; None while nobody used it."""
        if self._root is None or self.modules() is None:
            return None
        try:
            return (self._root / _OWN_DRIVER).read_text(encoding="utf-8").strip()
        except OSError:
            return ""

    def show_containers_driver(self, version: str) -> None:
        """Let the host see that a container has loaded a driver, and where its files are."""
        if self._root is not None and self.modules() is not None:
            for path, text in ((f"{_LOADED}/version", version), (f"{_DRIVER_ROOT}/usr/bin/nvidia-smi", "")):
                (self._root / path).parent.mkdir(parents=True, exist_ok=True)
                (self._root / path).write_text(f"{text}\n", encoding="utf-8")

    def show_containers_toolkit(self, programs: Iterable[str]) -> None:
        """Let the host have programs that a container has installed; they stay when that ends."""
        if self._root is not None and self.modules() is not None:
            for path in programs:
                place = self._root / path.lstrip("/").replace("usr/local/", _LOCAL, 1)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text("ELF\n", encoding="utf-8")

    def hide_containers_driver(self) -> None:
        """Take both away, if they are there."""
        if self._root is not None and (self._root / _DRIVER_ROOT).exists():
            for path in (_LOADED, _DRIVER_ROOT):
                shutil.rmtree(self._root / path, ignore_errors=True)
