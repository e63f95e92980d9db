"""The GPU models that a simulated machine can have, as PCI, nvidia-smi and GPU Feature Discovery name them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuModel:
    """One model of GPU.

    Attributes:
        name: As ``nvidia-smi -L`` prints it, such as ``Tesla T4``.
        device: PCI device id, four hexadecimal digits.
        pci_class: PCI class and subclass: ``0302`` for a 3D controller, ``0300`` for VGA.
        memory: MiB.
        compute: CUDA compute capability, such as ``7.5``.
        family: As GPU Feature Discovery labels it, such as ``turing``.
        oldest_driver: First driver branch that supports the model.
        open_modules_only: Whether the proprietary kernel modules refuse it.
    """

    name: str
    device: str
    pci_class: str
    memory: int
    compute: str
    family: str
    oldest_driver: int
    open_modules_only: bool = False

    @property
    def label(self) -> str:
        """The product as a node label's value: ``NVIDIA-H100-80GB-HBM3``."""
        return self.name.replace(" ", "-")


def _model(name: str, facts: dict[str, Any]) -> GpuModel:
    return GpuModel(
        name=name,
        device=facts["device"],
        pci_class=facts["class"],
        memory=facts["memory"],
        compute=facts["compute"],
        family=facts["family"],
        oldest_driver=facts["driver"],
        open_modules_only=facts.get("open_modules_only", False),
    )


@cache
def models() -> dict[str, GpuModel]:
    """Return every model under its name and under each of its aliases."""
    table = yaml.safe_load(resources.files(__package__).joinpath("gpus.yaml").read_text())
    return {
        known_as: _model(name, facts) for name, facts in table.items() for known_as in (name, *facts.get("aliases", ()))
    }
