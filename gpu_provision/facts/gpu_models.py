"""What a PCI device id says about a GPU; the facts themselves are data, in gpus.yaml."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from gpu_provision.inventory import gpus
from gpu_provision.inventory.gpus import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class PciModel:
    """A GPU as its device id describes it.

    Attributes:
        name: As nvidia-smi prints it, such as ``NVIDIA H100 80GB HBM3``; the device id where it is not known.
        generation: ``turing``, ``hopper`` ...; empty if not even that is known.
        first_branch: The oldest driver branch that supports it; 0 if unknown.
        last_branch: The last one that does; 0 while new drivers support it, or if unknown.
        open_modules: Whether the open kernel modules drive it: ``never``, ``possible``, ``only``; empty if unknown.
        models: The inventory's models that it may be; several boards share some ids. Empty if it has no entry.
    """

    name: str
    generation: str = ""
    first_branch: int = 0
    last_branch: int = 0
    open_modules: str = ""
    models: tuple[Model, ...] = ()


@cache
def model_of(device: str) -> PciModel:
    """Return what is known about a device id, at worst by the range of ids that it is in."""
    table = _table()
    generation = _generation(device, table["ranges"])
    facts = table["generations"].get(generation, {})
    entry = table["devices"].get(device, {})
    facts = {**facts, **entry}
    return PciModel(
        name=entry.get("name", f"NVIDIA device {device}"),
        generation=facts.get("generation", generation),
        first_branch=facts.get("first_branch", 0),
        last_branch=facts.get("last_branch", 0),
        open_modules=facts.get("open_modules", ""),
        models=tuple(model for name in entry.get("models", ()) if (model := gpus.find(name))),
    )


def _generation(device: str, ranges: list[dict[str, str]]) -> str:
    return next((each["generation"] for each in ranges if each["from"] <= device <= each["to"]), "")


@cache
def _table() -> dict[str, Any]:
    import yaml  # noqa: PLC0415 - nobody pays for it before a GPU is seen

    text = resources.files(__package__).joinpath("gpus.yaml").read_text(encoding="utf-8")
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # C is ten times faster; not every wheel has it
    table: dict[str, Any] = yaml.load(text, Loader=loader)  # noqa: S506 - a safe loader
    return table
