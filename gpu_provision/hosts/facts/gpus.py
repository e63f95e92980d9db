"""NVIDIA's and Mellanox's devices on the PCI bus, read from /sys: no lspci needed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from gpu_provision.hosts.facts import SectionOutput
from gpu_provision.inventory import hardware
from gpu_provision.inventory.hardware import Model

NVIDIA = "10de"
MELLANOX = "15b3"

DISPLAY_CLASSES = ("0300", "0302")
"""PCI classes of GPUs: VGA and 3D controllers. Other NVIDIA devices are audio, USB, bridges."""

SWITCH_CLASS = "0680"
"""PCI class of NVSwitches: other bridges."""

NETWORK_CLASSES = ("0200", "0207")
"""PCI classes of network cards: Ethernet, InfiniBand."""


@dataclass(frozen=True, slots=True)
class PciDevice:
    """A device on the PCI bus; all ids are hexadecimal digits."""

    address: str  # its slot, ``0000:17:00.0``
    device: str  # device id, four digits
    pci_class: str  # class and subclass, four digits
    driver: str = ""  # name of the kernel driver bound to it; empty for none
    vendor: str = NVIDIA  # vendor id, four digits

    @property
    def model(self) -> PciModel:
        """What is known about this device id as a GPU."""
        return model_of(self.device)


@dataclass(frozen=True, slots=True)
class Pci:
    """The devices of the vendors that matter here."""

    devices: tuple[PciDevice, ...] = ()

    @property
    def gpus(self) -> tuple[PciDevice, ...]:
        """NVIDIA's GPUs."""
        return self._of(NVIDIA, DISPLAY_CLASSES)

    @property
    def nvswitches(self) -> tuple[PciDevice, ...]:
        """NVSwitches that this host sees; those of NVLink 5 systems are not on the PCI bus."""
        return self._of(NVIDIA, (SWITCH_CLASS,))

    @property
    def network_cards(self) -> tuple[PciDevice, ...]:
        """Mellanox' network cards."""
        return self._of(MELLANOX, NETWORK_CLASSES)

    def _of(self, vendor: str, classes: tuple[str, ...]) -> tuple[PciDevice, ...]:
        return tuple(each for each in self.devices if each.vendor == vendor and each.pci_class in classes)


_DEVICE = re.compile(
    r"(?P<address>\S+) 0x(?P<vendor>[0-9a-f]{4}) 0x(?P<device>[0-9a-f]{4}) 0x(?P<class>[0-9a-f]{4})[0-9a-f]{2}"
    r"(?: (?P<driver>\S*))?\s*"
)


def read_pci(output: SectionOutput) -> Pci:
    """Read the section's lines."""
    return Pci(tuple(_devices(output.all("device"))))


def _devices(lines: Iterable[str]) -> Iterator[PciDevice]:
    """Read ``0000:17:00.0 0x10de 0x2330 0x030200 nvidia``; the driver may be missing."""
    for line in lines:
        found = _DEVICE.fullmatch(line)
        if found:
            yield PciDevice(found["address"], found["device"], found["class"], found["driver"] or "", found["vendor"])


@dataclass(frozen=True, slots=True, kw_only=True)
class PciModel:
    """A GPU as its device id describes it."""

    name: str  # as nvidia-smi prints it, such as ``NVIDIA H100 80GB HBM3``; the device id where it is not known
    generation: str = ""  # ``turing``, ``hopper`` ...; empty if not even that is known
    first_branch: int = 0  # the oldest driver branch that supports it; 0 if unknown
    last_branch: int = 0  # the last one that does; 0 while new drivers support it, or if unknown
    # whether the open kernel modules drive it: ``never``, ``possible``, ``only``; empty if unknown
    open_modules: str = ""
    # the inventory's models that it may be; several boards share some ids. Empty if it has no entry.
    models: tuple[Model, ...] = ()


@cache
def model_of(device: str) -> PciModel:
    """Return what is known about a device id, at worst by the range of ids that it is in."""
    table = _table()
    ranges = (each["generation"] for each in table["ranges"] if each["from"] <= device <= each["to"])
    generation = next(ranges, "")
    facts = table["generations"].get(generation, {})
    entry = table["devices"].get(device, {})
    facts = {**facts, **entry}
    return PciModel(
        name=entry.get("name", f"NVIDIA device {device}"),
        generation=facts.get("generation", generation),
        first_branch=facts.get("first_branch", 0),
        last_branch=facts.get("last_branch", 0),
        open_modules=facts.get("open_modules", ""),
        models=tuple(model for name in entry.get("models", ()) if (model := hardware.find_model(name))),
    )


@cache
def _table() -> dict[str, Any]:
    import yaml  # noqa: PLC0415 - only a host with a GPU pays for it

    text = resources.files(__package__).joinpath("gpus.yaml").read_text(encoding="utf-8")
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # C is ten times faster; not every wheel has it
    table: dict[str, Any] = yaml.load(text, Loader=loader)  # noqa: S506 - a safe loader
    return table
