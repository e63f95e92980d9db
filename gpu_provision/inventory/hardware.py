"""Which GPUs there are, which drivers run them, and for which operating systems there are driver images."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from gpu_provision.model.inventory import OperatingSystem
from gpu_provision.model.text import did_you_mean


class OpenModuleSupport(StrEnum):
    """Whether a GPU runs with the open kernel modules."""

    NEVER = "never"
    POSSIBLE = "possible"
    ONLY = "only"


class Board(StrEnum):
    """How a GPU sits in its machine, which limits how many of them there can be."""

    PCIE = "PCIe"
    SXM = "SXM"
    SUPERCHIP = "superchip"


@dataclass(frozen=True, slots=True)
class Family:
    """A generation of GPUs. ``last_branch`` is 0 while new drivers support it."""

    name: str
    open_modules: OpenModuleSupport
    last_branch: int = 0


@dataclass(frozen=True, slots=True)
class Model:
    """One model: ``first_branch`` is the oldest driver branch that knows it."""

    name: str
    family: Family
    first_branch: int
    board: Board = Board.PCIE
    aliases: tuple[str, ...] = ()


@cache
def _tables() -> dict[str, Any]:
    """Return the facts, which are data: hardware.toml."""
    import tomllib  # noqa: PLC0415  help needs none of it

    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


@cache
def models() -> tuple[Model, ...]:
    """Return all known models."""
    families = {
        name: Family(name, OpenModuleSupport(entry["open_modules"]), entry.get("last_branch", 0))
        for name, entry in _tables()["families"].items()
    }
    return tuple(
        Model(
            name=name,
            family=families[entry["family"]],
            first_branch=entry["first_branch"],
            board=Board(entry.get("board", Board.PCIE)),
            aliases=tuple(entry.get("aliases", ())),
        )
        for name, entry in _tables()["models"].items()
    )


def plausible_counts(model: Model | None) -> frozenset[int]:
    """Return the plausible numbers of GPUs in a node with a model; those of PCIe cards for an unknown one."""
    return frozenset(_tables()["counts"][model.board if model else Board.PCIE])


def find_model(name: str) -> Model | None:
    """Return the model of this name, however it is spelled: ``Tesla T4``, ``NVIDIA H100 80GB HBM3``, ``h100``."""
    return _by_form().get(_form(name))


def model_meant(name: str) -> str:
    """Return a fix for a name of no model: the most similar one, or where to look."""
    return did_you_mean(_form(name), (model.name for model in models()), "Write it as `nvidia-smi -L` does.")


@cache
def _by_form() -> dict[str, Model]:
    return {_form(name): model for model in models() for name in (model.name, *model.aliases)}


def _form(name: str) -> str:
    words = name.lower().replace("-", " ").replace("_", " ").split()
    return " ".join(word for word in words if word not in {"nvidia", "tesla", "geforce", "gpu"})


def images() -> dict[str, list[str]]:
    """Return the versions of operating systems that images are known for, by ID; none where any may exist."""
    found: dict[str, list[str]] = _tables()["images"]
    return found


def has_own_driver(system: str) -> bool:
    """Return whether the driver belongs to the host on systems with this ID of /etc/os-release."""
    return system in _tables()["hosts"]["systems"]


def parse_system(text: str) -> OperatingSystem | None:
    """Return ``ubuntu22.04`` in its two parts, or None if it has another form."""
    found = re.fullmatch(r"([a-z]+(?:-[a-z]+)*)([0-9]+(?:\.[0-9]+)*)", text)
    return OperatingSystem(found[1], found[2]) if found else None


def known_tags() -> tuple[str, ...]:
    """Return the operating systems that driver images are known for, as the inventory names them."""
    return tuple(f"{name}{version}" for name, versions in images().items() for version in versions)


def has_images(system: OperatingSystem) -> bool:
    """Return whether images for this version are known; True where any version may have some."""
    versions = images().get(system.id, ())
    return not versions or system.version in versions or system.tag.removeprefix(system.id) in versions
