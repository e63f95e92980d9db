"""GPU models, their drivers, and systems with driver images."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gpu_provision.model.inventory import OperatingSystem

PCIE = "PCIe"


@dataclass(frozen=True, slots=True)
class Family:
    """A generation of GPUs. ``last_branch`` is 0 while new drivers support it."""

    name: str
    open_modules: str  # whether it runs with the open kernel modules: ``never``, ``possible`` or ``only``
    last_branch: int = 0


@dataclass(frozen=True, slots=True)
class Model:
    """One model: ``first_branch`` is the oldest driver branch that supports it."""

    name: str
    family: Family
    first_branch: int
    board: str = PCIE  # its form factor, which limits the number per machine
    architecture: str = ""  # of its machines, if they are all of one
    aliases: tuple[str, ...] = ()


@cache
def hardware_tables() -> dict[str, Any]:
    """Return the facts, which are data: hardware.toml."""
    import tomllib  # noqa: PLC0415  help needs none of it

    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


@cache
def models() -> tuple[Model, ...]:
    """Return all known models."""
    families = {name: Family(name, **entry) for name, entry in hardware_tables()["families"].items()}
    entries = hardware_tables()["models"].items()
    return tuple(
        Model(name, **entry | {"family": families[entry["family"]], "aliases": tuple(entry.get("aliases", ()))})
        for name, entry in entries
    )


def find_model(name: str) -> Model | None:
    """Return the model of this name, however it is spelled: ``Tesla T4``, ``NVIDIA H100 80GB HBM3``, ``h100``."""
    return _models_by_form().get(normalize_model(name))


@cache
def _models_by_form() -> dict[str, Model]:
    return {normalize_model(name): model for model in models() for name in (model.name, *model.aliases)}


def normalize_model(name: str) -> str:
    """Return the words that tell models apart, however the name is spelled."""
    words = name.lower().replace("-", " ").replace("_", " ").split()
    return " ".join(word for word in words if word not in {"nvidia", "tesla", "geforce", "gpu"})


def images() -> dict[str, list[str]]:
    """Return the versions of operating systems with known images, by ID; empty if any may exist."""
    versions: dict[str, list[str]] = hardware_tables()["images"]
    return versions


def has_own_driver(system: str) -> bool:
    """Return whether systems with this ID of /etc/os-release have drivers of the host only."""
    return system in hardware_tables()["hosts"]["systems"]


def known_tags() -> tuple[str, ...]:
    """Return the operating systems with known driver images, as the inventory names them."""
    return tuple(f"{name}{version}" for name, versions in images().items() for version in versions)


def has_images(system: OperatingSystem) -> bool:
    """Return whether images for this version are known; True if any version may have one."""
    versions = images().get(system.id, ())
    return not versions or system.version in versions or system.tag.removeprefix(system.id) in versions
