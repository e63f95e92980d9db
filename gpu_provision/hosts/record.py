"""What a host is seen to be, as far as GPU prerequisites go: one value, read by one shell command."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

DISPLAY_CLASSES = ("0300", "0302")
"""PCI classes of GPUs: VGA and 3D controllers. Other NVIDIA devices are audio, bridges, NVSwitches."""

UNKNOWN_USERS = -1


@dataclass(frozen=True, slots=True)
class PciDevice:
    """An NVIDIA device on the PCI bus.

    Attributes:
        address: ``0000:17:00.0``.
        device: Device id, four hexadecimal digits.
        pci_class: Class and subclass, four hexadecimal digits.
        driver: Name of the kernel driver bound to it; empty for none.
    """

    address: str
    device: str
    pci_class: str
    driver: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRecord:
    """One host at one moment. Names of kernel modules are written with underscores.

    Attributes:
        kernel: Release of the running kernel.
        os_id: ``ID`` of /etc/os-release, such as ``ubuntu``; empty if unknown.
        os_version: ``VERSION_ID`` of /etc/os-release.
        loaded: Loaded modules, each with the number of its users; -1 if the kernel does not say.
        built_in: Those of the modules asked for that are part of the kernel.
        available: Those of the modules asked for that the kernel could load.
        at_boot: Modules that some file lists for loading at boot.
        modules_file: Lines of our own such file; None if there is none.
        nouveau_blacklisted_elsewhere: Whether a file that is not ours, or the kernel's command line, does it.
        nouveau_file: Lines of our own blacklist; None if there is none.
        initramfs: Path of the running kernel's image; empty for none.
        initramfs_stale: Whether our blacklist is newer than that image.
        initramfs_tool: ``update-initramfs`` or ``dracut``; empty for neither.
        nvidia_devices: All NVIDIA devices on the PCI bus, GPUs and others.
        reboot_required: Whether the system itself asks for a reboot.
    """

    kernel: str
    architecture: str = ""
    os_id: str = ""
    os_version: str = ""
    loaded: Mapping[str, int]
    built_in: frozenset[str] = frozenset()
    available: frozenset[str] = frozenset()
    at_boot: frozenset[str] = frozenset()
    modules_file: tuple[str, ...] | None = None
    nouveau_blacklisted_elsewhere: bool = False
    nouveau_file: tuple[str, ...] | None = None
    initramfs: str = ""
    initramfs_stale: bool = False
    initramfs_tool: str = ""
    nvidia_devices: tuple[PciDevice, ...] = ()
    reboot_required: bool = False

    @property
    def gpus(self) -> tuple[PciDevice, ...]:
        """The GPUs among the NVIDIA devices."""
        return tuple(device for device in self.nvidia_devices if device.pci_class in DISPLAY_CLASSES)

    @property
    def nouveau_loaded(self) -> bool:
        """Whether nouveau holds, or could take, a GPU right now."""
        return "nouveau" in self.loaded

    @property
    def nouveau_blacklisted(self) -> bool:
        """Whether nouveau stays away after the next boot."""
        return self.nouveau_blacklisted_elsewhere or _blacklists_nouveau(self.nouveau_file or ())


def canonical(module: str) -> str:
    """Write a module's name as the kernel does: dashes and underscores are the same to it."""
    return module.strip().replace("-", "_")


def parse(output: Iterable[str]) -> HostRecord | None:
    """Read the output of the fact's command: a word that says what follows, then a line of the host's own.

    Returns None if the output does not even name a kernel.
    """
    said: dict[str, list[str]] = defaultdict(list)
    for line in output:
        word, _, rest = line.partition(" ")
        said[word].append(rest)
    if not said["kernel"]:
        return None
    os_release = dict(line.split("=", 1) for line in said["os"] if "=" in line)
    return HostRecord(
        kernel=said["kernel"][0].strip(),
        architecture=_first(said["architecture"]),
        os_id=os_release.get("ID", "").strip("\"' "),
        os_version=os_release.get("VERSION_ID", "").strip("\"' "),
        loaded=dict(_loaded(line) for line in said["loaded"] if line.strip()),
        built_in=frozenset(map(_module_of, said["builtin"])),
        available=frozenset(map(_module_of, said["available"])),
        at_boot=frozenset(canonical(line) for line in said["boot"] if _is_content(line)),
        modules_file=_own_file(said["own-modules"]),
        nouveau_blacklisted_elsewhere=_blacklists_nouveau(said["modprobe"])
        or any(_keeps_nouveau_away(line) for line in said["cmdline"]),
        nouveau_file=_own_file(said["own-nouveau"]),
        initramfs=_first(said["initramfs"]),
        initramfs_stale="initramfs-stale" in said,
        initramfs_tool=_first(said["initramfs-tool"]),
        nvidia_devices=tuple(_device(line) for line in said["nvidia"]),
        reboot_required="reboot-required" in said,
    )


def _first(lines: list[str]) -> str:
    return lines[0].strip() if lines else ""


def _is_content(line: str) -> bool:
    return bool(line.strip()) and line.strip()[0] not in "#;"


def _own_file(lines: list[str]) -> tuple[str, ...] | None:
    """Return the lines of a file of ours; an empty file still says its name."""
    return tuple(line for line in lines if line.strip()) if lines else None


def _loaded(line: str) -> tuple[str, int]:
    """Read a line of /proc/modules: name, size, users ("-" if the kernel cannot unload), ..."""
    name, *rest = line.split()
    users = rest[1] if len(rest) > 1 else "-"
    return canonical(name), int(users) if users.isdecimal() else UNKNOWN_USERS


def _module_of(path: str) -> str:
    """Return the module of ``kernel/drivers/i2c/i2c-core.ko.zst``, or of its bare name."""
    return canonical(path.strip().rsplit("/", 1)[-1].split(".ko", 1)[0])


def _device(line: str) -> PciDevice:
    """Read ``0000:17:00.0 0x2330 0x030200 nvidia``; the driver may be missing."""
    address, device, pci_class, *driver = line.split()
    return PciDevice(address, device.removeprefix("0x"), pci_class.removeprefix("0x")[:4], "".join(driver))


def _blacklists_nouveau(lines: Iterable[str]) -> bool:
    """Return whether modprobe.d lines keep nouveau away, as a blacklist or by an install command that fails."""
    words = [line.split() for line in lines]
    return any(
        line[:2] == ["blacklist", "nouveau"]
        or (line[:2] == ["install", "nouveau"] and line[2:3] in (["/bin/false"], ["/bin/true"]))
        for line in words
    )


def _keeps_nouveau_away(command_line: str) -> bool:
    """Return whether a kernel command line does: a parameter of modprobe, of the kernel or of dracut."""
    found = re.findall(r"(?:modprobe\.blacklist|module_blacklist|rd\.driver\.blacklist)=(\S*)", command_line)
    return any("nouveau" in value.split(",") for value in found)
