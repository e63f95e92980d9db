"""NVIDIA's and Mellanox's devices on the PCI bus, read from /sys without lspci, and an NVIDIA driver on the host."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from gpu_provision.hosts.facts import FileLines, Section, SectionOutput, every, first, flag, names, own_lines, part
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


_DEVICE = re.compile(
    r"(?P<address>\S+) 0x(?P<vendor>[0-9a-f]{4}) 0x(?P<device>[0-9a-f]{4}) 0x(?P<class>[0-9a-f]{4})[0-9a-f]{2}"
    r"(?: (?P<driver>\S*))?\s*"
)


def _devices(output: SectionOutput) -> Iterator[PciDevice]:
    """Read ``0000:17:00.0 0x10de 0x2330 0x030200 nvidia``; the driver may be missing."""
    for found in filter(None, map(_DEVICE.fullmatch, output.all("device"))):
        yield PciDevice(found["address"], found["device"], found["class"], found["driver"] or "", found["vendor"])


@dataclass(frozen=True, slots=True)
class Pci(Section):
    """The devices of the vendors that matter here."""

    devices: tuple[PciDevice, ...] = part(lambda output: tuple(_devices(output)), empty=())

    @property
    def gpus(self) -> tuple[PciDevice, ...]:
        """NVIDIA's GPUs."""
        return self._find_devices(NVIDIA, DISPLAY_CLASSES)

    @property
    def nvswitches(self) -> tuple[PciDevice, ...]:
        """NVSwitches that this host sees; those of NVLink 5 systems are not on the PCI bus."""
        return self._find_devices(NVIDIA, (SWITCH_CLASS,))

    @property
    def network_cards(self) -> tuple[PciDevice, ...]:
        """Mellanox' network cards."""
        return self._find_devices(MELLANOX, NETWORK_CLASSES)

    def _find_devices(self, vendor: str, classes: tuple[str, ...]) -> tuple[PciDevice, ...]:
        return tuple(each for each in self.devices if each.vendor == vendor and each.pci_class in classes)


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
    entry = table["devices"].get(device, {})
    facts = {**table["generations"].get(generation, {}), **entry}
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


def _loaded_open(output: SectionOutput) -> bool | None:
    text = " ".join(output.all("proc"))
    return "Open Kernel Module" in text if "NVRM version" in text else None


_DKMS = re.compile(r"nvidia[^/]*/(\d[^/]*)/(\d[^/]*)/[^/]+")
_OF_TOOLKIT = frozenset({"/usr/bin/nvidia-ctk", "/usr/bin/nvidia-container-runtime"})


def _dkms(output: SectionOutput) -> tuple[tuple[str, str], ...]:
    """Read ``nvidia/580.65.06/6.8.0-45-generic/x86_64``; sources and backups lie in other places there."""
    return tuple((built[1], built[2]) for built in map(_DKMS.fullmatch, output.all("dkms")) if built)


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver(Section):
    """The NVIDIA driver of a host; everything is empty where there is none."""

    loaded: str = first("loaded")  # version of the loaded kernel module
    # whether the loaded module is the open one; None if none is loaded or it does not say
    loaded_open: bool | None = part(_loaded_open, empty=None)
    in_container: bool = flag("container")  # whether a driver container, also one of the GPU Operator, has loaded it
    module: str = first("filename")  # path of the module that ``modprobe nvidia`` would load
    module_version: str = first("version")
    module_license: str = first("license")  # ``NVIDIA``, or ``Dual MIT/GPL`` for the open one
    module_signer: str = first("signer")  # who has signed it; empty if unsigned
    libraries: tuple[str, ...] = every("library")  # paths of the host's libnvidia-ml, with versions
    programs: tuple[str, ...] = every("program")  # paths of NVIDIA's programs on the host
    dkms: tuple[tuple[str, str], ...] = part(_dkms, empty=())  # (version, kernel) of modules that DKMS has built

    @property
    def library_versions(self) -> tuple[str, ...]:
        """Versions of the libraries, each once; more than one is a mix."""
        found = (path.rpartition("libnvidia-ml.so.")[2] for path in self.libraries)
        return tuple(dict.fromkeys(version for version in found if version))

    @property
    def on_host(self) -> bool:
        """Whether the host has a driver of its own, loaded or not."""
        return bool(self.module or self.libraries or (self.loaded and not self.in_container))

    @property
    def usable(self) -> str:
        """Version of the host driver if containers can have their GPUs by it; empty if not.

        It is loaded, or can be into the running kernel. While a container's is loaded, that is the driver; one that
        is loaded and whose files are gone has been removed.
        """
        if self.loaded:
            return self.loaded if self.has_files and not self.in_container else ""
        return (self.module_version or "unknown") if self.module else ""

    @property
    def has_files(self) -> bool:
        """Whether anything of it is on disk; the container toolkit has programs of its own."""
        return bool(self.module or self.libraries or set(self.programs) - _OF_TOOLKIT)

    @property
    def version(self) -> str:
        """The version of the host driver, as far as anything tells it."""
        own = "" if self.in_container else self.loaded
        return own or self.module_version or next(iter(self.library_versions), "")


DAEMON = "nvidia-persistenced"


@dataclass(frozen=True, slots=True, kw_only=True)
class Persistence(Section):
    """Persistence mode, as far as units tell; the driver itself is not asked: it may hang."""

    daemon_off: bool = flag("off")  # whether NVIDIA's daemon starts with persistence mode off, as Ubuntu's unit does
    own_file: FileLines = own_lines()  # lines of our own unit
    enabled: tuple[str, ...] = names("enabled")  # units that we enabled, without ``.service``
    no_systemd: bool = flag("no-systemd")  # whether systemd does not run this host
