"""What a container sees of the host's files, and what a machine shares with the simulated host of its name."""

from __future__ import annotations

import fnmatch
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MODULES = "proc/modules"
_BOOT_ID = "proc/sys/kernel/random/boot_id"
_OWN_DRIVER = ".sandbox/nvidia"
_LOADED = "sys/module/nvidia"
_DRIVER_ROOT = "run/nvidia/driver"
_LOCAL = ".sandbox/local/"  # what the host sees as /usr/local
_PROPAGATED = {"HostToContainer", "Bidirectional"}


class HostFiles:
    """The files of one simulated host; while it has no state, there is nothing to read and to write."""

    def __init__(self, directory: Path | None) -> None:
        """Take the host's root directory; None for machines without a host."""
        self.directory = directory

    def _read(self, path: str) -> str | None:
        try:
            return (self.directory / path).read_text(encoding="utf-8") if self.directory else None
        except OSError:
            return None

    def _write(self, path: str, text: str) -> None:
        if self.directory is not None and self.modules() is not None:
            place = self.directory / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(f"{text}\n", encoding="utf-8")

    def boot_id(self) -> str:
        """Return the boot that it is in; empty while that host has no state."""
        return (self._read(_BOOT_ID) or "").strip()

    def begin_boot(self, boot_id: str) -> None:
        """Let it be in another boot, if there is such a host; the rest of it stays as it is."""
        if self.directory is not None and self.boot_id():
            (self.directory / _BOOT_ID).write_text(f"{boot_id}\n", encoding="ascii")

    def modules(self) -> list[str] | None:
        """Return the lines of its /proc/modules; None while that host has no state."""
        text = self._read(_MODULES)
        return None if text is None else text.splitlines()

    def unload(self, module: str) -> bool:
        """Unload a module, if it is loaded; False if it is in use."""
        lines = self.modules() or []
        held = [line for line in lines if line.startswith(f"{module} ")]
        if any(line.split()[2] != "0" for line in held):
            return False
        if held and self.directory is not None:
            rest = "".join(f"{line}\n" for line in lines if line not in held)
            (self.directory / _MODULES).write_text(rest, encoding="utf-8")
        return True

    def own_driver(self) -> str | None:
        """Return the version of the driver that is installed on it, empty for none; None while it has no state."""
        return None if self.modules() is None else (self._read(_OWN_DRIVER) or "").strip()

    def show_containers_driver(self, version: str) -> None:
        """Let the host see that a container has loaded a driver, and where its files are."""
        self._write(f"{_LOADED}/version", version)
        self._write(f"{_DRIVER_ROOT}/usr/bin/nvidia-smi", "")

    def show_containers_toolkit(self, programs: Iterable[str]) -> None:
        """Let the host have programs that a container has installed; they stay when that ends."""
        for path in programs:
            self._write(path.lstrip("/").replace("usr/local/", _LOCAL, 1), "ELF")

    def hide_containers_driver(self) -> None:
        """Remove what shows a container's driver."""
        if self.directory is not None and (self.directory / _DRIVER_ROOT).exists():
            for path in (_LOADED, _DRIVER_ROOT):
                shutil.rmtree(self.directory / path, ignore_errors=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One mount of a container.

    Attributes:
        path: Where the container sees it.
        root: Where that is in ``files``; a path of the host if ``on_host``.
        files: Text by path: the host's files, those of a ConfigMap, or an emptyDir's.
        propagation: ``None``, ``HostToContainer`` or ``Bidirectional``.
    """

    path: str
    root: str
    files: dict[str, str]
    on_host: bool = False
    read_only: bool = False
    propagation: str = "None"


class ReadOnlyMountError(Exception):
    """A container wrote where it may not."""


def normalize(path: str) -> str:
    """Return a path without doubled or trailing slashes; ``/var/run`` is ``/run``."""
    parts = [part for part in path.split("/") if part and part != "."]
    if parts[:2] == ["var", "run"]:
        parts = parts[1:]
    return "/" + "/".join(parts)


class Filesystem:
    """A container's view: its mounts, the deepest first, and private files for everything else."""

    def __init__(self, mounts: Iterable[Mount], changed: Callable[[], None]) -> None:
        """Take the mounts of one container; ``changed`` is called when a file changes that others may see."""
        self._mounts = sorted(mounts, key=lambda mount: -len(normalize(mount.path)))
        self._private: dict[str, str] = {}
        self._changed = changed

    def mount_of(self, path: str) -> Mount | None:
        """Return the mount that covers a path."""
        path = normalize(path)
        for mount in self._mounts:
            base = normalize(mount.path)
            if path == base or path.startswith(base.rstrip("/") + "/"):
                return mount
        return None

    def _locate(self, path: str) -> tuple[dict[str, str], str]:
        mount = self.mount_of(path)
        if mount is None:
            return self._private, normalize(path)
        return mount.files, normalize(f"{mount.root}/{normalize(path)[len(normalize(mount.path)) :]}")

    def host_path(self, path: str) -> str:
        """Return the host's path behind a container's path; empty if it is not of the host."""
        mount = self.mount_of(path)
        return self._locate(path)[1] if mount is not None and mount.on_host else ""

    def exists(self, path: str) -> bool:
        """Tell whether a file, or anything below a directory, is visible."""
        files, key = self._locate(path)
        return key in files or any(name.startswith(f"{key.rstrip('/')}/") for name in files)

    def read(self, path: str) -> str:
        """Return a file's text; empty if there is none."""
        files, key = self._locate(path)
        return files.get(key, "")

    def write(self, path: str, text: str) -> None:
        """Write a file. Raises ReadOnlyMountError."""
        mount = self.mount_of(path)
        if mount is not None and mount.read_only:
            raise ReadOnlyMountError(path)
        files, key = self._locate(path)
        files[key] = text
        if mount is not None:
            self._changed()

    def remove(self, pattern: str) -> None:
        """Remove the files that a shell pattern names, and what lies below them; missing ones are no error.

        A pattern is one in the last part of a path only, and names hidden files only if it says so.
        """
        files, key = self._locate(pattern)
        folder, _, named = key.rpartition("/")

        def is_named(path: str) -> bool:
            place, _, name = path.rpartition("/")
            hidden = name.startswith(".") and not named.startswith(".")
            return place == folder and not hidden and fnmatch.fnmatchcase(name, named)

        gone = [path for path in files if is_named(path) or path.startswith(f"{key}/")]
        for path in gone:
            del files[path]
        if gone:
            self._changed()

    def propagates(self, path: str) -> bool:
        """Tell whether mounts made at a path later on the host are seen here."""
        mount = self.mount_of(path)
        return mount is not None and mount.propagation in _PROPAGATED

    def publishes(self, path: str) -> bool:
        """Tell whether mounts that the container makes at a path reach the host."""
        mount = self.mount_of(path)
        return mount is not None and mount.on_host and mount.propagation == "Bidirectional"


def build_mounts(
    container: Mapping[str, Any],
    volumes: Iterable[Mapping[str, Any]],
    contents: Mapping[str, dict[str, str]],
    host: dict[str, str],
) -> list[Mount]:
    """Return a container's mounts; ``contents`` holds the files of every volume that is not of the host."""
    by_name = {volume["name"]: volume for volume in volumes}
    mounts: list[Mount] = []
    for mount in container.get("volumeMounts") or ():
        volume = by_name.get(mount["name"])
        if volume is None:
            continue
        on_host = "hostPath" in volume
        base = volume["hostPath"]["path"] if on_host else ""
        mounts.append(
            Mount(
                path=mount["mountPath"],
                root=f"{base}/{mount.get('subPath', '')}",
                files=host if on_host else contents.get(volume["name"], {}),
                on_host=on_host,
                read_only=bool(mount.get("readOnly")),
                propagation=mount.get("mountPropagation") or "None",
            )
        )
    return mounts
