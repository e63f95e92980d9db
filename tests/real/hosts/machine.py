"""A virtual machine with GPUs on its PCI bus, a BMC and OpenSSH; it ends with the block that made it."""

from __future__ import annotations

import contextlib
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.real.hosts.image import Image
from tests.real.hosts.ssh_host import SshHost, free_ports
from tests.real.node.settings import NODE_ADDRESS
from tests.real.processes import process

BOOT_SECONDS = 400
_POLL_SECONDS = 0.5
_BOOTED = re.compile(r"Reached target \S*multi-user\.target")
_OVMF = Path("/usr/share/OVMF")
_BOARD = "usb=off,memory-backend=ram"  # by file descriptor: QEMU tells its PCI functions' process of the memory
_SECURE = ("OVMF_CODE_4M.ms.fd", "OVMF_VARS_4M.ms.fd")
_MEMORY = "2048M"  # at most: what it does not use is not taken
T4 = "10de:1eb8:0302"
SERVER_ADDRESS = "192.0.2.1"
"""Where every machine finds whatever it is connected to."""
# The machine never asks for an address: on a busy machine systemd-networkd 252 begins to, twice, and gives up for good:
# "Failed to configure DHCPv4 client: Device or resource busy".
# With its programs at the same addresses in every process, QEMU translates their code once, not for each process.
_KERNEL_COMMAND_LINE = (
    "root=/dev/vda rw console=ttyS0 net.ifnames=0 panic=-1 mitigations=off norandmaps "
    f"ip={NODE_ADDRESS}::{SERVER_ADDRESS}:255.255.255.0::eth0:off"
)
_DISK_SLOT, _CARD_SLOT, _OTHER_SLOTS = 2, 3, 16  # of the PCI bus: fixed, so that further devices move neither


