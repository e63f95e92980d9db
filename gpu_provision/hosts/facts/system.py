"""The operating system: firmware, clock, proxies, services, free space, huge pages, and our own settings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpu_provision.hosts.facts import (
    FileLines,
    Section,
    SectionOutput,
    every,
    first,
    flag,
    lines_by_path,
    number,
    own_lines,
    part,
)
from gpu_provision.model.inventory import OperatingSystem

UNITS = (
    *("nvidia-fabricmanager", "nvidia-persistenced", "nvidia-imex", "nvidia-dcgm", "dcgm", "dcgm-exporter"),
    "gpu-provision-persistence",
    *("containerd", "crio", "docker", "kubelet", "k3s", "k3s-agent", "rke2-server", "rke2-agent"),
    *("snap.microk8s.daemon-containerd", "k0sworker", "k0scontroller", "display-manager", "unattended-upgrades"),
)
"""Services that are asked about."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A service of systemd that exists."""

    name: str  # without ``.service``
    active: str  # ``active``, ``inactive``, ``failed``
    enabled: str  # ``enabled``, ``disabled``, ``masked``


@dataclass(frozen=True, slots=True)
class DeviceUser:
    """A process that has an NVIDIA device open."""

    pid: int  # its process id
    # its name, cut to 15 characters as the kernel does. The process itself sets it: it may be empty, and hold anything
    # but a newline.
    command: str
    unit: str  # the unit that it belongs to; empty for none or for a container
    devices: tuple[str, ...]  # the devices, such as ``/dev/nvidia0``


def _units(output: SectionOutput) -> tuple[Unit, ...]:
    """Read what ``systemctl show`` prints: blocks of assignments, an empty line between two."""
    blocks: list[dict[str, str]] = [{}]
    for line in output.all("unit"):
        name, _, value = line.partition("=")
        if line.strip():
            blocks[-1][name] = value.strip()
        else:
            blocks.append({})
    return tuple(
        Unit(block["Id"].removesuffix(".service"), block.get("ActiveState", ""), block.get("UnitFileState", ""))
        for block in blocks
        if block.get("Id") and block.get("LoadState") not in {None, "not-found"}
    )


