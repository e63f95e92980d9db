"""The archive of container images that ``ctr images import`` reads: an OCI image layout in a tar file.

Layers stay uncompressed: they are read once, on the machine that wrote them.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_INDEX = "application/vnd.oci.image.index.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image: its full name, its layers as tar archives from the bottom up, and what a container of it starts as.

    ``config`` has the keys of the OCI image configuration: ``Env``, ``Entrypoint``, ``User``.
    """

    name: str
    layers: Sequence[bytes]
    config: Mapping[str, Any]


class _Blobs:
    """Content by digest, each once."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self._known: dict[int, str] = {}

    def add(self, data: bytes, media_type: str) -> dict[str, Any]:
        """Return the descriptor of what was added. Layers are shared between images, and hashed once."""
        digest = self._known.get(id(data)) or hashlib.sha256(data).hexdigest()
        self.content[digest] = data
        self._known[id(self.content[digest])] = digest
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}


def write(images: Iterable[Image], target: Path) -> Path:
    """Write an archive of images; it is there entirely or not at all."""
    blobs = _Blobs()
    index = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": [_add(image, blobs) for image in images]}
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    with tarfile.open(partial, mode="w", format=tarfile.PAX_FORMAT) as archive:
        _put(archive, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _put(archive, "index.json", _json(index))
        for digest, data in sorted(blobs.content.items()):
            _put(archive, f"blobs/sha256/{digest}", data)
    return partial.replace(target)


def _add(image: Image, blobs: _Blobs) -> dict[str, Any]:
    layers = [blobs.add(layer, _LAYER) for layer in image.layers]
    config = {
        "architecture": _ARCHITECTURES.get(os.uname().machine, os.uname().machine),
        "os": "linux",
        "config": dict(image.config),
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"] for layer in layers]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": blobs.add(_json(config), _CONFIG),
        "layers": layers,
    }
    names = {
        "io.containerd.image.name": image.name,
        "org.opencontainers.image.ref.name": image.name.rpartition("/")[2].partition(":")[2],
    }
    return {**blobs.add(_json(manifest), _MANIFEST), "annotations": names}


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _put(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))
