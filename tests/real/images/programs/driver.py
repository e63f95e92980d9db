"""The driver container: takes a moment, makes device nodes, and serves its own root file system to the host.

No kernel module is loaded. What stands for it: the GPUs are those on the PCI bus of the machine that pid 1 lives on;
``/sys/module/nvidia`` is a directory (`modules`); the device nodes are the kernel's log, which every process may open
for writing, but only where a container's list of devices has it (nothing is ever written to it).
"""

from __future__ import annotations

import os
import stat
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from . import gpus, modules, mounts
from .process import end_when_told, say, stay

ROOT = "/run/nvidia/driver"
_BUS = Path("/proc/1/root/sys/bus/pci/devices")
_FIRMWARE_PATH = Path("/sys/module/firmware_class/parameters/path")
_NVIDIA, _DISPLAY = "0x10de", "0x03"
_KERNEL_LOG = os.makedev(1, 11)
_BUILD_SECONDS = 2.0
_UUIDS = uuid.UUID("6ba7b812-9dad-11d1-80b4-00c04fd430c8")


class Refused(Exception):
    """Why the driver cannot be installed."""


def main() -> int:
    end_when_told()
    command = _COMMANDS.get(" ".join(sys.argv[1:]))
    if command is None:
        say(f"usage: nvidia-driver init: unknown command: {' '.join(sys.argv[1:])}")
        return 1
    return command()


def _init() -> int:
    version = os.environ.get("DRIVER_VERSION", "")
    say("========== NVIDIA Software Installer ==========", f"Starting installation of NVIDIA driver version {version}")
    try:
        install(version)
        stay()
    except (Refused, OSError) as error:
        say(str(error), "Unmounting NVIDIA driver rootfs...")
        return 1
    finally:
        mounts.detach(ROOT)
        modules.unload_driver()


_COMMANDS = {"init": _init, "reload_nvidia_peermem": modules.peermem, "probe_nvidia_peermem": modules.probe_peermem}


def install(version: str) -> None:
    """Make device nodes and the driver's library, and show this file system to the host. Raises Refused, OSError."""
    _check_system(os.environ.get("STAND_IN_OS", ""))
    found = present(_BUS)
    say("Building kernel modules...")
    time.sleep(_BUILD_SECONDS)
    if not found:
        message = "modprobe: ERROR: could not insert 'nvidia': No such device\nNVRM: No NVIDIA graphics adapter found!"
        raise Refused(message)
    _make_nodes(found)
    Path("/", gpus.LIBRARIES).mkdir(parents=True, exist_ok=True)
    Path("/", gpus.NVML).write_text(gpus.describe(version, found))
    Path("/", gpus.CUDA).write_text(f"driver {version}\n")
    Path("/usr/src").mkdir(exist_ok=True)
    modules.load("nvidia")
    _mount_root()


def _check_system(wanted: str) -> None:
    """An image is made for one operating system: it finds no kernel headers on another."""
    told = dict(line.split("=", 1) for line in Path("/host-etc/os-release").read_text().splitlines() if "=" in line)
    host = f"{told.get('ID', '')}{told.get('VERSION_ID', '')}".replace('"', "")
    if wanted and not host.startswith(wanted):
        message = f"Could not resolve Linux kernel version: the image is for {wanted}, the host runs {host}"
        raise Refused(message)
    if not os.access(_FIRMWARE_PATH, os.W_OK):
        message = f"{_FIRMWARE_PATH}: the firmware search path cannot be written"
        raise Refused(message)


def present(bus: Path) -> list[gpus.Gpu]:
    devices = {path.name: _attributes(path) for path in sorted(bus.glob("*"))}
    ours = {
        address: values["device"].removeprefix("0x")
        for address, values in devices.items()
        if values["vendor"] == _NVIDIA and values["class"].startswith(_DISPLAY)
    }
    return [
        gpus.Gpu(index, f"GPU-{uuid.uuid5(_UUIDS, address)}", address, device, gpus.model(device).name)
        for index, (address, device) in enumerate(ours.items())
    ]


def _attributes(device: Path) -> Mapping[str, str]:
    return {name: _read(device / name) for name in ("vendor", "class", "device")}


def _read(path: Path) -> str:
    return path.read_text().strip().lower() if path.is_file() else ""


def _make_nodes(found: list[gpus.Gpu]) -> None:
    for name in (*gpus.CONTROL_DEVICES, *(gpu.node for gpu in found)):
        node = Path("/dev", name)
        node.unlink(missing_ok=True)
        try:
            os.mknod(node, 0o666 | stat.S_IFCHR, _KERNEL_LOG)
        except PermissionError as error:
            message = "modprobe: ERROR: could not insert 'nvidia': Operation not permitted"
            raise Refused(message) from error
        node.chmod(0o666)


def _mount_root() -> None:
    say("Mounting NVIDIA driver rootfs...")
    mounts.detach(ROOT)
    Path(ROOT).mkdir(parents=True, exist_ok=True)
    mounts.mount("none", "/sys", mounts.UNBINDABLE)  # runc would take its cgroups for those of the node
    mounts.mount("/", ROOT, mounts.BIND | mounts.RECURSIVE)
    say("Done, now waiting for signal")
