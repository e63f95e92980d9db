"""The table of GPUs by PCI device id."""

from __future__ import annotations

import pytest

from gpu_provision.hosts.facts import gpus as gpu_models
from gpu_provision.hosts.facts.gpus import model_of
from gpu_provision.inventory import hardware
from gpu_provision.sandbox.fleet import models as simulated

TABLE = gpu_models._table()
DEVICES = sorted(TABLE["devices"])


@pytest.mark.parametrize("device", DEVICES)
def test_every_device_is_complete(device: str) -> None:
    model = model_of(device)
    assert model.name
    assert model.generation in TABLE["generations"]
    assert len(model.models) == len(TABLE["devices"][device]["models"])
    assert model.first_branch


@pytest.mark.parametrize("device", DEVICES)
def test_table_agrees_with_what_inventories_are_checked_by(device: str) -> None:
    """An inventory that passed its own checks is not contradicted by the host's table."""
    model = model_of(device)
    for declared in model.models:
        assert declared.family.open_modules == model.open_modules
        assert declared.family.last_branch == model.last_branch
        assert model.first_branch <= max(declared.first_branch, 470)


@pytest.mark.parametrize("name", sorted(simulated()))
def test_simulated_gpus_are_known(name: str) -> None:
    gpu = simulated()[name]
    model = model_of(gpu.device)
    assert model.models
    assert hardware.find_model(gpu.name) in model.models or gpu.name.startswith(("Tesla V100", "NVIDIA H100 PCIe"))
    assert (model.open_modules == "only") is gpu.open_modules_only


@pytest.mark.parametrize(
    ("device", "generation", "only_open"),
    [("1e04", "turing", False), ("2bb3", "blackwell", True), ("2343", "grace-hopper", True), ("1b06", "pascal", False)],
)
def test_unknown_device_is_known_by_its_range(device: str, generation: str, *, only_open: bool) -> None:
    """Its generation decides which modules drive it; its model is not guessed."""
    model = model_of(device)
    assert (model.generation, model.open_modules == "only", model.models) == (generation, only_open, ())
    assert device in model.name


def test_device_of_the_future_says_nothing() -> None:
    model = model_of("ffff")
    assert (model.generation, model.first_branch, model.open_modules) == ("", 0, "")
