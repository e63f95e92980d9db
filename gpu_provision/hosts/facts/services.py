"""Units of systemd that matter, and the processes that hold NVIDIA's devices."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_provision.hosts.facts.section import Said, Section, number

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
class Holder:
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
    holders: tuple[Holder, ...] = ()

    def unit(self, name: str) -> Unit | None:
        """Return a unit; None if it does not exist."""
        return next((unit for unit in self.units if unit.name == name), None)

    def is_active(self, name: str) -> bool:
        """Return whether a unit runs."""
        unit = self.unit(name)
        return unit is not None and unit.active == "active"


# A process that has ended holds nothing. Names of processes are the processes' own: echo would take backslashes in them
# for newlines, and paths of other files may hold an arrow.
SCRIPT = rf"""
command -v systemctl >/dev/null && $bounded systemctl show -p Id,LoadState,ActiveState,UnitFileState \
  {" ".join(f"{unit}.service" for unit in UNITS)} | sed 's/^/unit /'
for device in /dev/nvidia[0-9]* /dev/nvidiactl; do
  [ -e "$device" ] || continue
  $bounded ls -l /proc/[0-9]*/fd |
    sed -nE '/^\/proc/h; /^[^>]*-> \/dev\/nvidia/{{G; s/^[^>]*-> ([^[:space:]]*)\n\/proc\/([0-9]+)\/fd:$/\2 \1/p; }}' |
    sort -u |
    while read -r pid held; do
      read -r command <"/proc/$pid/comm" || continue
      unit=$(sed -nE 's/^.*\/([^/]*\.service)(\/.*)?$/\1/p' "/proc/$pid/cgroup" | head -n 1)
      printf '%s\n' "holder $pid ${{unit:--}} $held $command"
    done
  break
done
"""


def read(said: Said) -> Services:
    """Read the section."""
    return Services(units=tuple(_units(said.all("unit"))), holders=tuple(_holders(said.all("holder"))))


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


def _holders(lines: list[str]) -> list[Holder]:
    found: dict[int, Holder] = {}
    for line in lines:
        word, unit, device, command = [*line.split(" ", 3), "", "", ""][:4]
        pid = number(word)
        if pid and device.startswith("/dev/nvidia"):
            known = found.get(pid, Holder(pid, command, unit.removesuffix(".service").strip("-"), ()))
            found[pid] = Holder(known.pid, known.command, known.unit, (*known.devices, device))
    return list(found.values())


SERVICES_SECTION = Section("services", SCRIPT, read)