@dataclass(frozen=True, slots=True)
class Hardware:
    """What a machine is made of.

    Attributes:
        functions: Its GPUs, as ``vendor:device:class``.
        bmc: Whether it has a BMC, for which the kernel loads its IPMI drivers by itself.
        secure_boot: Whether its firmware is UEFI with Secure Boot on, instead of a BIOS.
        disks: Further disks, which it can only read: ``/dev/vdb`` and so on.
    """

    functions: tuple[str, ...] = (T4, T4)
    bmc: bool = True
    secure_boot: bool = False
    disks: tuple[Path, ...] = ()

    def board(self, folder: Path) -> list[str]:
        """Return QEMU's options for board and firmware."""
        if not self.secure_boot:
            return ["-machine", f"pc,{_BOARD}"]
        code, own = _OVMF / _SECURE[0], folder / "variables.fd"
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
        network: What to put before a command of ours that shall reach it.
    """

    address: str
    port: int
    netdev: str
    network: tuple[str, ...] = ()

    @classmethod
    def loopback(cls) -> Link:
        """Return a link to a free port of loopback, by which the machine reaches nobody."""
        (port,) = free_ports(1)
        network = f"user,id=net,restrict=on,net={SERVER_ADDRESS}/24,host={SERVER_ADDRESS}"
        return cls("127.0.0.1", port, f"{network},hostfwd=tcp:127.0.0.1:{port}-{NODE_ADDRESS}:22")

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
    """A running virtual machine.

    Attributes:
        qemu: The process whose child QEMU is.
        link: How it is connected.
    """

    qemu: subprocess.Popen[bytes]
    link: Link

    @property
    def address(self) -> str:
        """Where its SSH is."""
        return self.link.address

    @property
    def proxy(self) -> str:
        """What ssh connects by."""
        return self.link.proxy

    def reboot(self) -> None:
        """Reboot, and wait until it is another boot that answers."""
        boots = self._boots()
        self.run("systemctl reboot", check=False)
        self.disconnect()
        self.await_boot(boots)

    def await_boot(self, before: int = 0) -> None:
        """Wait until the machine has booted once more than so many times, and all its services are up.

        Its console tells, as each connection to a machine that boots costs it a second.

        Raises:
            TimeoutError: It has not, after BOOT_SECONDS.
        """
        self._await(lambda: self._boots() > before)
        self._await(lambda: self.run("systemctl is-system-running --wait", check=False) in {"running", "degraded"})

    def _boots(self) -> int:
        """Return how often it has booted as far as its console tells."""
        return len(_BOOTED.findall((self.folder / "console.log").read_text(errors="replace")))

    def wake(self) -> None:
        """Wait until a machine that starts where a booted one stopped answers; set its clock, and plug its GPUs in."""
        self._await(lambda: self.run("true; echo awake", check=False) == "awake")
        self.run(f"date -s @{time.time():.0f} && echo 1 >/sys/bus/pci/rescan && udevadm settle")

    def _await(self, condition: Callable[[], bool]) -> None:
        give_up = time.monotonic() + BOOT_SECONDS
        while not condition():
            if time.monotonic() > give_up or self.qemu.poll() is not None:
                message = f"{self.name} does not boot; its console is in {self.folder / 'console.log'}"
                raise TimeoutError(message)
            time.sleep(_POLL_SECONDS)


@contextlib.contextmanager
def running(name: str, image: Image, folder: Path, hardware: Hardware, link: Link, *options: str) -> Iterator[Machine]:
    """Run a machine on the disk ``disk.qcow2`` of its folder.

    The folder gets ``console.log`` and ``qemu.log``. Call ``await_boot`` or ``wake`` before anything else.
    """
    if hardware.secure_boot:
        (folder / "variables.fd").write_bytes((_OVMF / _SECURE[1]).read_bytes())
    command = [*link.network, *qemu(image, folder, link, hardware), *options]
    (folder / "console.log").touch()
    with process(folder / "qemu.log", command) as begun:
        machine = Machine(name, link.port, folder, image.key, begun, link)
        machine.write_ssh_config(shared=True)
        try:
            yield machine
        finally:
            machine.disconnect()


def make_disk(disk: Path, below: Path, form: str) -> None:
    """Make a disk that begins as another one, which nobody writes to from now on."""
    overlay = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", form, "-b"]
    subprocess.run([*overlay, below, disk], check=True, capture_output=True)


def qemu(image: Image, folder: Path, link: Link, hardware: Hardware) -> list[str]:
    """Return the command line: emulated throughout, so that it is the same with and without /dev/kvm."""
    functions = [sys.executable, "-m", "tests.real.hosts.pci_functions", *hardware.functions, "--"]
    # QEMU 7.2 slows down with the code that it keeps: a reboot with 1 GiB of it, its default, took four times as long.
    processor = ["-accel", "tcg,thread=multi,tb-size=256", "-cpu", "qemu64,+rdrand", "-smp", "2"]
    ram = f"memory-backend-memfd,id=ram,size={_MEMORY},share=on"
    memory = ["-m", _MEMORY, "-object", ram]
    kernel = ["-kernel", str(image.kernel), "-initrd", str(image.initrd), "-append", _KERNEL_COMMAND_LINE]
    card = ["-netdev", link.netdev, "-device", f"virtio-net-pci,netdev=net,romfile=,addr={_CARD_SLOT}"]
    bmc = ["-device", "ipmi-bmc-sim,id=bmc", "-device", "isa-ipmi-kcs,bmc=bmc"] if hardware.bmc else []
    console = ["-nodefaults", "-display", "none", "-serial", f"file:{folder / 'console.log'}"]
    disks = _disks(folder / "disk.qcow2", hardware.disks)
    machine = [*hardware.board(folder), *processor, *memory, *kernel, *disks, *card, *bmc, *console]
    return [*functions, "qemu-system-x86_64", *machine]


def _disks(own: Path, others: Sequence[Path]) -> list[str]:
    """Return QEMU's options for disks: the machine's own, and those that it can only read."""
    drives = [f"file={own},cache=unsafe", *(f"file={other},format=raw,readonly=on" for other in others)]
    places = [f",addr={_DISK_SLOT}", *(f",addr={_OTHER_SLOTS + n}" for n, _ in enumerate(others))]
    options = (
        (f"{drive},if=none,id=disk{n}", f"virtio-blk-pci,drive=disk{n}{place}")
        for n, (drive, place) in enumerate(zip(drives, places, strict=True))
    )
    return [part for drive, device in options for part in ("-drive", drive, "-device", device)]
