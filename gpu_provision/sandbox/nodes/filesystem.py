"""What a container sees of the host's files: through its mounts, and only through them."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]
_PROPAGATED = {"HostToContainer", "Bidirectional"}


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


class ReadOnlyMount(Exception):
    """A container wrote where it may not."""


def normal(path: str) -> str:
    """Return a path without doubled or trailing slashes; ``/var/run`` is ``/run``."""
    parts = [part for part in path.split("/") if part and part != "."]
    if parts[:2] == ["var", "run"]:
        parts = parts[1:]
    return "/" + "/".join(parts)


def _matches(path: str, pattern: str) -> bool:
    """Tell whether a shell's pattern names a path: in the last part only, and hidden files only if it says so."""
    folder, _, name = path.rpartition("/")
    pattern_folder, _, pattern_name = pattern.rpartition("/")
    hidden = name.startswith(".") and not pattern_name.startswith(".")
    return folder == pattern_folder and not hidden and fnmatch.fnmatchcase(name, pattern_name)


class Filesystem:
    """A container's view: its mounts, the deepest first, and private files for everything else."""

    def __init__(self, mounts: Iterable[Mount], changed: Callable[[], None]) -> None:
        """Take the mounts of one container; ``changed`` is called when a file changes that others may see."""
        self._mounts = sorted(mounts, key=lambda mount: -len(normal(mount.path)))
        self._private: dict[str, str] = {}
        self._changed = changed

    def mount_of(self, path: str) -> Mount | None:
        """Return the mount that covers a path."""
        path = normal(path)
        for mount in self._mounts:
            base = normal(mount.path)
            if path == base or path.startswith(base.rstrip("/") + "/"):
                return mount
        return None

    def _locate(self, path: str) -> tuple[dict[str, str], str]:
        mount = self.mount_of(path)
        if mount is None:
            return self._private, normal(path)
        rest = normal(path)[len(normal(mount.path)) :]
        return mount.files, normal(f"{mount.root}/{rest}")

    def host_path(self, path: str) -> str:
        """Return the host's path behind a container's path; empty if it is not of the host."""
        mount = self.mount_of(path)
        return self._locate(path)[1] if mount is not None and mount.on_host else ""

    def exists(self, path: str) -> bool:
        """Tell whether a file, or anything below a directory, is visible."""
        files, key = self._locate(path)
        return key in files or any(name.startswith(f"{key}/") for name in files)

    def read(self, path: str) -> str:
        """Return a file's text; empty if there is none."""
        files, key = self._locate(path)
        return files.get(key, "")

    def write(self, path: str, text: str) -> None:
        """Write a file. Raises ReadOnlyMount."""
        mount = self.mount_of(path)
        if mount is not None and mount.read_only:
            raise ReadOnlyMount(path)
        files, key = self._locate(path)
        files[key] = text
        if mount is not None:
            self._changed()

    def remove(self, pattern: str) -> None:
        """Remove the files that a shell pattern names, and what lies below them; missing ones are no error."""
        files, key = self._locate(pattern)
        gone = [name for name in files if _matches(name, key) or name.startswith(f"{key}/")]
        for name in gone:
            del files[name]
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


def mounts_of(
    container: Mapping[str, Any],
    volumes: Iterable[Mapping[str, Any]],
    contents: Mapping[str, dict[str, str]],
    host: dict[str, str],
) -> list[Mount]:
    """Return a container's mounts; ``contents`` holds the files of every volume that is not of the host."""
    by_name = {volume["name"]: volume for volume in volumes}
    return [
        _mount(mount, by_name[mount["name"]], contents, host)
        for mount in container.get("volumeMounts") or ()
        if mount["name"] in by_name
    ]


def _mount(
    mount: Mapping[str, Any], volume: Mapping[str, Any], contents: Mapping[str, dict[str, str]], host: dict[str, str]
) -> Mount:
    on_host = "hostPath" in volume
    base = volume["hostPath"]["path"] if on_host else ""
    return Mount(
        path=mount["mountPath"],
        root=f"{base}/{mount.get('subPath', '')}",
        files=host if on_host else contents.get(volume["name"], {}),
        on_host=on_host,
        read_only=bool(mount.get("readOnly")),
        propagation=mount.get("mountPropagation") or "None",
    )
