"""The table of GPU models."""

from __future__ import annotations

import pytest

from gpu_provision.inventory import hardware


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("Tesla T4", "T4"),
        ("t4", "T4"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("Tesla-V100-SXM2-16GB", "V100-SXM2-16GB"),
        ("NVIDIA GeForce RTX 4090", "GeForce RTX 4090"),
    ],
)
def test_models_are_found_however_they_are_spelled(name: str, model: str) -> None:
    """As in a shop, as `nvidia-smi -L` says, or as GPU Feature Discovery labels it."""
    result = hardware.find_model(name)
    assert result
    assert result.name == model


def test_the_tables_do_not_contradict_themselves() -> None:
    """No spelling names two models, some driver supports each, and no system both has images and has none."""
    forms = [
        form
        for model in hardware.models()
        for form in {hardware.normalize_model(name) for name in (model.name, *model.aliases)}
    ]
    assert len(set(forms)) == len(forms)
    assert all(model.first_branch <= (model.family.last_branch or 999) for model in hardware.models())
    assert not [system for system in hardware.images() if hardware.has_own_driver(system)]
