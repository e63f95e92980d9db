"""The table of GPU models."""

from __future__ import annotations

import pytest

from gpu_provision.inventory import hardware
from gpu_provision.model.inventory import OperatingSystem


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("T4", "T4"),
        ("Tesla T4", "T4"),
        ("t4", "T4"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("Tesla-V100-SXM2-16GB", "V100-SXM2-16GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("NVIDIA GeForce RTX 4090", "GeForce RTX 4090"),
        ("NVIDIA B200", "B200"),
    ],
)
def test_models_are_found_however_they_are_spelled(name: str, model: str) -> None:
    """As in a shop, as `nvidia-smi -L` says, or as GPU Feature Discovery labels it."""
    found = hardware.find_model(name)
    assert found
    assert found.name == model


def test_no_spelling_names_two_models() -> None:
    """Otherwise the table would answer by chance."""
    spellings = [
        form for model in hardware.MODELS for form in {hardware._form(name) for name in (model.name, *model.aliases)}
    ]
    assert len(set(spellings)) == len(spellings)


def test_an_unknown_model_has_a_nearest_one() -> None:
    """So that a typo is recognized."""
    assert hardware.find_model("A100-SMX4-80GB") is None
    assert hardware.model_meant("A100-SMX4-80GB") == "Did you mean A100-SXM4-80GB?"
    assert hardware.model_meant("Voodoo2") == "Write it as `nvidia-smi -L` does."


def test_a_model_is_supported_by_some_driver() -> None:
    """A first branch after the last one would refuse every driver."""
    for model in hardware.MODELS:
        assert model.first_branch <= (model.family.last_branch or 999)


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
    assert hardware.parse_system(text) == system


@pytest.mark.parametrize(
    ("text", "has_images"),
    [("ubuntu22.04", True), ("ubuntu22.10", False), ("rhel9.4", True), ("rhel7.9", False), ("sles15.6", True)],
)
def test_images_are_known_by_version(text: str, has_images: bool) -> None:  # noqa: FBT001  a column of a table
    """By the major one for RHEL and its kin; for others, any may have some."""
    system = hardware.parse_system(text)
    assert system
    assert hardware.has_images(system) is has_images


def test_no_system_both_has_images_and_has_none() -> None:
    """The two tables exclude each other."""
    assert not hardware.IMAGES.keys() & hardware.WITHOUT_IMAGES
