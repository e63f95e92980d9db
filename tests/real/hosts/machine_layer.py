"""Hosts without a kernel of their own: what they see of a machine, in a layer over their root, and how they begin."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from gpu_provision.sandbox.hosts import rootfs
from gpu_provision.sandbox.hosts.spec import AT_START, HostSpec
from tests.real.hosts.built import ROOTFS
from tests.real.hosts.machine import T4
from tests.real.hosts.pci_functions import Function
from tests.real.hosts.ssh_host import CONNECT_SECONDS, NamespacedHost, free_ports
from tests.real.processes import process

DISK_BYTES = 20 * 1024**3
"""Size of a host's file system; it takes memory only for what is written to it."""

H = TypeVar("H", bound=NamespacedHost)
Groups = Callable[[str], contextlib.AbstractContextManager[Sequence[Path]]]


@contextlib.contextmanager
def begun(  # noqa: PLR0913, PLR0917 - what differs between light hosts and those with systemd
    kind: type[H], first: Sequence[str], log: str, folder: Path, names: Sequence[str], groups: Groups
) -> Iterator[tuple[H, ...]]:
    """Start hosts, each in a folder of its own, by a first process whose arguments are in its script; they end here."""
    system, layer = ROOTFS.built(), folder / f"{names[0]}-layer"
    write_machine(layer)
    hosts = []
    with contextlib.ExitStack() as running:
        for name, port in zip(names, free_ports(len(names)), strict=True):
            own = folder / name
            (own / "disk").mkdir(parents=True)
            arguments = (name, port, own / "disk", DISK_BYTES, f"{layer}:{system}/root")
            command = [*first, *map(str, (*arguments, *running.enter_context(groups(name))))]
            outside = running.enter_context(process(own / log, command))
            host = kind(name, port, own, system / "key", outside)
            host.write_ssh_config(connect_seconds=CONNECT_SECONDS)
            running.callback(host.kill)
            hosts.append(host)
        yield tuple(hosts)


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
    gpu = bytes(Function.of(T4).space)
    for device in devices.iterdir():
        ours = (device / "vendor").read_text() == "0x10de\n"
        (device / "config").write_bytes(gpu if ours else bytes(64))
        (device / "irq").write_text("0\n")
        (device / "resource").write_text("0x0000000000000000 0x0000000000000000 0x0000000000000000\n" * 7)


def _write_module_tools(layer: Path) -> None:
    """Put the sandbox's modprobe and its like over kmod, which would speak to the kernel of this machine."""
    for tool, script in rootfs.TOOLS.items():
        if script == "modules":
            for folder in ("usr/sbin", "usr/bin") if tool == "lsmod" else ("usr/sbin",):
                (layer / folder).mkdir(parents=True, exist_ok=True)
                (layer / folder / tool).write_text((rootfs.SCRIPTS / f"{script}.sh").read_text())
                (layer / folder / tool).chmod(0o755)
