"""The releases: named sets of component versions that were published and tested together."""

from __future__ import annotations

from gpu_provision.releases.catalogue import (
    DEFAULT,
    Release,
    UnknownRelease,
    driver_versions,
    names,
    older_names,
    release,
    versions,
)

__all__ = [
    "DEFAULT",
    "Release",
    "UnknownRelease",
    "driver_versions",
    "names",
    "older_names",
    "release",
    "versions",
]
