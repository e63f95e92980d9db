"""Which GPUs there are, which drivers run them, and for which operating systems there are driver images."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

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


COUNTS = {
    Board.PCIE: frozenset(range(1, 17)),
    Board.SXM: frozenset({1, 2, 4, 8, 16}),
    Board.SUPERCHIP: frozenset({1, 2, 4}),
}
"""Plausible numbers of GPUs per node: SXM baseboards hold 4 or 8 (DGX-2: 16), and clouds rent out halves."""


@dataclass(frozen=True, slots=True)
class Family:
    """A generation of GPUs. ``last_branch`` is 0 while new drivers support it."""

    name: str
    open_modules: OpenModuleSupport
    last_branch: int = 0


_KEPLER = Family("Kepler", OpenModuleSupport.NEVER, 470)
_MAXWELL = Family("Maxwell", OpenModuleSupport.NEVER, 580)
_PASCAL = Family("Pascal", OpenModuleSupport.NEVER, 580)
_VOLTA = Family("Volta", OpenModuleSupport.NEVER, 580)
_TURING = Family("Turing", OpenModuleSupport.POSSIBLE)
_AMPERE = Family("Ampere", OpenModuleSupport.POSSIBLE)
_ADA = Family("Ada Lovelace", OpenModuleSupport.POSSIBLE)
_HOPPER = Family("Hopper", OpenModuleSupport.POSSIBLE)
_GRACE_HOPPER = Family("Grace Hopper", OpenModuleSupport.ONLY)
_BLACKWELL = Family("Blackwell", OpenModuleSupport.ONLY)


@dataclass(frozen=True, slots=True)
class Model:
    """One model: ``first_branch`` is the oldest driver branch that knows it."""

    name: str
    family: Family
    first_branch: int
    board: Board = Board.PCIE
    aliases: tuple[str, ...] = ()


MODELS = (
    Model("K80", _KEPLER, 331),
    Model("M10", _MAXWELL, 361),
    Model("M40", _MAXWELL, 346),
    Model("M60", _MAXWELL, 346),
    Model("P4", _PASCAL, 367),
    Model("P40", _PASCAL, 367),
    Model("P100-PCIE-16GB", _PASCAL, 367, aliases=("P100", "P100-PCIE-12GB")),
    Model("P100-SXM2-16GB", _PASCAL, 367, Board.SXM, ("P100-SXM2",)),
    Model("V100-PCIE-16GB", _VOLTA, 384, aliases=("V100", "V100-PCIE", "V100-PCIE-32GB", "V100S-PCIE-32GB")),
    Model("V100-SXM2-16GB", _VOLTA, 384, Board.SXM, ("V100-SXM2", "V100-SXM2-32GB", "V100-SXM3-32GB")),
    Model("T4", _TURING, 410, aliases=("T4G",)),
    Model("Quadro RTX 6000", _TURING, 410, aliases=("Quadro RTX 8000",)),
    Model("GeForce RTX 2080 Ti", _TURING, 410, aliases=("RTX 2080 Ti",)),
    Model("A2", _AMPERE, 470),
    Model("A10", _AMPERE, 460, aliases=("A10G", "A10M")),
    Model("A16", _AMPERE, 470),
    Model("A30", _AMPERE, 460),
    Model("A40", _AMPERE, 450),
    Model("A100-PCIE-40GB", _AMPERE, 450, aliases=("A100-PCIE", "A100-PCIE-80GB", "A100 80GB PCIe")),
    Model("A100-SXM4-40GB", _AMPERE, 450, Board.SXM, ("A100", "A100-SXM4", "A100-SXM")),
    Model("A100-SXM4-80GB", _AMPERE, 450, Board.SXM, ("A100 80GB",)),
    Model("A800-SXM4-80GB", _AMPERE, 470, Board.SXM, ("A800",)),
    Model("RTX A4000", _AMPERE, 455, aliases=("RTX A2000", "RTX A4500", "RTX A5000", "RTX A5500", "RTX A6000")),
    Model("GeForce RTX 3090", _AMPERE, 455, aliases=("RTX 3080", "RTX 3090", "RTX 3090 Ti")),
    Model("L4", _ADA, 525),
    Model("L20", _ADA, 535),
    Model("L40", _ADA, 520, aliases=("L40G",)),
    Model("L40S", _ADA, 525),
    Model("RTX 6000 Ada", _ADA, 520, aliases=("RTX 4000 Ada", "RTX 5000 Ada", "RTX 6000 Ada Generation")),
    Model("GeForce RTX 4090", _ADA, 520, aliases=("RTX 4080", "RTX 4090")),
    Model("H100", _HOPPER, 525, Board.SXM, ("H100 80GB HBM3", "H100-SXM5", "H100-SXM5-80GB", "H100 SXM", "H100-SXM")),
    Model("H100-PCIE", _HOPPER, 525, aliases=("H100 PCIe", "H100 NVL", "H100-NVL")),
    Model("H20", _HOPPER, 535, Board.SXM),
    Model("H200", _HOPPER, 535, Board.SXM, ("H200 SXM", "H200-SXM5-141GB")),
    Model("H200 NVL", _HOPPER, 535, aliases=("H200-NVL",)),
    Model("H800", _HOPPER, 525, Board.SXM),
    Model("GH200", _GRACE_HOPPER, 535, Board.SUPERCHIP, ("GH200 120GB", "GH200 480GB")),
    Model("B200", _BLACKWELL, 570, Board.SXM),
    Model("B300", _BLACKWELL, 570, Board.SXM),
    Model("GB200", _BLACKWELL, 570, Board.SUPERCHIP),
    Model("GB300", _BLACKWELL, 570, Board.SUPERCHIP),
    Model("RTX PRO 6000", _BLACKWELL, 570, aliases=("RTX PRO 6000 Blackwell", "RTX PRO 6000 Blackwell Server Edition")),
    Model("GeForce RTX 5090", _BLACKWELL, 570, aliases=("RTX 5080", "RTX 5090")),
)  # fmt: skip  (a table)


def find_model(name: str) -> Model | None:
    """Return the model of this name, however it is spelled: ``Tesla T4``, ``NVIDIA H100 80GB HBM3``, ``h100``."""
    return _by_form().get(_form(name))


def model_meant(name: str) -> str:
    """Return a fix for a name of no model: the most similar one, or where to look."""
    return did_you_mean(_form(name), (model.name for model in MODELS), "Write it as `nvidia-smi -L` does.")


@cache
def _by_form() -> dict[str, Model]:
    return {_form(name): model for model in MODELS for name in (model.name, *model.aliases)}


def _form(name: str) -> str:
    words = name.lower().replace("-", " ").replace("_", " ").split()
    return " ".join(word for word in words if word not in {"nvidia", "tesla", "geforce", "gpu"})


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


def parse_system(text: str) -> OperatingSystem | None:
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
