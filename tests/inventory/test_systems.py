"""Operating systems as the inventory names them."""

from __future__ import annotations

import pytest

from gpu_provision.inventory import systems
from gpu_provision.model.inventory import OperatingSystem


@pytest.mark.parametrize(
    ("text", "system"),
    [
        ("ubuntu22.04", OperatingSystem("ubuntu", "22.04")),
        ("rhel9.4", OperatingSystem("rhel", "9.4")),
        ("sl-micro6.0", OperatingSystem("sl-micro", "6.0")),
        ("amzn2023", OperatingSystem("amzn", "2023")),
        ("ubuntu", None),
        ("22.04", None),
        ("", None),
    ],
)
def test_a_name_is_id_and_version(text: str, system: OperatingSystem | None) -> None:
    """As /etc/os-release has them."""
    assert systems.parse(text) == system


@pytest.mark.parametrize(
    ("text", "has_images"),
    [("ubuntu22.04", True), ("ubuntu22.10", False), ("rhel9.4", True), ("rhel7.9", False), ("sles15.6", True)],
)
def test_images_are_known_by_version(text: str, has_images: bool) -> None:  # noqa: FBT001  a column of a table
    """By the major one for RHEL and its kin; for others, any may have some."""
    system = systems.parse(text)
    assert system
    assert systems.has_images(system) is has_images


def test_no_system_both_has_images_and_has_none() -> None:
    """The two tables exclude each other."""
    assert not systems.IMAGES.keys() & systems.WITHOUT_IMAGES
