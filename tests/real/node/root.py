"""The machine's own root: everything of this machine can be read in it, and what is written there ends with it."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.real.node import cgroups
from tests.real.node.mounts import bind, mount, mounts

_OWN = tuple(Path(path) for path in ("/proc", "/sys", "/dev", "/run"))
_EMPTY = ("run", "etc/containerd", "etc/cni", "etc/kubernetes", "var/lib/cni", "usr/local/nvidia")
"""Folders of a node in which nothing of this machine's may be found."""
_FILESYSTEMS = ("var/lib/kubelet", "var/lib/containerd")
"""Folders that need a file system of their own: an overlay's upper part cannot lie on an overlay."""

_TUNABLES = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
"""What kubelet sets in the kernel, unless it finds it so: so it finds them, and leaves the kernel alone."""

_DEVICES = {"null": 3, "zero": 5, "full": 7, "random": 8, "urandom": 9, "kmsg": 11}
_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}


def enter(directory: Path, *, pci: Path | None) -> None:
    """Change to the private root, with ``pci`` for /sys/bus/pci/devices; files in ``directory`` are seen outside.

    Without ``pci`` the machine has this computer's PCI devices and its list of kernel modules.
    """
    root = _overlay(directory / "root")
    _add_other_file_systems(root)
    for name in (*_EMPTY, *_FILESYSTEMS):
        (root / name).mkdir(parents=True, exist_ok=True)
        mount("tmpfs", root / name, kind="tmpfs", options="mode=755")
    _show(directory, root)
    _show(directory / "log", root, at="var/log")
    _mount_proc(root / "proc", directory / "sysctl")
    _mount_sys(root / "sys", pci)
    _mount_dev(root / "dev")
    _pivot(root)


def _overlay(base: Path) -> Path:
    base.mkdir()
    mount("tmpfs", base, kind="tmpfs", options="mode=755")
    layers = {name: base / name for name in ("upper", "work", "merged")}
    for folder in layers.values():
        folder.mkdir()
    options = f"lowerdir=/,upperdir={layers['upper']},workdir={layers['work']}"
    mount("overlay", layers["merged"], kind="overlay", options=options)
    return layers["merged"]


def _add_other_file_systems(root: Path) -> None:
    """Show folders that are mounted besides the root file system, to be read only: they may hold the code we run."""
    places = {entry.target for entry in mounts() if entry.kind not in {"autofs", "nsfs"}}
    for place in sorted(places - {Path("/")}):
        if place.is_relative_to(root.parent) or any(place.is_relative_to(own) for own in _OWN):
            continue
        if place.is_dir() and (root / place.relative_to("/")).is_dir():
            bind(place, root / place.relative_to("/"), read_only=True)


def _show(folder: Path, root: Path, *, at: str | None = None) -> None:
    folder.mkdir(exist_ok=True)
    target = root / (at or folder.relative_to("/"))
    target.mkdir(parents=True, exist_ok=True)
    bind(folder, target)


def _mount_proc(proc: Path, aside: Path) -> None:
    """Mount our own, in which no value of the whole kernel can be set: only those of our network."""
    mount("proc", proc, kind="proc")
    bind(proc / "sys/net", network := _made(aside / "net"))
    bind(proc / "sys", proc / "sys", read_only=True)
    bind(network, proc / "sys/net")
    for name, value in _TUNABLES.items():
        if (proc / "sys" / name).exists():
            file = aside / name.replace("/", "-")
            file.write_text(f"{value}\n")
            bind(file, proc / "sys" / name)


def _mount_sys(sys: Path, pci: Path | None) -> None:
    """Mount our own; with ``pci`` also a list of kernel modules that stand-ins write."""
    mount("sysfs", sys, kind="sysfs")
    cgroups.mount_own(sys / "fs/cgroup")
    if pci is None:
        return
    bind(pci, sys / "bus/pci/devices")
    mount("tmpfs", sys / "module", kind="tmpfs", options="mode=755")
    (_made(sys / "module/firmware_class/parameters") / "path").write_text("\n")


def _mount_dev(dev: Path) -> None:
    """Mount a folder with the devices that every machine has, and none of this machine's."""
    mount("tmpfs", dev, kind="tmpfs", options="mode=755")
    for name, minor in _DEVICES.items():
        _device(dev / name, 1, minor)
    _device(dev / "tty", 5, 0)
    for name, target in _LINKS.items():
        (dev / name).symlink_to(target)
    for name, options in _DEV_FILESYSTEMS.items():
        kind, _, chosen = options.partition(" ")
        mount(kind, _made(dev / name), kind=kind, options=chosen)
    (dev / "char").mkdir()
    (dev / "log").touch()


_DEV_FILESYSTEMS: Mapping[str, str] = {
    "pts": "devpts newinstance,ptmxmode=0666,mode=0620",
    "shm": "tmpfs mode=1777",
    "mqueue": "mqueue",
}


def _device(path: Path, major: int, minor: int) -> None:
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
    path.chmod(0o666)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _pivot(root: Path) -> None:
    old = _made(root / ".before")
    os.chdir(root)
    subprocess.run(["pivot_root", ".", old.name], check=True)
    subprocess.run(["umount", "-n", "-l", f"/{old.name}"], check=True)
    Path("/", old.name).rmdir()
    subprocess.run(["mount", "-n", "--make-rshared", "/"], check=True)