def _holders(output: SectionOutput) -> tuple[DeviceUser, ...]:
    found: dict[int, DeviceUser] = {}
    for line in output.all("holder"):
        word, unit, device, command = [*line.split(" ", 3), "", "", ""][:4]
        pid = number(word)
        if pid and device.startswith("/dev/nvidia"):
            known = found.get(pid, DeviceUser(pid, command, unit.removesuffix(".service").strip("-"), ()))
            found[pid] = replace(known, devices=(*known.devices, device))
    return tuple(found.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Services(Section):
    """Units and holders. Readers that are not root see only their own processes."""

    units: tuple[Unit, ...] = part(_units, empty=())
    holders: tuple[DeviceUser, ...] = part(_holders, empty=())

    def unit(self, name: str) -> Unit | None:
        """Return a unit; None if it does not exist."""
        return next((unit for unit in self.units if unit.name == name), None)

    def is_active(self, name: str) -> bool:
        """Return whether a unit runs."""
        unit = self.unit(name)
        return unit is not None and unit.active == "active"


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """A directory and the file system that it is on; sizes in bytes."""

    path: str
    mount: str
    size: int
    free: int


def _parse_disks(output: SectionOutput) -> Iterator[DiskSpace]:
    """Read ``/var /dev/sda1 102400 51200 51200 50% /``; names of devices may hold blanks, so from the right."""
    for line in output.all("place"):
        match line.split():
            case [path, _, *_, size, _, free, _, mount]:
                blocks, left = number(size), number(free.removeprefix("-"))
                if blocks is not None and left is not None:
                    yield DiskSpace(path, mount, blocks * 1024, 0 if free.startswith("-") else left * 1024)


def _swap(output: SectionOutput) -> tuple[str, ...]:
    return tuple(line.split()[0] for line in output.all("swap") if line.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage(Section):
    """Space and swap."""

    # directories that exist, with the free space of their file systems
    places: tuple[DiskSpace, ...] = part(lambda output: tuple(_parse_disks(output)), empty=())
    swap: tuple[str, ...] = part(_swap, empty=())  # devices and files that are swapped to

    def find_disk(self, path: str) -> DiskSpace | None:
        """Return the place of a directory, or of the nearest one above it; None if nothing is known."""
        above = [each for each in self.places if path == each.path or path.startswith(f"{each.path.rstrip('/')}/")]
        return max(above, key=lambda each: len(each.path), default=None)


_UNITS = {"Gi": 1 << 20, "Mi": 1 << 10, "Ki": 1}
"""KiB of each unit."""


def kilobytes(size: str) -> int:
    """Return the KiB of a size such as ``2Mi``."""
    return int(size[:-2]) * _UNITS[size[-2:]]


def _pools(output: SectionOutput) -> Iterator[tuple[str, int]]:
    """Read ``2048kB 512``; the size in the largest unit that it is a multiple of, as Kubernetes writes it."""
    for line in output.all("pages"):
        size, _, count = line.partition("kB ")
        kib, pages = number(size), number(count.strip())
        if kib and pages is not None:
            unit, factor = next((unit, factor) for unit, factor in _UNITS.items() if kib % factor == 0)
            yield f"{kib // factor}{unit}", pages


def _attempts(output: SectionOutput) -> Iterator[tuple[str, tuple[int, int]]]:
    """Read ``1Gi 16 3``: pages of this size that were wanted, and those that there were."""
    for line in output.all("attempt"):
        match line.split():
            case [size, wanted, got] if re.fullmatch(r"[0-9]+[GMK]i", size):
                counts = number(wanted), number(got)
                if counts[0] is not None and counts[1] is not None:
                    yield size, (counts[0], counts[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Hugepages(Section):
    """Huge pages of a host; sizes are written as Kubernetes does: ``2Mi``, ``1Gi``."""

    # sizes that the kernel knows, each with the number of its pages
    pages: Mapping[str, int] = part(lambda output: dict(_pools(output)), empty={})
    own_file: FileLines = own_lines()  # lines of our file for the boot
    # size -> (wanted, got) of the last attempt since the boot
    attempts: Mapping[str, tuple[int, int]] = part(lambda output: dict(_attempts(output)), empty={})
    memory: int = part(lambda output: (number(output.first("memory")) or 0) * 1024, empty=0)  # bytes; 0 if unknown
    unaware: tuple[str, ...] = every("unaware")  # kubelets that run since before the number of pages changed


def _proxies(output: SectionOutput) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for line in output.all("setting"):
        path, _, text = line.partition(":")
        if text.strip().startswith(("#", "//")):
            continue
        for name, value in _proxy_assignments(text):
            found.setdefault(path, {})[name] = without_credentials(value)
    return found


@dataclass(frozen=True, slots=True)
class Proxies(Section):
    """Proxy settings by the file that has them; no value holds a user's name or password."""

    settings: Mapping[str, Mapping[str, str]] = part(_proxies, empty={})

    def values_of(self, *names: str) -> tuple[str, ...]:
        """Return the values of settings by name, upper or lower case, each once."""
        wanted = {name.lower() for name in names}
        found = (value for file in self.settings.values() for name, value in file.items() if name.lower() in wanted)
        return tuple(dict.fromkeys(value for value in found if value))


def without_credentials(value: str) -> str:
    """Return a proxy's address without user name and password, however it is written."""
    return re.sub(r"^([a-z0-9+.-]+://)?\S*@", lambda found: found[1] or "", value)


def _proxy_assignments(text: str) -> list[tuple[str, str]]:
    """Read shell assignments, systemd's ``Environment=``, dnf's ``proxy=`` and apt's ``Acquire::http::Proxy``."""
    apt = re.search(r'Acquire::(https?)::Proxy[^"]*"([^"]*)"', text, re.IGNORECASE)
    if apt:
        return [(f"{apt[1].lower()}_proxy", apt[2])]
    dnf = re.fullmatch(r"\s*proxy\s*=\s*(\S*)\s*", text)
    if dnf:
        return [("http_proxy", dnf[1])]
    return re.findall(r"(?:\b|CONTAINERD_)((?:https?|ftp|no|all)_proxy)=[\"']?([^\"'\s]*)", text, re.IGNORECASE)


def _os_release_field(name: str) -> Any:
    """Return a field with a variable of /etc/os-release."""

    def read(output: SectionOutput) -> str:
        assignments = (line.split("=", 1) for line in output.all("os") if "=" in line)
        return {key.strip(): value.strip("\"' ") for key, value in assignments}.get(name, "")

    return part(read)


@dataclass(frozen=True, slots=True, kw_only=True)
class System(Section):
    """The operating system."""

    id: str = _os_release_field("ID")  # such as ``ubuntu``; empty if unknown
    version: str = _os_release_field("VERSION_ID")
    title: str = _os_release_field("PRETTY_NAME")
    variant: str = _os_release_field("VARIANT_ID")  # such as ``coreos``, ``server``
    hostname: str = first("hostname")  # what the host calls itself
    # seconds since the epoch by the host's own clock; None if it did not say
    time: int | None = part(lambda output: number(output.first("time")), empty=None)
    reboot_required: bool = flag("reboot-required")  # whether the system itself asks for a reboot

    @property
    def name(self) -> OperatingSystem | None:
        """The system as inventories name it; None if unknown."""
        return OperatingSystem(self.id, self.version) if self.id else None

    @property
    def is_coreos(self) -> bool:
        """Whether the system is of the CoreOS family, whose files the Machine Config Operator manages on OpenShift.

        RHCOS names itself ``rhcos``, since OpenShift 4.19 ``rhel`` with the variant ``coreos``, as Fedora CoreOS does.
        """
        return self.id == "rhcos" or self.variant == "coreos"


@dataclass(frozen=True, slots=True)
class Clock:
    """A comparison of clocks, in seconds."""

    skew: float = 0.0  # how far the host's clock is ahead at least; negative: behind; 0: both clocks may agree
    round_trip: float = 0.0  # between question and answer: the skew may be larger by that
    compared: bool = False  # whether anybody compared


def clock_of(system: System | None, asked_at: float, answered_at: float) -> Clock:
    """Compare the host's time, cut to whole seconds, with when we asked and when we had the answer."""
    if system is None or system.time is None or not asked_at:
        return Clock()
    ahead = system.time - answered_at
    behind = system.time + 1 - asked_at
    skew = ahead if ahead > 0 else min(behind, 0.0)
    return Clock(skew, answered_at - asked_at, compared=True)


def _secure_boot(output: SectionOutput) -> tuple[bool | None, str]:
    """Return whether it is on, and what says so: the firmware's own variable counts more than mokutil."""
    variable = output.first("efivar").split()
    if variable:
        return variable[-1] == "1", f"efivar SecureBoot: {' '.join(variable)}"
    state = next((line for line in output.all("mokutil") if line.startswith("SecureBoot ")), "")
    if state:
        return state.endswith("enabled"), f"mokutil --sb-state: {state}"
    return (None, "") if output.has("efi") else (False, "not booted by UEFI")


def _lockdown(output: SectionOutput) -> str:
    found = re.search(r"\[(\w+)\]", output.first("lockdown"))
    return found[1] if found else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Firmware(Section):
    """What the firmware and the kernel say about signatures."""

    secure_boot: bool | None = part(lambda output: _secure_boot(output)[0], empty=None)  # None if unknown
    source: str = part(lambda output: _secure_boot(output)[1])  # what said so, as it was read
    lockdown: str = part(_lockdown)  # ``none``, ``integrity`` or ``confidentiality``; empty if the kernel does not say
    # whether the kernel refuses modules without a valid signature by its own setting
    signatures_enforced: bool = part(lambda output: output.first("enforce") in {"Y", "1"}, empty=False)

    @property
    def refuses_unsigned(self) -> bool:
        """Whether a module without a signature that this machine trusts cannot be loaded."""
        return bool(self.secure_boot) or self.signatures_enforced or self.lockdown in {"integrity", "confidentiality"}


def _parse_sysctls(output: SectionOutput) -> dict[str, str]:
    pairs = (rest.partition(" ") for rest in output.all("running"))
    return {key: " ".join(value.split()) for key, _, value in pairs}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(Section):
    """What gpu-provision's files set."""

    files: Mapping[str, tuple[str, ...]] = lines_by_path()  # lines of each such file that is there
    running: Mapping[str, str] = part(_parse_sysctls, empty={})  # values of the kernel parameters that our file sets
    driver_loaded: bool = flag("driver")  # whether an NVIDIA driver has registered its devices
