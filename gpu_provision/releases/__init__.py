"""Reads the catalogue of releases, catalogue.json.

The releases and their images are those of NVIDIA's GPU Operator charts. The image of Node Feature Discovery has the
tag v0.x.y for the sub-chart 0.x.y. Without a version in the chart, the validator's tag is the name of the release.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gpu_provision.model.operand_specs import Image

DEFAULT = "26.7.0"
"""The release of an inventory that names none."""

_PROGRAMS_OF = {"node_status_exporter": "validator"}  # component -> another one, whose image has its program

COMPONENTS = (
    *("nfd", "driver", "gds", "gdrcopy", "toolkit", "validator", "device_plugin", "gfd", "mig_manager", "dcgm"),
    "dcgm_exporter",
    *_PROGRAMS_OF,
)
"""Keys of the components with an image; ``driver_manager`` belongs to the driver.

Before 24.3.0, gfd has an image of its own; since then, that of the device plugin.
"""


@dataclass(frozen=True, slots=True)
class Release:
    """One installable release."""

    name: str  # such as ``26.7.0``
    kubernetes: str  # the oldest version of Kubernetes that the release's chart accepts, such as ``1.16``
    images: Mapping[str, Image]  # by component; those of drivers without the operating system's suffix

    def image(self, component: str) -> Image:
        """Return the image of a component by its inventory key, empty before the first release that has it.

        Raises KeyError for other names.
        """
        return self.images[component]


class UnknownReleaseError(LookupError):
    """No release of this name can be installed.

    Attributes:
        name: The requested name.
        too_old: Whether the catalogue has the name, as one that is too old to be installed.
    """

    def __init__(self, name: str, *, too_old: bool) -> None:
        """Name the reason, and the range of supported releases."""
        oldest, newest = names()[0], names()[-1]
        reason = (
            f"release {name} is too old to be installed: its components are not supported"
            if too_old
            else f"there is no release {name}"
        )
        super().__init__(f"{reason}; {oldest} is the oldest supported one and {newest} the newest")
        self.name, self.too_old = name, too_old


def release(name: str) -> Release:
    """Return the release of this name; a leading ``v`` is accepted. Raises UnknownReleaseError."""
    bare = name.removeprefix("v")
    known = _installable().get(bare)
    if known is None:
        raise UnknownReleaseError(name, too_old=bare in older_names())
    return known


def previous(name: str) -> Release | None:
    """Return the installable release before one; None for the oldest. Raises UnknownReleaseError."""
    known = names()
    position = known.index(release(name).name)
    return release(known[position - 1]) if position else None


@dataclass(frozen=True, slots=True)
class ReleaseDifference:
    """The images of a component in two releases; None where a release does not have it."""

    component: str
    before: Image | None
    after: Image | None

    @property
    def is_change(self) -> bool:
        """Whether they differ."""
        return self.before != self.after


def compare(before: Release, after: Release) -> tuple[ReleaseDifference, ...]:
    """Return the images of every component that one of two releases has, also of those that do not change."""
    pairs = ((key, _known(before.images[key]), _known(after.images[key])) for key in after.images)
    return tuple(ReleaseDifference(*pair) for pair in pairs if any(pair[1:]))


def _known(image: Image) -> Image | None:
    return image if image.version else None


def names() -> tuple[str, ...]:
    """Return the names of all installable releases, oldest first."""
    return tuple(_installable())


def older_names() -> tuple[str, ...]:
    """Return the names of the known releases that are too old to be installed, oldest first."""
    return tuple(_facts()["older"])


def versions(component: str) -> tuple[str, ...]:
    """Return all versions of a component that installable releases carry, oldest release first."""
    carried = (each.image(component).version for each in _installable().values())
    return tuple(dict.fromkeys(filter(None, carried)))


def driver_versions() -> tuple[str, ...]:
    """Return every driver version that some release recommends, ascending; older releases included."""
    known = {*_facts()["older"].values(), *versions("driver")}
    return tuple(sorted(known, key=_numbers))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


@cache
def _facts() -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(Path(__file__).with_name("catalogue.json").read_text(encoding="utf-8"))
    return facts


@cache
def _installable() -> dict[str, Release]:
    keys = (*COMPONENTS, "driver_manager")
    return {
        entry["name"]: Release(
            name=entry["name"],
            kubernetes=entry["kubernetes"],
            images={key: _image(entry.get(_PROGRAMS_OF.get(key, key), "")) for key in keys},
        )
        for entry in _facts()["installable"]
    }


def _image(reference: str) -> Image:
    name, _, version = reference.rpartition(":")
    repository, _, image = name.rpartition("/")
    return Image(repository=repository, image=image, version=version)
