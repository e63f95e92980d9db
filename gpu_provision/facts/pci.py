"""NVIDIA's and Mellanox's devices on the PCI bus, read from /sys: no lspci needed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpu_provision.facts.gpu_models import PciModel, model_of
from gpu_provision.facts.section import Said, Section

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
    """A device on the PCI bus; all ids are hexadecimal digits.

    Attributes:
        address: Its slot, ``0000:17:00.0``.
        device: Device id, four digits.
        pci_class: Class and subclass, four digits.
        driver: Name of the kernel driver bound to it; empty for none.
        vendor: Vendor id, four digits.
    """

    address: str
    device: str
    pci_class: str
    driver: str = ""
    vendor: str = NVIDIA

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

SCRIPT = r"""
for device in /sys/bus/pci/devices/*; do
  read -r vendor <"$device/vendor" || continue
  case $vendor in 0x10de | 0x15b3) ;; *) continue ;; esac
  driver=$(readlink "$device/driver")
  read -r id <"$device/device" && read -r class <"$device/class" || continue
  echo "device ${device##*/} $vendor $id $class ${driver##*/}"
done
"""


def read(said: Said) -> Pci:
    """Read the section."""
    return Pci(tuple(_devices(said.all("device"))))


def _devices(lines: Iterable[str]) -> Iterator[PciDevice]:
    """Read ``0000:17:00.0 0x10de 0x2330 0x030200 nvidia``; the driver may be missing."""
    for line in lines:
        found = _DEVICE.fullmatch(line)
        if found:
            yield PciDevice(found["address"], found["device"], found["class"], found["driver"] or "", found["vendor"])


SECTION = Section("pci", SCRIPT, read)
