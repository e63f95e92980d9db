"""The NVIDIA GPU and driver of the computer that runs the tests, and what the node and its images get of them."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.real.images import host
from tests.real.images.layers import Layer, copied
from tests.real.images.programs import gpus

SOURCE = Path(__file__).with_name("vector_add.cu")
_LIBRARY_FOLDERS = tuple(
    map(Path, (f"/{gpus.LIBRARIES}", "/usr/lib64", "/usr/local/nvidia/lib64", "/home/kubernetes/bin/nvidia/lib64"))
)
_PROGRAM_FOLDERS = ("/usr/local/nvidia/bin", "/home/kubernetes/bin/nvidia/bin")
_COMPILERS = ("/usr/local/cuda/bin",)
_USERS = ("container-toolkit", "gpu-operator", "k8s-device-plugin", "dcgm-exporter")
"""Images whose programs load the driver's libraries."""


def missing() -> str:
    """Say what this computer lacks; an empty string if nothing."""
    if not Path("/dev/nvidiactl").exists():
        return "no NVIDIA GPU with a loaded driver: /dev/nvidiactl does not exist"
    lacking = [path for path in (gpus.SMI, gpus.NVML, gpus.CUDA) if path not in files()]
    if lacking:
        return f"the driver's files are not found: {', '.join(lacking)}"
    return "" if compiler() else "nvcc is not installed (CUDA toolkit)"


def files() -> dict[str, Path]:
    """Return the driver's files on this computer, by their paths in a container."""
    found = {path: _find(path) for path in gpus.FILES}
    return {path: place.resolve() for path, place in found.items() if place}


def _find(path: str) -> Path | None:
    name = Path(path).name
    if path.startswith("usr/bin/"):
        program = shutil.which(name, path=os.pathsep.join((*_PROGRAM_FOLDERS, os.environ["PATH"])))
        return Path(program) if program else None
    return next((folder / name for folder in _LIBRARY_FOLDERS if (folder / name).exists()), None)


def compiler() -> str | None:
    return shutil.which("nvcc", path=os.pathsep.join((os.environ["PATH"], *_COMPILERS)))


def asked(*queries: str) -> list[list[str]]:
    """Return what nvidia-smi says of each GPU."""
    told = smi(f"--query-gpu={','.join(queries)}", "--format=csv,noheader,nounits")
    return [[word.strip() for word in line.split(",")] for line in told.splitlines()]


def smi(*arguments: str, check: bool = True) -> str:
    """Return what nvidia-smi prints."""
    return subprocess.run([files()[gpus.SMI], *arguments], check=check, capture_output=True, text=True).stdout


def build_vector_add(folder: Path) -> Path:
    """Compile the program for the GPU that is here."""
    program, built_by = folder / "vectorAdd", compiler()
    assert built_by
    told = subprocess.run(
        [built_by, "-arch=native", "-o", str(program), str(SOURCE)], check=False, capture_output=True, text=True
    )
    assert told.returncode == 0, told.stdout + told.stderr
    return program


def image_files(vector_add: Path) -> Mapping[str, Layer]:
    """Return what stand-in images have besides their own: vectorAdd, and what the driver's files need of a system."""
    libraries = host.libraries([vector_add, *files().values()])
    common = {path: item for path, item in libraries.items() if Path(path).name not in _OF_THE_DRIVER}
    return dict.fromkeys(_USERS, common) | {"gpu-operator": {**common, "/usr/bin/vectorAdd": copied(vector_add)}}


_OF_THE_DRIVER = {Path(path).name for path in gpus.FILES}


def script(staged: Path, version: str) -> str:
    """Return a shell script that makes a machine have this driver, as NVIDIA's installer does, and the device nodes.

    ``staged`` holds the driver's files as the machine sees them, by their names.
    """
    lines = [f"mkdir -p /{gpus.LIBRARIES}"]
    for path in files():
        name, target = Path(path).name, f"/{path}"
        if path.startswith("usr/bin/"):
            lines.append(f"rm -f {target}; install -m 755 {staged}/{name} {target}")
            continue
        full = f"{target.removesuffix('.1')}.{version}"
        lines.append(f"rm -f {target} {full}; install -m 755 {staged}/{name} {full}; ln -s {Path(full).name} {target}")
    lines += [f"mknod -m 666 {path} c {major} {minor}" for path, major, minor in device_nodes()]
    return "\n".join(["set -e", *lines, "nvidia-smi -L"])


def device_nodes() -> Iterator[tuple[Path, int, int]]:
    """Yield path, major and minor number of each of the driver's device nodes."""
    for path in sorted(Path("/dev").glob("nvidia*")):
        status = path.stat()
        if stat.S_ISCHR(status.st_mode):
            yield path, os.major(status.st_rdev), os.minor(status.st_rdev)
