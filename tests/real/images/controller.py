"""The controller's image as its Containerfile has it, but for the base: this machine's Python and installed packages.

``pip`` makes the wheel of this repository; what users install is what runs in the container.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path, PurePosixPath
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.real import binaries
from tests.real.images import host, oci
from tests.real.images.build import PATH
from tests.real.images.layers import Item, Layer, copied, tar

_CHECKOUT = Path(__file__).parents[3]
_PROGRAM = "/usr/local/bin/gpu-provision"
_SOURCES = {".pyc", ".pyi", ".pyx", ".pxd", ".c", ".h"}
"""What nothing at run time reads."""
_KEPT = 2


def archive(image: str, target: Path) -> Path:
    config = _config_of(_CHECKOUT / "Containerfile")
    config["Env"] = [f"PATH={PATH}", *config["Env"]]
    layers = [_dependencies(), tar({**_wheel(), "/tmp/.keep": Item()})]  # noqa: S108 - a path in the image
    return oci.write([oci.Image(name=image, layers=layers, config=config)], target)


def _config_of(file: Path) -> dict[str, Any]:
    """Return the image configuration that the last stage of a Containerfile describes."""
    config: dict[str, Any] = {"Env": []}
    for line in file.read_text().splitlines():
        instruction, _, rest = line.partition(" ")
        match instruction:
            case "FROM":
                config = {"Env": []}
            case "ENV":
                config["Env"] += shlex.split(rest)
            case "USER":
                config["User"] = rest
            case "ENTRYPOINT" | "CMD":
                config[instruction.title()] = json.loads(rest)
    return config


def _wheel() -> Layer:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", folder, str(_CHECKOUT)]
        subprocess.run(command, check=True, capture_output=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as files:
            found = {name: files.read(name) for name in files.namelist()}
    layer = {path: item for name, data in found.items() for path, item in _placed(PurePosixPath(name), data)}
    text = f"#!{host.PYTHON} -IS\nimport sys\nfrom gpu_provision.cli import main\n\nsys.exit(main())\n"
    return {**layer, _PROGRAM: Item(text.encode(), 0o755)}


def _placed(name: PurePosixPath, data: bytes) -> Iterator[tuple[str, Item]]:
    place = f"{host.LIBRARY}/{name}"
    yield from (host.module(data, place) if name.suffix == ".py" else {place: Item(data)}).items()


def _dependencies() -> bytes:
    """Return the layer of Python and of all that the wheel requires; compiling it takes a while, so that it is kept."""
    needed = sorted(_closure("gpu-provision", {}).values(), key=lambda found: str(found.metadata["Name"]))
    names = [f"{found.metadata['Name']} {found.version}" for found in needed]
    key = hashlib.sha256("\n".join([*names, sys.version, sys.base_prefix]).encode()).hexdigest()[:24]
    folder = binaries.cache() / "images"
    kept = folder / f"dependencies-{key}.layer"
    if not kept.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = kept.with_name(f".{kept.name}.{os.getpid()}")
        partial.write_bytes(tar(_installed(needed)))
        partial.replace(kept)
        _forget_old(folder)
    return kept.read_bytes()


def _forget_old(folder: Path) -> None:
    by_use = sorted(folder.glob("dependencies-*.layer"), key=lambda path: path.stat().st_mtime)
    for path in by_use[:-_KEPT]:
        path.unlink(missing_ok=True)


def _closure(name: str, known: dict[str, Distribution]) -> dict[str, Distribution]:
    for text in distribution(name).requires or ():
        wanted = Requirement(text)
        key = canonicalize_name(wanted.name)
        if key not in known and (wanted.marker is None or wanted.marker.evaluate({"extra": ""})):
            known[key] = distribution(key)
            _closure(key, known)
    return known


def _installed(packages: list[Distribution]) -> Layer:
    """Return Python, the files of packages, and the libraries that their extension modules need."""
    layer, extensions = dict(host.python()), list[Path]()
    for name, path in ((name, path) for package in packages for name, path in _files(package)):
        layer |= host.module(path.read_bytes(), name) if path.suffix == ".py" else {name: copied(path)}
        extensions += [path] if path.suffix == ".so" else []
    return {**layer, **host.libraries(extensions)}


def _files(package: Distribution) -> Iterator[tuple[str, Path]]:
    for file in package.files or ():
        path = Path(str(file.locate()))
        if ".." not in file.parts and file.suffix not in _SOURCES and path.is_file():
            yield f"{host.LIBRARY}/{file}", path
