"""Units of systemd that matter, and the processes that hold NVIDIA's devices."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_provision.hosts.facts.parser import SectionOutput, number

UNITS = (
    *("nvidia-fabricmanager", "nvidia-persistenced", "nvidia-imex", "nvidia-dcgm", "dcgm", "dcgm-exporter"),
    "gpu-provision-persistence",
    *("containerd", "crio", "docker", "kubelet", "k3s", "k3s-agent", "rke2-server", "rke2-agent"),
    *("snap.microk8s.daemon-containerd", "k0sworker", "k0scontroller", "display-manager", "unattended-upgrades"),
)
"""Services that are asked about."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A service of systemd that exists.

    Attributes:
        name: Without ``.service``.
        active: ``active``, ``inactive``, ``failed`` ...
        enabled: ``enabled``, ``disabled``, ``masked`` ...
    """

    name: str
    active: str
    enabled: str


@dataclass(frozen=True, slots=True)
class DeviceUser:
    """A process that has an NVIDIA device open.

    Attributes:
        pid: Its process id.
        command: Its name, cut to 15 characters as the kernel does. The process itself sets it: it may be empty, and
            hold anything but a newline.
        unit: The unit that it belongs to; empty for none or for a container.
        devices: The devices, such as ``/dev/nvidia0``.
    """

    pid: int
    command: str
    unit: str
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Units and holders. Readers that are not root see only their own processes."""

    units: tuple[Unit, ...] = ()
    holders: tuple[DeviceUser, ...] = ()

    def unit(self, name: str) -> Unit | None:
        """Return a unit; None if it does not exist."""
        return next((unit for unit in self.units if unit.name == name), None)

    def is_active(self, name: str) -> bool:
        """Return whether a unit runs."""
        unit = self.unit(name)
        return unit is not None and unit.active == "active"


def read_services(output: SectionOutput) -> Services:
    """Read the section's lines."""
    return Services(units=tuple(_units(output.all("unit"))), holders=tuple(_holders(output.all("holder"))))


def _units(lines: list[str]) -> list[Unit]:
    """Read what ``systemctl show`` prints: blocks of assignments, an empty line between two."""
    blocks: list[dict[str, str]] = [{}]
    for line in lines:
        name, _, value = line.partition("=")
        if not line.strip():
            blocks.append({})
        else:
            blocks[-1][name] = value.strip()
    return [
        Unit(block["Id"].removesuffix(".service"), block.get("ActiveState", ""), block.get("UnitFileState", ""))
        for block in blocks
        if block.get("Id") and block.get("LoadState") not in {None, "not-found"}
    ]


def _holders(lines: list[str]) -> list[DeviceUser]:
    found: dict[int, DeviceUser] = {}
    for line in lines:
        word, unit, device, command = [*line.split(" ", 3), "", "", ""][:4]
        pid = number(word)
        if pid and device.startswith("/dev/nvidia"):
            known = found.get(pid, DeviceUser(pid, command, unit.removesuffix(".service").strip("-"), ()))
            found[pid] = DeviceUser(known.pid, known.command, known.unit, (*known.devices, device))
    return list(found.values())
