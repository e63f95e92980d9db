"""The system tools of a simulated host: shell scripts in ``scripts/`` that keep their state in files of that host.

They stand in front of the real tools, because those would speak to the kernel of the machine that the sandbox
runs on. Each script serves several names, as kmod and systemctl do, and needs nothing but a POSIX shell.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

SCRIPTS = Path(__file__).with_name("scripts")

TOOLS: Mapping[str, str] = {
    **dict.fromkeys(("modprobe", "lsmod", "rmmod", "insmod", "depmod", "modinfo", "kmod"), "modules"),
    **dict.fromkeys(("boot", "reboot", "shutdown", "halt", "poweroff", "systemctl"), "power"),
    **dict.fromkeys(("update-initramfs", "dracut"), "initramfs"),
    **dict.fromkeys(("uname", "hostname"), "names"),
    **dict.fromkeys(("dpkg-query", "apt-config", "rpm", "containerd", "crio", "dockerd"), "software"),
    **dict.fromkeys(("apt-mark", "dnf", "zypper"), "holds"),
    **dict.fromkeys(("update-ca-certificates", "update-ca-trust"), "trust"),
    **dict.fromkeys(("ctr", "crictl"), "runtime-clients"),
    "sudo": "sudo",
    "df": "df",
    "prlimit": "limits",
    "apt-get": "packages",
    "dpkg": "packages",
}
"""Which script each tool is; a host has those of its family and its container runtime."""

ABSENT = ("lspci", "grubby", "mokutil", "kubelet", "lsinitramfs", "lsinitrd", "apt-cache")
"""Tools that no simulated host has, whether or not the machine that the sandbox runs on has them."""

MULTI_CALL = frozenset({"kmod", "systemctl"})
"""Real programs with many names, all of which have a script here."""
