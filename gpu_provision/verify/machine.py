"""What a machine says of itself, read by plain commands through testinfra; shares no code with our own facts."""

from __future__ import annotations

import re
from typing import Any

_ETC = ("/etc", "/run", "/usr/local/lib", "/usr/lib", "/lib")
_DISPLAY = ("0x0300", "0x0302")  # VGA and 3D controllers: GPUs, not their sound or USB functions
_NVIDIA = "0x10de"
_DEVICES = "for device in /sys/bus/pci/devices/*; do echo $(cat $device/vendor) $(cat $device/class); done"
_RUNTIMES = (
    "for name in /proc/[0-9]*/comm; do grep -qxE 'containerd|crio|dockerd' $name && cat ${name%comm}limits; done"
)
_KILOBYTES = {"Ki": 1, "Mi": 1024, "Gi": 1024 * 1024}
_REBOOT = (
    ("/run/reboot-required exists", "test -e /run/reboot-required", 0),
    ("needs-restarting -r says so", "if command -v needs-restarting >/dev/null; then needs-restarting -r; fi", 1),
    ("zypper needs-rebooting says so", "if command -v zypper >/dev/null; then zypper needs-rebooting; fi", 102),
)


def canonical(module: str) -> str:
    """Write a module's name as the kernel does."""
    return module.strip().replace("-", "_")


def loaded(host: Any) -> frozenset[str]:
    """Return the kernel modules that are loaded."""
    return frozenset(canonical(line.split()[0]) for line in _lines(host, "cat /proc/modules"))


def built_in(host: Any) -> frozenset[str]:
    """Return the modules that are part of the running kernel."""
    lines = _lines(host, "cat /lib/modules/$(uname -r)/modules.builtin")
    return frozenset(canonical(line.rpartition("/")[2].partition(".ko")[0]) for line in lines)


def listed_for_boot(host: Any) -> frozenset[str]:
    """Return the modules that files list for loading at boot."""
    folders = " ".join(f"{folder}/modules-load.d/*.conf" for folder in _ETC)
    lines = _lines(host, f"cat /etc/modules {folders}")
    return frozenset(canonical(line) for line in lines if not line.startswith(("#", ";")))


def is_blacklisted(host: Any, module: str) -> bool:
    """Whether modprobe's configuration or the kernel's command line keeps a module from loading by itself."""
    folders = " ".join(f"{folder}/modprobe.d/*.conf" for folder in _ETC)
    lines = _lines(host, f"cat {folders}")
    never = rf"(blacklist\s+{module}\b|install\s+{module}\s+\S*/(false|true)\b)"
    if any(re.match(never, line) for line in lines):
        return True
    command_line = " ".join(_lines(host, "cat /proc/cmdline"))
    named = re.findall(r"(?:modprobe\.blacklist|module_blacklist|rd\.driver\.blacklist)=(\S*)", command_line)
    return any(module in value.split(",") for value in named)


def parameter(host: Any, key: str) -> str:
    """Return a kernel parameter's value, its words a space apart; empty if there is no such parameter."""
    return " ".join(" ".join(_lines(host, f"cat /proc/sys/{key.replace('.', '/')}")).split())


def huge_pages(host: Any, size: str) -> int:
    """Return the number of huge pages of a size such as ``2Mi``; -1 if the kernel has none of this size."""
    kilobytes = int(size[:-2]) * _KILOBYTES[size[-2:]]
    lines = _lines(host, f"cat /sys/kernel/mm/hugepages/hugepages-{kilobytes}kB/nr_hugepages")
    return int(lines[0]) if lines else -1


def limits_of_runtimes(host: Any, title: str) -> frozenset[str]:
    """Return the soft and hard limits of all processes of container runtimes, by the title that the kernel prints."""
    lines = (line for line in _lines(host, _RUNTIMES) if line.startswith(f"{title} "))
    return frozenset(value for line in lines for value in line.removeprefix(title).split()[:2])


def gpus(host: Any) -> int:
    """Return the number of NVIDIA's GPUs on the PCI bus."""
    found = (line.split() for line in _lines(host, _DEVICES))
    return sum(len(each) == 2 and each[0] == _NVIDIA and each[1].startswith(_DISPLAY) for each in found)  # noqa: PLR2004 - vendor and class


def reboot_reasons(host: Any) -> tuple[str, ...]:
    """Return who says that the machine has to be rebooted."""
    return tuple(reason for reason, command, status in _REBOOT if host.run(command).rc == status)


def _lines(host: Any, command: str) -> list[str]:
    """Return what a command prints, without what it says of files that are not there."""
    return [line.strip() for line in host.run(command).stdout.splitlines() if line.strip()]
