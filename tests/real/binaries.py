"""Kubernetes' programs for tests: where this machine has them, and how they are made where it has none.

    python -m tests.real.binaries [PROGRAM ...]     # finds or builds them, and says what came from where

In this order: the folder that ``KUBEBUILDER_ASSETS`` names, which is then the only one, as versions do not mix; the
compressed ones of a folder beside the checkout; what an earlier run built. Only this command builds, which takes
minutes; tests ask with ``missing`` and ``binary``. Without names it also downloads newer clients (``clients``).
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import functools
import hashlib
import lzma
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.real import clients

VERSION = "1.20.2"
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
OF_THE_MACHINE = ("etcd", "kubectl", "containerd", "runc")
"""Come from packages; ``KUBEBUILDER_ASSETS`` may have etcd as well."""
RECIPE = Path(__file__).with_name("build_kubernetes.sh")
COMPRESSED = Path(__file__).resolve().parents[3] / "shared" / f"kubernetes-{VERSION}"
_UNFIT = "kube-apiserver"
"""The compressed one dies of the first custom resource: its reflect2 is older than 1.0.2, its Go newer than 1.17."""
_PACKAGES = {"etcd": "etcd-server", "kubectl": "kubernetes-client"}
CACHE_VARIABLE = "GPU_PROVISION_TEST_CACHE"
_user_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpu-provision"
os.environ.setdefault(CACHE_VARIABLE, str(_user_cache))  # tests and their children get another XDG folder


@dataclass(frozen=True, slots=True)
class Found:
    path: Path
    origin: str


class NotHereError(LookupError):
    """A program that this machine lacks."""


def cache() -> Path:
    return Path(os.environ[CACHE_VARIABLE])


def binary(name: str) -> Path:
    """Return the path of one of ``PROGRAMS`` or ``OF_THE_MACHINE``."""
    found = find(name)
    if not found:
        raise NotHereError(missing(name))
    return found.path


def missing(*names: str) -> str:
    """Say why some of these programs cannot be had without a build; an empty string if all are there."""
    return "; ".join(_why_missing(name) for name in names if not find(name))


def _why_missing(name: str) -> str:
    if name in OF_THE_MACHINE:
        return f"{name} is not installed (Debian: apt-get install {_PACKAGES.get(name, name)})"
    if assets := _assets():
        return f"KUBEBUILDER_ASSETS={assets} has no {name}"
    return f"no {name}: python -m tests.real.binaries builds it, or set KUBEBUILDER_ASSETS to a folder that has it"


def find(name: str) -> Found | None:
    if (assets := _assets()) and (assets / name).is_file():
        return Found(assets / name, "KUBEBUILDER_ASSETS")
    if name in OF_THE_MACHINE:
        return _on_path(name)
    return None if assets else _unpacked(name) or _built(name)


def _assets() -> Path | None:
    folder = os.environ.get("KUBEBUILDER_ASSETS")
    return Path(folder) if folder else None


def _on_path(name: str) -> Found | None:
    path = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")  # not every user's PATH has these
    return Found(Path(path), "PATH") if path else None


def _built(name: str) -> Found | None:
    path = _build_folder() / name
    return Found(path, "built earlier") if path.is_file() else None


def _build_folder() -> Path:
    """Return the folder of what we built ourselves; a changed recipe has another one."""
    return cache() / f"kubernetes-{VERSION}-{_digest(RECIPE)}"


def _unpacked(name: str) -> Found | None:
    packed = COMPRESSED / f"{name}.xz"
    if name == _UNFIT or not packed.is_file():
        return None
    target = cache() / f"kubernetes-{VERSION}-unpacked" / _digest(packed) / name
    if not target.is_file():
        with _alone():
            _unpack(packed, target)
    return Found(target, "unpacked")


def _unpack(packed: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    with lzma.open(packed) as source, part.open("wb") as made:
        shutil.copyfileobj(source, made, 1 << 20)
    part.chmod(0o755)
    part.rename(target)


@functools.cache
def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()[:12]


@contextlib.contextmanager
def _alone() -> Iterator[int]:
    """Let one process, and who inherits this file from it, work in the cache; killed ones leave no lock."""
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another run works in {cache()}; this one waits for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock.fileno()


def build(names: Sequence[str]) -> None:
    """Build programs from Debian's source package into the cache; what a killed build left is removed first."""
    with _alone() as lock:
        lacking = [name for name in names if not _built(name)]
        if not lacking:
            return
        work = _build_folder() / "work"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        try:
            _follow_recipe(work, lacking, lock)
            for name in lacking:
                (work / "made" / name).rename(_build_folder() / name)
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _follow_recipe(work: Path, names: Sequence[str], lock: int) -> None:
    """Build; what goes on after we were killed keeps the lock until it ends, too."""
    if subprocess.run([RECIPE, work, *names], pass_fds=[lock], check=False).returncode:
        message = f"{RECIPE.name} failed, see above"
        raise NotHereError(message)


def version(program: Path) -> tuple[int, ...]:
    asked = {"kubectl": ("version", "--client"), "helm": ("version",)}.get(program.name, ("--version",))
    said = subprocess.run([program, *asked], check=True, capture_output=True, text=True).stdout
    numbers = re.search(r"(\d+)\.(\d+)\.(\d+)", said)
    assert numbers, said
    return tuple(int(number) for number in numbers.groups())


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - a program for people


def main(words: Sequence[str]) -> int:
    """Find or build programs, all by default; say what came from where. Return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.real.binaries",
        description=f"Find Kubernetes' programs for tests: {', '.join(PROGRAMS)}.",
        epilog="Those that are found nowhere are built, which takes about 10 minutes; see docs/testing.md.",
    )
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help="one of these; all, and clients, by default")
    names = parser.parse_args(words).programs
    if strangers := [name for name in names if name not in PROGRAMS]:
        parser.error(f"no such program: {', '.join(strangers)}")
    try:
        _make(names)
    except (NotHereError, subprocess.CalledProcessError) as error:
        say(str(error))
        return 1
    for name in (*(names or PROGRAMS), *OF_THE_MACHINE):
        found = find(name)
        say(_line(name, found) if found else _why_missing(name))
    for name in () if names else clients.NAMES:
        say(_line(name, Found(clients.path(cache(), name), "downloaded")))
    return 0 if find("etcd") and find("kube-apiserver") else 1


def _make(names: Sequence[str]) -> None:
    """Build what is found nowhere, unless KUBEBUILDER_ASSETS names the only place; without names, download clients."""
    lacking = [name for name in names or PROGRAMS if not find(name)]
    if lacking and not _assets():
        build(lacking)
    if not names:
        with _alone():
            clients.download(cache())


def _line(name: str, found: Found) -> str:
    return f"{name:24} {'.'.join(map(str, version(found.path))):8} {found.origin}: {found.path}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
