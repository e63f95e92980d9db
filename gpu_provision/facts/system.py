"""Which operating system this is, who reads it, and what time it is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpu_provision.facts.section import Said, Section, number
from gpu_provision.model.inventory import OperatingSystem


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """The operating system.

    Attributes:
        id: ``ID`` of /etc/os-release, such as ``ubuntu``; empty if unknown.
        version: ``VERSION_ID`` of /etc/os-release.
        title: ``PRETTY_NAME``.
        hostname: What the host calls itself.
        as_root: Whether the reader was root: others do not see everything.
        time: Seconds since the epoch by the host's own clock; None if it did not say.
        reboot_required: Whether the system itself asks for a reboot.
    """

    id: str = ""
    version: str = ""
    title: str = ""
    hostname: str = ""
    as_root: bool = False
    time: int | None = None
    reboot_required: bool = False

    @property
    def name(self) -> OperatingSystem | None:
        """The system as inventories name it; None if unknown."""
        return OperatingSystem(self.id, self.version) if self.id else None


SCRIPT = r"""
echo "time $(date +%s)"
echo "user $(id -u)"
echo "hostname $(uname -n)"
show os /etc/os-release
[ -e /run/reboot-required ] || [ -e /var/run/reboot-required ] && echo reboot-required
# SUSE and the RHEL family: their own files and tool; needs-restarting takes seconds, so it is not asked.
[ -e /run/reboot-needed ] || [ -e /boot/do_purge_kernels ] && echo reboot-required
"""


def read(said: Said) -> System:
    """Read the section."""
    release = _assignments(said.all("os"))
    return System(
        id=release.get("ID", ""),
        version=release.get("VERSION_ID", ""),
        title=release.get("PRETTY_NAME", ""),
        hostname=said.first("hostname"),
        as_root=said.first("user") == "0",
        time=number(said.first("time")),
        reboot_required=said.has("reboot-required"),
    )


def _assignments(lines: list[str]) -> Mapping[str, str]:
    parts = (line.split("=", 1) for line in lines if "=" in line)
    return {name.strip(): value.strip("\"' ") for name, value in parts}


SECTION = Section("system", SCRIPT, read)
