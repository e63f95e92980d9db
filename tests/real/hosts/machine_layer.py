"""What hosts without a kernel of their own see of a machine: files, in a layer over their root directory."""

from __future__ import annotations

import os
from pathlib import Path

from gpu_provision.sandbox.hosts import rootfs, software
from gpu_provision.sandbox.hosts.spec import AT_START, HostSpec
from tests.real.hosts.machine import T4
from tests.real.hosts.pci_functions import Function


def write_machine(layer: Path) -> None:
    """Write what a kernel would show in /proc, /sys and /lib/modules, and the programs of its modules."""
    _, device, pci_class = T4.split(":")
    spec = HostSpec(
        name="light",
        kernel=os.uname().release,
        architecture=os.uname().machine,
        gpus=((device, pci_class),) * 2,
        modules=(*AT_START, "nouveau"),
    )
    loaded = "".join(f"{name} 16384 0 - Live 0x0000000000000000\n" for name in spec.modules)
    (layer / "usr/lib").mkdir(parents=True)
    (layer / "lib").symlink_to("usr/lib")
    for path, content in {**rootfs.machine_files(spec), "proc/modules": loaded}.items():
        (layer / path).parent.mkdir(parents=True, exist_ok=True)
        (layer / path).write_text(content)
    for module in (*spec.modules, *spec.builtin):
        (layer / "sys/module" / module).mkdir(parents=True)
    for folder in (".proc", ".disk", "run", "sys/module"):
        (layer / folder).mkdir(parents=True, exist_ok=True)
    rootfs.link_proc(layer)
    _write_lspci_files(layer / "sys/bus/pci/devices")
    _write_module_tools(layer)


def _write_lspci_files(devices: Path) -> None:
    """Write what lspci reads besides."""
    gpu = bytes(Function.of(T4).space)
    for device in devices.iterdir():
        ours = (device / "vendor").read_text() == "0x10de\n"
        (device / "config").write_bytes(gpu if ours else bytes(64))
        (device / "irq").write_text("0\n")
        (device / "resource").write_text("0x0000000000000000 0x0000000000000000 0x0000000000000000\n" * 7)


def _write_module_tools(layer: Path) -> None:
    """Put the sandbox's modprobe and its like over kmod, which would speak to the kernel of this machine."""
    for tool, script in software.TOOLS.items():
        if script == "modules":
            for folder in ("usr/sbin", "usr/bin") if tool == "lsmod" else ("usr/sbin",):
                (layer / folder).mkdir(parents=True, exist_ok=True)
                (layer / folder / tool).write_text((software.SCRIPTS / f"{script}.sh").read_text())
                (layer / folder / tool).chmod(0o755)
