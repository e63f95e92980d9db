"""A virtual machine with GPUs on its PCI bus, a BMC and OpenSSH; it ends with the block that made it."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.real.hosts.ssh_host import SshHost
from tests.real.processes import free_port, process

BOOT_SECONDS = 400
_POLL_SECONDS = 0.5
_OVMF = Path("/usr/share/OVMF")
_BOARD = "usb=off,memory-backend=ram"  # by file descriptor: QEMU tells its PCI functions' process of the memory
_SECURE = ("OVMF_CODE_4M.ms.fd", "OVMF_VARS_4M.ms.fd")
T4 = "10de:1eb8:0302"
# Of QEMU's user network, which ends at the machine.
_NETWORK, _GATEWAY, _GUEST = "10.0.2.0/24", "10.0.2.2", "10.0.2.15"


@dataclass(frozen=True, slots=True)
class Hardware:
    functions: tuple[str, ...] = (T4, T4)  # its GPUs, as ``vendor:device:class``
    bmc: bool = True  # whether it has a BMC, for which the kernel loads its IPMI drivers by itself
    secure_boot: bool = False  # whether its firmware is UEFI with Secure Boot on, instead of a BIOS
    memory: str = "1024M"  # its memory, as QEMU writes sizes
    disks: tuple[Path, ...] = ()  # further disks, which it can only read: ``/dev/vdb`` and so on

    def board(self, folder: Path) -> list[str]:
        if not self.secure_boot:
            return ["-machine", f"pc,{_BOARD}"]
        code, variables = (_OVMF / name for name in _SECURE)
        own = folder / "variables.fd"
        own.write_bytes(variables.read_bytes())
        flash = "if=pflash,format=raw"
        secure = ["-machine", f"q35,smm=on,{_BOARD}", "-global", "driver=cfi.pflash01,property=secure,value=on"]
        return [*secure, "-drive", f"{flash},unit=0,readonly=on,file={code}", "-drive", f"{flash},unit=1,file={own}"]


STOCK = Hardware()


@dataclass(frozen=True, slots=True)
class Link:
    """How a machine is connected.

    Attributes:
        address: Where its SSH is.
        port: And at which port.
        netdev: What QEMU connects its network card to.
        kernel: Its parameters about the network. It never asks for an address: on a busy machine systemd-networkd 252
            begins to, twice, and gives up for good: ``Failed to configure DHCPv4 client: Device or resource busy``.
        network: What to put before a command that reaches it.
    """

    address: str
    port: int
    netdev: str
    kernel: str
    network: tuple[str, ...] = ()

    @classmethod
    def loopback(cls) -> Link:
        """Return a link to a free port of loopback, by which the machine reaches no host."""
        port = free_port()
        netdev = f"user,id=net,restrict=on,net={_NETWORK},hostfwd=tcp:127.0.0.1:{port}-{_GUEST}:22"
        return cls("127.0.0.1", port, netdev, f"ip={_GUEST}::{_GATEWAY}:255.255.255.0::eth0:off")

    @property
    def proxy(self) -> str:
        """What ssh connects by, where it is not started within the network; else ``none``, as ssh calls it."""
        if not self.network:
            return "none"
        return f"{shlex.join(self.network)} bash -c 'exec 3<>/dev/tcp/%h/%p; cat <&3 & cat >&3; kill $!'"


def secure_boot_missing() -> str:
    """Return what this machine lacks for Secure Boot; empty for nothing."""
    return "" if all((_OVMF / name).exists() for name in _SECURE) else "not installed: apt-get install ovmf"


@dataclass(frozen=True, slots=True)
class Machine(SshHost):
    qemu: subprocess.Popen[bytes]  # the process whose child QEMU is
    link: Link  # how it is connected

    @property
    def address(self) -> str:
        return self.link.address

    @property
    def proxy(self) -> str:
        return self.link.proxy

    def reboot(self) -> None:
        before = self.run("cat /proc/sys/kernel/random/boot_id")
        self.run("systemctl reboot", check=False)
        self.await_boot(before)

    def boot_id(self) -> str:
        """Return what differs from boot to boot; empty while it does not answer."""
        return self.run("cat /proc/sys/kernel/random/boot_id", check=False)

    def await_boot(self, before: str = "") -> None:
        """Wait until the machine has booted, into another boot than the one before, and all its services are up."""
        give_up = time.monotonic() + BOOT_SECONDS
        while self.boot_id() in {"", before} or self.run("systemctl is-system-running", check=False) not in _UP:
            if time.monotonic() > give_up or self.qemu.poll() is not None:
                message = f"{self.name} does not boot; its console is in {self.folder / 'console.log'}"
                raise TimeoutError(message)
            time.sleep(_POLL_SECONDS)


_UP = {"running", "degraded"}


@contextlib.contextmanager
def started(
    name: str, image: Path, folder: Path, hardware: Hardware = STOCK, link: Link | None = None
) -> Iterator[Machine]:
    """Start a machine on a disk of its own, which begins as the image; it boots when the block begins.

    The folder gets ``console.log`` and ``qemu.log``. Call ``await_boot`` before anything else.
    """
    folder.mkdir(parents=True, exist_ok=True)
    link, disk = link or Link.loopback(), folder / "disk.qcow2"
    overlay = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b"]
    subprocess.run([*overlay, image / "disk.ext4", disk], check=True, capture_output=True)
    command = _qemu(image, folder, link, hardware)
    with process(folder / "qemu.log", command) as qemu:
        machine = Machine(name, link.port, folder, image / "key", qemu, link)
        machine.write_ssh_config(connect_seconds=30)
        yield machine


def _qemu(image: Path, folder: Path, link: Link, hardware: Hardware) -> list[str]:
    """Return the command line: emulated throughout, so that it is the same with and without /dev/kvm."""
    functions = [sys.executable, "-m", "tests.real.hosts.pci_functions", *hardware.functions, "--"]
    # QEMU 7.2 slows down with the code that it keeps: a reboot with 1 GiB of it, its default, took four times as long.
    processor = ["-accel", "tcg,thread=multi,tb-size=256", "-cpu", "qemu64,+rdrand", "-smp", "2"]
    ram = f"memory-backend-memfd,id=ram,size={hardware.memory},share=on"
    memory = ["-m", hardware.memory, "-object", ram]
    told = f"{_KERNEL_COMMAND_LINE} {link.kernel}"
    kernel = ["-kernel", f"{image}/vmlinuz", "-initrd", f"{image}/initrd.img", "-append", told]
    card = ["-netdev", link.netdev, "-device", "virtio-net-pci,netdev=net,romfile="]
    bmc = ["-device", "ipmi-bmc-sim,id=bmc", "-device", "isa-ipmi-kcs,bmc=bmc"] if hardware.bmc else []
    console = ["-nodefaults", "-display", "none", "-serial", f"file:{folder / 'console.log'}"]
    disks = _disks(folder / "disk.qcow2", hardware.disks)
    machine = [*hardware.board(folder), *processor, *memory, *kernel, *disks, *card, *bmc, *console]
    return [*link.network, "nice", *functions, "qemu-system-x86_64", *machine]


def _disks(own: Path, others: Sequence[Path]) -> list[str]:
    """Return QEMU's options for disks: the machine's own, and those that it can only read."""
    drives = [f"file={own},cache=unsafe", *(f"file={other},format=raw,readonly=on" for other in others)]
    options = ((f"{drive},if=none,id=disk{n}", f"virtio-blk-pci,drive=disk{n}") for n, drive in enumerate(drives))
    return [part for drive, device in options for part in ("-drive", drive, "-device", device)]


# With its programs at the same addresses in every process, QEMU translates their code once, not for each process.
_KERNEL_COMMAND_LINE = "root=/dev/vda rw console=ttyS0 net.ifnames=0 panic=-1 mitigations=off norandmaps"
