"""Kubernetes' programs for tests: where this machine has them, and how they are made where it has none.

    python -m tests.real.binaries [PROGRAM ...]     # finds or builds them, and says what came from where

In this order: the folder that ``KUBEBUILDER_ASSETS`` names, which is then the only one, as versions do not mix; the
compressed ones of a folder beside the checkout; what an earlier run built. Only this command builds, which takes
minutes; tests ask with ``missing`` and ``binary``.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import functools
import hashlib
import lzma
import mmap
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

VERSION = "1.20.2"
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
OF_THE_MACHINE = ("etcd", "kubectl", "containerd", "runc")
"""Come from packages; ``KUBEBUILDER_ASSETS`` may have etcd and kubectl as well."""
RECIPE = Path(__file__).with_name("build_kubernetes.sh")
_PACKAGES = {"etcd": "etcd-server", "kubectl": "kubernetes-client"}
CACHE_VARIABLE = "GPU_PROVISION_TEST_CACHE"
_FIXED_REFLECT2 = b"reflect2/go_above_118.go"
"""Without this file of reflect2 1.0.2, a program built with Go 1.18 or newer dies of the first custom resource."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where programs may be: somebody's folder, if any; compressed ones, if the folder exists; our cache."""

    assets: Path | None
    compressed: Path
    cache: Path

    @property
    def built(self) -> Path:
        """What we built ourselves; a changed recipe has another folder."""
        return self.cache / f"kubernetes-{VERSION}-{_digest(RECIPE)}"


@dataclass(frozen=True, slots=True)
class Found:
    """A program, and where it came from, for people."""

    path: Path
    origin: str


class NotHereError(LookupError):
    """A program that this machine lacks."""


def places(environment: Mapping[str, str]) -> Places:
    """Return the places that an environment names."""
    assets = environment.get("KUBEBUILDER_ASSETS")
    cache = environment.get(CACHE_VARIABLE) or _cache_of_user(environment)
    beside = Path(__file__).resolve().parents[3] / "shared" / f"kubernetes-{VERSION}"
    return Places(Path(assets) if assets else None, beside, Path(cache))


