"""Which operating systems there are driver images for.

Source: the tags of the reference's driver images. RHEL and its kin are tagged by major version alone.
"""

from __future__ import annotations

import re

from gpu_provision.model.inventory import OperatingSystem

IMAGES: dict[str, tuple[str, ...]] = {
    "ubuntu": ("20.04", "22.04", "24.04"),
    "rhel": ("8", "9", "10"),
    "rocky": ("8", "9", "10"),
    "ol": ("8", "9"),
    "rhcos": (),  # tagged by OpenShift version: any
    "centos": (),
    "flatcar": (),
    "sles": (),
    "sl-micro": (),
}
"""ID of /etc/os-release -> versions that images are known for; empty if any may exist."""

WITHOUT_IMAGES = frozenset({
    "almalinux", "alpine", "amzn", "arch", "azurelinux", "bottlerocket", "cos", "debian", "fedora",
    "mariner", "nixos", "opensuse-leap", "talos",
})  # fmt: skip
"""IDs of systems on which the driver belongs to the host."""


def parse(text: str) -> OperatingSystem | None:
    """Return ``ubuntu22.04`` in its two parts, or None if it has another form."""
    found = re.fullmatch(r"([a-z]+(?:-[a-z]+)*)([0-9]+(?:\.[0-9]+)*)", text)
    return OperatingSystem(found[1], found[2]) if found else None


def known_tags() -> tuple[str, ...]:
    """Return the operating systems that driver images are known for, as the inventory names them."""
    return tuple(f"{name}{version}" for name, versions in IMAGES.items() for version in versions)


def has_images(system: OperatingSystem) -> bool:
    """Return whether images for this version are known; True where any version may have some."""
    versions = IMAGES.get(system.id, ())
    return not versions or system.version in versions or system.tag.removeprefix(system.id) in versions
