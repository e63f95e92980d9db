"""The table of GPU models."""

from __future__ import annotations

import pytest

from gpu_provision.inventory import hardware


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
        form for model in hardware.models() for form in {hardware._form(name) for name in (model.name, *model.aliases)}
    ]
    assert len(set(spellings)) == len(spellings)


def test_a_model_is_supported_by_some_driver() -> None:
    """A first branch after the last one would refuse every driver."""
    for model in hardware.models():
        assert model.first_branch <= (model.family.last_branch or 999)


def test_no_system_both_has_images_and_has_none() -> None:
    """The two tables exclude each other."""
    assert not [system for system in hardware.images() if hardware.has_own_driver(system)]
