"""Layers of container images: files in memory, and the tar archives that they become."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple


class Item(NamedTuple):
    """A file of an image, or a symbolic link to ``link``."""

    data: bytes = b""
    mode: int = 0o644
    link: str = ""


Layer = Mapping[str, Item]
"""Absolute path in the image -> what is there. Folders above it come by themselves."""


def copied(path: Path) -> Item:
    """Return a file of this machine; it stays executable if it is."""
    return Item(path.read_bytes(), 0o755 if path.stat().st_mode & 0o111 else 0o644)


def tar(layer: Layer) -> bytes:
    """Return a layer as a tar archive. Equal layers are equal bytes: no times, owners or order of this machine."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for folder in _folders(layer):
            archive.addfile(_member(folder, tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755))
        for path, item in sorted(layer.items()):
            member = _member(path.lstrip("/"), tarfile.SYMTYPE if item.link else tarfile.REGTYPE, item.mode)
            member.linkname, member.size = item.link, len(item.data)
            archive.addfile(member, io.BytesIO(item.data))
    return out.getvalue()


def _member(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.mode = kind, mode
    return member


def _folders(layer: Layer) -> Iterator[str]:
    parents = {str(folder).lstrip("/") for path in layer for folder in PurePosixPath(path).parents}
    return iter(sorted(parents - {""}))
