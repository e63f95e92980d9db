"""Images of NVIDIA that are known not to exist for a kind of processor: platforms.toml."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

_NVIDIA = "nvcr.io/"
BUILT_FOR_ALL = "amd64"
"""The architecture that every image exists for."""


@cache
def why_absent(image: str, architecture: str) -> str:
    """Return the source by which an image, such as ``nvcr.io/nvidia/driver:...``, lacks an architecture.

    Empty if it has it or if that is not known, as for a digest; also for an unknown, empty architecture.
    """
    if architecture in {"", BUILT_FOR_ALL}:
        return ""
    name, _, tag = image.rpartition(":")
    entries = (each for each in _amd64_only() if f"/{name}".endswith(f"/{each['image']}"))
    return next((str(each["source"]) for each in entries if any(fnmatchcase(tag, glob) for glob in each["tags"])), "")


def is_of_nvidia(image: str) -> bool:
    """Whether an image is in NVIDIA's registry; one of the same name elsewhere may be the user's own build."""
    return image.startswith(_NVIDIA)


@cache
def _amd64_only() -> list[dict[str, Any]]:
    import tomllib  # noqa: PLC0415  clusters of amd64 alone need none of it

    table: Any = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    entries: list[dict[str, Any]] = table["amd64_only"]
    return entries
