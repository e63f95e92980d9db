"""Builds the archive of stand-in images without any registry."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gpu_provision import render
from gpu_provision.model.cluster import Manifest
from gpu_provision.model.inventory import Inventory
from gpu_provision.sandbox import operand_rules
from tests.real.images import host, oci, stand_ins
from tests.real.images.layers import Item, Layer, copied, tar

PAUSE = "registry.k8s.io/pause:3.9"
"""What containerd starts as each pod's first container."""

_HERE = Path(__file__).parent
_PROGRAMS = _HERE / "programs"
_RULES = Path(operand_rules.__file__)
"""What the sandbox's operands and the programs here have in common."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ACCOUNTS: Layer = {
    "/etc/passwd": Item(b"root:x:0:0:root:/root:/bin/sh\nnonroot:x:65534:65534:nonroot:/nonexistent:/bin/false\n"),
    "/etc/group": Item(b"root:x:0:\nnogroup:x:65534:\n"),
    "/tmp/.keep": Item(),  # noqa: S108 -- a path in the image
}


def missing() -> str:
    """Say what this computer lacks to build the images; an empty string if nothing."""
    packages = sorted({package for stand_in in stand_ins.STAND_INS.values() for package in stand_in.packages})
    lacking = [] if shutil.which("busybox") else ["busybox (Debian: busybox-static)"]
    lacking += [f"the Python package {package}" for package in packages if not host.is_installed(package)]
    return f"not installed: {', '.join(lacking)}" if lacking else ""


def images_of(manifests: Iterable[Manifest]) -> list[str]:
    """Return the images that manifests name, in containers and in environment variables, and the pause image."""
    return sorted({PAUSE, *(image for manifest in manifests for image in _images(manifest))})


def _images(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        if isinstance(value.get("image"), str):
            yield value["image"]
        if value.get("name") == "VALIDATOR_IMAGE":
            yield value["value"]
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _images(item)


def archive(images: Iterable[str], target: Path, *, files: Mapping[str, Layer] | None = None) -> Path:
    """Write one OCI archive with a stand-in for each image. Raises LookupError for an image without one.

    ``files`` lie in an image besides its stand-in's own, by the last part of its name.
    """
    return oci.write([_image(name, files or {}) for name in sorted(set(images))], target)


def of_inventory(inventory: Inventory) -> list[str]:
    return images_of(manifest for manifests in render(inventory).values() for manifest in manifests)


def _image(name: str, files: Mapping[str, Layer]) -> oci.Image:
    stand_in = stand_ins.of(name)
    environment = {"PATH": PATH, **stand_ins.environment(name)}
    config: dict[str, Any] = {"Env": [f"{key}={value}" for key, value in environment.items()]}
    if stand_in.entrypoint:
        config["Entrypoint"] = list(stand_in.entrypoint)
    if stand_in.user:
        config["User"] = stand_in.user
    return oci.Image(name=name, layers=list(_layers(stand_in, files.get(stand_ins.kind(name), {}))), config=config)


def _layers(stand_in: stand_ins.StandIn, files: Layer) -> Iterator[bytes]:
    """Yield the layers of an image, from what most images share to what is its own."""
    if stand_in.programs:
        yield _python()
    if stand_in.shell:
        yield _shell()
    if stand_in.packages:
        yield _packages(tuple(stand_in.packages))
    own = {path: _launcher(program) for path, program in stand_in.programs.items()}
    if "driver" in stand_in.programs.values():
        own["/usr/bin/nvidia-smi"] = Item((_PROGRAMS / "nvidia-smi").read_bytes(), 0o755)
    yield tar({**_ACCOUNTS, **own, **stand_in.files, **files})


@functools.cache
def _shell() -> bytes:
    return tar(host.busybox())


@functools.cache
def _python() -> bytes:
    programs = {f"{host.LIBRARY}/stand_in/{path.name}": copied(path) for path in _PROGRAMS.iterdir() if path.is_file()}
    rules = host.module(_RULES.read_bytes(), f"{host.LIBRARY}/gpu_provision/sandbox/{_RULES.name}")
    sources = host.sources(_PROGRAMS, f"{host.LIBRARY}/stand_in")
    return tar({**host.python(), **sources, **rules, **programs})


@functools.cache
def _packages(names: tuple[str, ...]) -> bytes:
    return tar({path: item for name in names for path, item in host.package(name).items()})


def _launcher(program: str) -> Item:
    module, _, function = program.partition(":")
    function = function or "main"
    text = f"#!{host.PYTHON} -IS\nfrom stand_in.{module} import {function}\n\nraise SystemExit({function}())\n"
    return Item(text.encode(), 0o755)
