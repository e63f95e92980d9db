"""What the machine has by way of hardware and operating system, as its programs find it in files."""

from __future__ import annotations

from pathlib import Path

_T4 = {
    "class": "0x030200",
    "vendor": "0x10de",
    "device": "0x1eb8",
    "subsystem_vendor": "0x10de",
    "subsystem_device": "0x12a2",
}
_NETWORK_CARD = {
    "class": "0x020000",
    "vendor": "0x1af4",
    "device": "0x1041",
    "subsystem_vendor": "0x1af4",
    "subsystem_device": "0x0041",
}
OS_RELEASE = """\
PRETTY_NAME="Ubuntu 22.04.5 LTS"
NAME="Ubuntu"
VERSION_ID="22.04"
VERSION="22.04.5 LTS (Jammy Jellyfish)"
VERSION_CODENAME=jammy
ID=ubuntu
ID_LIKE=debian
"""
"""The machine calls itself a system that there are driver images for, whatever this computer runs."""


def write_pci(tree: Path, *, gpus: int) -> None:
    """Write a tree as /sys/bus/pci/devices: a network card, and Tesla T4s."""
    for slot, files in enumerate([_NETWORK_CARD, *[_T4] * gpus], start=3):
        folder = tree / f"0000:00:{slot:02x}.0"
        folder.mkdir(parents=True)
        for name, text in files.items():
            (folder / name).write_text(f"{text}\n")
