"""Runs a command so that a private directory is all it sees and changes, by Linux namespaces.

The system's programs and libraries are bound into that directory, read-only where the caller is root;
everything else in it (/etc, /run, /proc, /sys, /lib/modules, /boot ...) belongs to the simulated host.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from gpu_provision.sandbox.hosts.rootfs import TOOLS
from gpu_provision.sandbox.state import replace_file

SHARED = ("usr", "bin", "sbin", "lib32", "lib64", "libx32")
"""Top-level directories of programs and libraries, taken from the machine as they are; /lib is composed."""

PRIVATE_LIB = ("modules", "modprobe.d", "modules-load.d")
"""Parts of /lib and /usr/lib that say something about a machine, and so must be the simulated host's."""

DRIVER_FILES = ("lib*/libnvidia-ml.so.*", "lib/*/libnvidia-ml.so.*", "lib/*/nvidia/*/libnvidia-ml.so.*",
                "bin/nvidia-*", "bin/nv-fabricmanager")  # fmt: skip
"""By these, below /usr, a machine is known to have an NVIDIA driver; the real ones are covered by an empty file."""

DEVICES = ("null", "zero", "full", "random", "urandom", "tty")

ABSENT = ("lspci", "grubby", "mokutil", "kubelet", "lsinitramfs", "lsinitrd", "apt-cache")
"""Tools that no simulated host has, whether or not the machine that the sandbox runs on has them."""

MULTI_CALL = frozenset({"kmod", "systemctl"})
"""Real programs with many names, all of which have a script here."""

_ENTER = Path(__file__).with_name("enter.py")


def _argv(directory: Path, command: str, way: str) -> list[str]:
    return [sys.executable, "-IS", str(_ENTER), str(directory), way, command]


def argv(directory: Path, command: str) -> list[str]:
    """Return the command line that runs a shell command inside the simulated host of this directory.

    Needs ``isolation_problem()`` to be empty, and a directory that ``prepare`` has seen.
    """
    return _argv(directory, command, _find_method()[0])


def prepare(directory: Path) -> None:
    """Write what ``argv`` mounts over the host's directory: it depends on this machine and on who runs it."""
    _prepare(directory, _find_method()[0])


def isolation_problem() -> str:
    """Return why this machine cannot isolate simulated hosts, in one line; empty if it can.

    Finds out by trying, once in a process: too many settings (seccomp, AppArmor, sysctl) have a say in it.
    """
    return _find_method()[1]


@cache
def _find_method() -> tuple[str, str]:
    """Return the first way that works, else an empty one and the reason: root needs no user namespace."""
    is_root, reason = os.geteuid() == 0, ""
    for way in ("root", "user") if is_root else ("user",):
        reason = _try_method(way)
        if not reason:
            return way, ""
    user = "root" if is_root else "an ordinary user"
    return "", f"this machine does not let {user} make namespaces ({reason})"


def _try_method(way: str) -> str:
    with tempfile.TemporaryDirectory(prefix="gpu-provision-") as name:
        root = Path(name)
        _prepare(root, way)
        command = _argv(root, "exit 0", way)
        done = subprocess.run(command, capture_output=True, check=False, stdin=subprocess.DEVNULL)  # noqa: S603 - fixed words and paths of our own
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return (lines[-1] if lines else f"exit status {done.returncode}") if done.returncode else ""


def _prepare(root: Path, way: str) -> None:
    for name in (".sandbox", ".lib", ".proc", "dev", "etc", "lib", "proc", "sys"):
        (root / name).mkdir(parents=True, exist_ok=True)
    _mount_point(root / ".sandbox/absent")
    _compose_lib(root)
    bound = "rbind,ro" if way == "root" else "rbind"
    mounts = {target: (source, options) for source, target, options in _mounts(root, bound)}
    fields = [str(field) for target, (source, options) in mounts.items() for field in (source, target, options)]
    replace_file(root / ".sandbox/mounts", b"".join(os.fsencode(field) + b"\0" for field in fields))


def _mounts(root: Path, bound: str) -> Iterator[tuple[Path, Path, str]]:
    """Yield (source, target, options); makes the mount points that are missing."""
    yield Path("/proc"), root / ".proc", bound
    yield Path(os.path.realpath("/lib")), root / ".lib", bound
    for name in SHARED:
        if _share(Path("/", name), root / name):
            yield Path("/", name), root / name, bound
    for name in DEVICES:
        yield Path("/dev", name), _mount_point(root / "dev" / name), "bind"
    if Path("/etc/alternatives").is_dir():
        (root / "etc/alternatives").mkdir(exist_ok=True)
        yield Path("/etc/alternatives"), root / "etc/alternatives", bound
    if Path("/etc/ld.so.cache").is_file():
        yield Path("/etc/ld.so.cache"), _mount_point(root / "etc/ld.so.cache"), "bind"
    yield from _private_mounts(root)


def _mount_point(path: Path) -> Path:
    if not path.exists():
        path.touch()
    return path


def _share(source: Path, target: Path) -> bool:
    """Make the mount point of a directory, or the same link; return whether there is something to mount."""
    if source.is_symlink():
        link = source.readlink()
        if not target.is_symlink():
            target.symlink_to(link)
        return False
    if source.is_dir():
        target.mkdir(exist_ok=True)
        return True
    return False


def _compose_lib(root: Path) -> None:
    """Link each entry of the machine's /lib, so that the private ones can stand beside them."""
    lib = root / "lib"
    real, linked = (
        {entry.name for entry in directory.iterdir()} - set(PRIVATE_LIB) for directory in (Path("/lib"), lib)
    )
    for name in linked - real:
        (lib / name).unlink()
    for name in real - linked:
        (lib / name).symlink_to(f"/.lib/{name}")
    for name in PRIVATE_LIB:
        (lib / name).mkdir(exist_ok=True)


def _private_mounts(root: Path) -> Iterator[tuple[Path, Path, str]]:
    """Yield what lies over parts of the machine's /usr."""
    if Path("/usr/local").is_dir():
        (root / ".sandbox/local").mkdir(exist_ok=True)
        yield root / ".sandbox/local", root / "usr/local", "bind"
    for name in PRIVATE_LIB:
        if Path("/usr/lib", name).is_dir():
            yield root / "lib" / name, root / "usr/lib" / name, "bind"
    # A simulated tool lies over the real one, so that neither a full path nor a reset PATH reaches that. A link may
    # lead to a program that is much else besides, such as busybox or coreutils.
    for tool in sorted({*TOOLS, *ABSENT}):
        script = root / ".sandbox/bin" / tool
        source = script.resolve() if script.exists() else root / ".sandbox/absent"
        for real in (Path("/usr/sbin", tool), Path("/usr/bin", tool)):
            if real.is_file() and (not real.is_symlink() or real.resolve().name in MULTI_CALL):
                yield source, root / str(real.resolve()).lstrip("/"), "bind"
    for file in _driver_files():
        yield root / ".sandbox/absent", root / file.lstrip("/"), "bind"


@cache
def _driver_files() -> tuple[str, ...]:
    """Return what this machine has of an NVIDIA driver: a simulated host has one of its own, or none."""
    found = {file.resolve() for pattern in DRIVER_FILES for file in Path("/usr").glob(pattern)}
    return tuple(sorted(str(file) for file in found if file.is_relative_to("/usr") and file.is_file()))
