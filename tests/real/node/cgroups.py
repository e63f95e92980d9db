"""A cgroup of the machine's own in every hierarchy, so that its pods count there and nothing of them stays."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.real.node.mounts import Mount, mount, mounts

_TREE = Path("/sys/fs/cgroup")
_PREFIX = "gpu-provision-node-"
_NEEDED = {"cpu", "cpuset", "hugetlb", "io", "memory", "pids"}
"""What kubelet asks of version 2."""
_INHERITED = ("cpuset.cpus", "cpuset.mems")
"""What is empty in a new cgroup of version 1, which then takes no process."""
_REMOVAL_SECONDS = 5
_NEW_CGROUP_NAMESPACE = 0x02000000
"""CLONE_NEWCGROUP; Python knows it from 3.12 on."""


@contextlib.contextmanager
def made() -> Iterator[list[Path]]:
    """Make a cgroup per hierarchy; remove them at the end, when all that was in them has ended.

    The cgroups of a machine whose holder was killed are removed, too.
    """
    folders = [parent / f"{_PREFIX}{os.getpid()}" for parent in _parents()]
    for other in (other for folder in folders for other in folder.parent.glob(f"{_PREFIX}*")):
        if not Path("/proc", other.name.removeprefix(_PREFIX)).exists():
            _remove(other)
    try:
        for folder in folders:
            _make(folder)
        yield folders
    finally:
        for folder in folders:
            _remove_when_empty(folder)


def join(folders: Iterable[Path]) -> None:
    """Go into cgroups, and see them as the roots of their hierarchies from now on."""
    for folder in folders:
        (folder / "cgroup.procs").write_text("0")
    if ctypes.CDLL(None, use_errno=True).unshare(_NEW_CGROUP_NAMESPACE):
        raise OSError(ctypes.get_errno(), "no cgroup namespace of our own")


def mount_own(tree: Path) -> None:
    """Mount the hierarchies at the folder ``tree``, seen from a new cgroup namespace: its own cgroup is the root."""
    if is_version_2():
        mount("cgroup2", tree, kind="cgroup2")
        _leave_root(tree)
        _hand_down(tree)
        return
    mount("tmpfs", tree, kind="tmpfs", options="mode=755")
    for controllers in _hierarchies():
        folder = tree / controllers.removeprefix("name=")
        folder.mkdir()
        mount("cgroup", folder, kind="cgroup", options=_options(controllers))
        for controller in controllers.split(",") if "," in controllers else ():
            (tree / controller).symlink_to(controllers)


def is_version_2() -> bool:
    """Tell whether the machine has the unified hierarchy only."""
    return any(entry.target == _TREE and entry.kind == "cgroup2" for entry in mounts())


def _options(controllers: str) -> str:
    return f"none,{controllers}" if controllers.startswith("name=") else controllers


def _leave_root(root: Path) -> None:
    """Version 2 lets no cgroup hold processes and hand controllers down; a leaf may hold them."""
    leaf = root / "init"
    leaf.mkdir()
    (leaf / "cgroup.procs").write_text("0")


def _hand_down(root: Path) -> None:
    handed = (root / "cgroup.subtree_control").read_text().split()
    for controller in (root / "cgroup.controllers").read_text().split():
        if controller in _NEEDED and controller not in handed:
            (root / "cgroup.subtree_control").write_text(f"+{controller}")


def _hierarchies() -> dict[str, str]:
    """Return our path in each hierarchy of version 1, by its controllers."""
    lines = (line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines())
    return {controllers: path for _, controllers, path in lines if controllers}


def _parents() -> list[Path]:
    """Where our cgroups are made: beside us in version 1; in version 2 at the root, which alone may hold processes."""
    if is_version_2():
        _hand_down(_TREE)
        return [_TREE]
    mounted = [entry for entry in mounts() if entry.kind == "cgroup"]
    return [_folder(controllers, path, mounted) for controllers, path in _hierarchies().items()]


def _folder(controllers: str, path: str, mounted: list[Mount]) -> Path:
    wanted = set(controllers.split(","))
    found = next(entry for entry in mounted if wanted <= set(entry.options.split(",")))
    return found.target / os.path.relpath(path, found.root)


def _make(folder: Path) -> None:
    folder.mkdir()
    for name in _INHERITED:
        if (folder / name).exists() and not is_version_2():
            (folder / name).write_text((folder.parent / name).read_text())


def _remove_when_empty(folder: Path) -> None:
    give_up = time.monotonic() + _REMOVAL_SECONDS
    while not _remove(folder) and time.monotonic() < give_up:
        time.sleep(0.1)


def _remove(folder: Path) -> bool:
    for path, names, _ in os.walk(folder, topdown=False):
        for name in names:
            with contextlib.suppress(OSError):
                (Path(path) / name).rmdir()
    with contextlib.suppress(OSError):
        folder.rmdir()
    return not folder.exists()