def _cache_of_user(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpu-provision"


os.environ.setdefault(
    CACHE_VARIABLE, str(_cache_of_user(os.environ))
)  # tests and their children get another XDG folder


def binary(name: str) -> Path:
    """Return the path of one of ``PROGRAMS`` or ``OF_THE_MACHINE``.

    Raises:
        NotHereError: this machine lacks it; the message says what to do.
    """
    if reason := missing(name):
        raise NotHereError(reason)
    found = _find_here(name)
    assert found, name
    return found.path


def missing(*names: str) -> str:
    """Say why some of these programs cannot be had without a build; an empty string if all are there."""
    here = places(os.environ)
    return "; ".join(_why_missing(name, here) for name in names if not _find_here(name))


def _why_missing(name: str, here: Places) -> str:
    if name in OF_THE_MACHINE:
        return f"{name} is not installed (Debian: apt-get install {_PACKAGES.get(name, name)})"
    if here.assets:
        return f"KUBEBUILDER_ASSETS={here.assets} has no {name}"
    return f"no {name}: python -m tests.real.binaries builds it, or set KUBEBUILDER_ASSETS to a folder that has it"


@functools.cache
def _find_here(name: str) -> Found | None:
    return find(name, places(os.environ))


def find(name: str, where: Places) -> Found | None:
    """Return a program from the first place that has it."""
    if name in OF_THE_MACHINE:
        return _in_assets(name, where) or _on_path(name)
    if where.assets:
        return _in_assets(name, where)
    return _unpacked(name, where) or _built(name, where)


def _in_assets(name: str, where: Places) -> Found | None:
    if not where.assets or not (where.assets / name).is_file():
        return None
    return Found(where.assets / name, "KUBEBUILDER_ASSETS")


def _on_path(name: str) -> Found | None:
    path = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")  # not every user's PATH has these
    return Found(Path(path), "PATH") if path else None


def _built(name: str, where: Places) -> Found | None:
    path = where.built / name
    return Found(path, "built earlier") if path.is_file() else None


def _unpacked(name: str, where: Places) -> Found | None:
    """Unpack a program once; pass over one that cannot do its work."""
    packed = where.compressed / f"{name}.xz"
    if not packed.is_file():
        return None
    target = where.cache / f"kubernetes-{VERSION}-unpacked" / _digest(packed) / name
    if not target.is_file() and not _unfit_mark(target).exists():
        with _alone(where.cache):
            _unpack(packed, target)
    return Found(target, "unpacked") if target.is_file() else None


def _unpack(packed: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    with lzma.open(packed) as source, part.open("wb") as made:
        shutil.copyfileobj(source, made, 1 << 20)
    if not serves_custom_resources(part):
        part.unlink()
        _unfit_mark(target).touch()
        return
    part.chmod(0o755)
    part.rename(target)


def _unfit_mark(target: Path) -> Path:
    return target.with_name(f"{target.name}.unfit")


def serves_custom_resources(program: Path) -> bool:
    """Tell whether a program is no API server, or one that survives custom resources; it was built by Go >= 1.18."""
    if not program.name.startswith("kube-apiserver"):
        return True
    with program.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(_FIXED_REFLECT2) >= 0


@functools.cache
def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()[:12]


@contextlib.contextmanager
def _alone(cache: Path) -> Iterator[int]:
    """Let one process, and who inherits this file from it, work in the cache; killed ones leave no lock."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another run works in {cache}; this one waits for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock.fileno()


def build(names: Sequence[str], where: Places) -> None:
    """Build programs from Debian's source package into the cache; what a killed build left is removed first.

    Raises:
        NotHereError: the recipe failed; it said why.
    """
    with _alone(where.cache) as lock:
        lacking = [name for name in names if not (where.built / name).is_file()]
        if not lacking:
            return
        work = where.built / "work"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        try:
            _follow_recipe(work, lacking, lock)
            for name in lacking:
                (work / "made" / name).rename(where.built / name)
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _follow_recipe(work: Path, names: Sequence[str], lock: int) -> None:
    """Build; what goes on after we were killed keeps the lock until it ends, too."""
    if subprocess.run([RECIPE, work, *names], pass_fds=[lock], check=False).returncode:
        message = f"{RECIPE.name} failed, see above"
        raise NotHereError(message)


def version(program: Path) -> tuple[int, ...]:
    """Return what a program says of its version, as numbers."""
    asked = ("version", "--client") if program.name == "kubectl" else ("--version",)
    said = subprocess.run([program, *asked], check=True, capture_output=True, text=True).stdout
    numbers = re.search(r"(\d+)\.(\d+)\.(\d+)", said)
    assert numbers, said
    return tuple(int(number) for number in numbers.groups())


def say(line: str) -> None:
    """Tell a person at a terminal."""
    print(line, flush=True)  # noqa: T201 - a program for people


def main(words: Sequence[str]) -> int:
    """Find or build programs, all by default; say what came from where. Return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.real.binaries",
        description=f"Find Kubernetes' programs for tests: {', '.join(PROGRAMS)}.",
        epilog="Those that are found nowhere are built, which takes about 10 minutes; see docs/testing.md.",
    )
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help="one of these; all of them by default")
    names = parser.parse_args(words).programs
    if strangers := [name for name in names if name not in PROGRAMS]:
        parser.error(f"no such program: {', '.join(strangers)}")
    where, wanted = places(os.environ), names or PROGRAMS
    _tell_unfit(where)
    lacking = [name for name in wanted if not find(name, where)]
    if lacking and not where.assets:
        try:
            build(lacking, where)
        except NotHereError as error:
            say(str(error))
            return 1
    for name in (*wanted, *OF_THE_MACHINE):
        found = find(name, where)
        say(_line(name, found) if found else _why_missing(name, where))
    return 0 if find("etcd", where) and find("kube-apiserver", where) else 1


def _tell_unfit(where: Places) -> None:
    packed = where.compressed / "kube-apiserver.xz"
    if not where.assets and packed.is_file() and not _unpacked("kube-apiserver", where):
        say(f"passed over: {packed.name} of {where.compressed} dies of custom resources (reflect2 older than 1.0.2)")


def _line(name: str, found: Found) -> str:
    return f"{name:24} {'.'.join(map(str, version(found.path))):8} {found.origin}: {found.path}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
