"""The baseboard management controller, as the kernel sees it."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_provision.facts.section import Said, Section


@dataclass(frozen=True, slots=True)
class Ipmi:
    """IPMI's device nodes, such as ``/dev/ipmi0``, and whether the kernel has found an interface to a BMC."""

    devices: tuple[str, ...] = ()
    interface: bool = False


SCRIPT = r"""
for device in /dev/ipmi[0-9]* /dev/ipmi/[0-9]*; do [ -e "$device" ] && echo "device $device"; done
for interface in /sys/class/ipmi/ipmi* /sys/bus/platform/drivers/ipmi_si/*[0-9]; do
  [ -e "$interface" ] && { echo interface; break; }
done
"""


def read(said: Said) -> Ipmi:
    """Read the section."""
    return Ipmi(tuple(said.all("device")), said.has("interface"))


SECTION = Section("ipmi", SCRIPT, read)
