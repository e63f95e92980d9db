"""What keeps a host's own driver initialized while nobody uses its GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_provision.facts.modules import own_file
from gpu_provision.facts.originals import HOME
from gpu_provision.facts.section import Said, Section

DAEMON = "nvidia-persistenced"
OWN_UNIT = "gpu-provision-persistence"
OWN_FILE = f"/etc/systemd/system/{OWN_UNIT}.service"
ENABLED_FILE = f"{HOME}/enabled-units"
"""Names of units that we enabled, one a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Persistence:
    """Persistence mode, as far as units tell; the driver itself is not asked: it may hang.

    Attributes:
        daemon_off: Whether NVIDIA's daemon is told to start with persistence mode off, as Ubuntu's unit does.
        own_file: Lines of our own unit; None if there is none.
        enabled: Units that we enabled, without ``.service``.
        no_systemd: Whether systemd does not run this host.
    """

    daemon_off: bool = False
    own_file: tuple[str, ...] | None = None
    enabled: tuple[str, ...] = ()
    no_systemd: bool = False


SCRIPT = rf"""
command -v systemctl >/dev/null && $bounded systemctl show -p ExecStart {DAEMON}.service |
  grep -q -e --no-persistence-mode && echo off
[ -e {OWN_FILE} ] && {{ echo "own "; show own {OWN_FILE}; }}
show enabled {ENABLED_FILE}
case $($bounded systemctl is-system-running) in '' | offline | unknown) echo no-systemd ;; esac
"""


def read(said: Said) -> Persistence:
    """Read the section."""
    return Persistence(
        daemon_off=said.has("off"),
        own_file=own_file(said.all("own")),
        enabled=tuple(name.strip() for name in said.all("enabled") if name.strip()),
        no_systemd=said.has("no-systemd"),
    )


SECTION = Section("persistence", SCRIPT, read)
