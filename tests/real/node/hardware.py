"""What the machine has by way of hardware and operating system, as its programs find it in files."""

from __future__ import annotations

from pathlib import Path

_FILES = ("class", "vendor", "device", "subsystem_vendor", "subsystem_device")
T4 = ("0x030200", "0x10de", "0x1eb8", "0x10de", "0x12a2")
A30 = ("0x030200", "0x10de", "0x20b7", "0x10de", "0x1532")
VIRTIO = ("0x020000", "0x1af4", "0x1041", "0x1af4", "0x0041")
MELLANOX = ("0x020700", "0x15b3", "0x101b", "0x15b3", "0x0006")
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


def write_pci(tree: Path, *devices: tuple[str, ...]) -> None:
    """Write a tree as /sys/bus/pci/devices."""
    for slot, texts in enumerate(devices, start=3):
        folder = tree / f"0000:00:{slot:02x}.0"
        folder.mkdir(parents=True)
        for name, text in zip(_FILES, texts, strict=True):
            (folder / name).write_text(f"{text}\n")
