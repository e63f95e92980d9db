"""A virtual machine with GPUs on its PCI bus, a BMC and OpenSSH; it ends with the block that made it."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.real.hosts.image import Image
from tests.real.processes import free_port, process

BOOT_SECONDS = 400
_COMMAND_SECONDS = 120
_POLL_SECONDS = 0.5
_OVMF = Path("/usr/share/OVMF")
_MEMORY = "1024M"
_BOARD = "usb=off,memory-backend=ram"  # by file descriptor: QEMU tells its PCI functions' process of the memory
_SECURE = ("OVMF_CODE_4M.ms.fd", "OVMF_VARS_4M.ms.fd")
T4 = "10de:1eb8:0302"


@dataclass(frozen=True, slots=True)
class Hardware:
    """What a machine is made of.

    Attributes:
        functions: Its GPUs, as ``vendor:device:class``.
        bmc: Whether it has a BMC, for which the kernel loads its IPMI drivers by itself.
        secure_boot: Whether its firmware is UEFI with Secure Boot on, instead of a BIOS.
    """

    functions: tuple[str, ...] = (T4, T4)
    bmc: bool = True
    secure_boot: bool = False

    def board(self, folder: Path) -> list[str]:
        """Return QEMU's options for board and firmware."""
        if not self.secure_boot:
            return ["-machine", f"pc,{_BOARD}"]
        code, variables = (_OVMF / name for name in _SECURE)
        own = folder / "variables.fd"
        own.write_bytes(variables.read_bytes())
        flash = "if=pflash,format=raw"
        secure = ["-machine", f"q35,smm=on,{_BOARD}", "-global", "driver=cfi.pflash01,property=secure,value=on"]
        return [*secure, "-drive", f"{flash},unit=0,readonly=on,file={code}", "-drive", f"{flash},unit=1,file={own}"]


STOCK = Hardware()


def secure_boot_missing() -> str:
    """Return what this machine lacks for Secure Boot; empty for nothing."""
    return "" if all((_OVMF / name).exists() for name in _SECURE) else "not installed: apt-get install ovmf"


@dataclass(frozen=True, slots=True)
class Machine:
    """A running virtual machine.

    Attributes:
        name: What its inventory calls it.
        port: Where its SSH is on loopback.
        folder: Its own files: disk, logs, the SSH configuration.
        key: The private key of root and admin.
        qemu: The process whose child QEMU is.
    """

    name: str
    port: int
    folder: Path
    key: Path
    qemu: subprocess.Popen[bytes]

    @property
    def ssh_config(self) -> Path:
        """What ssh, pytest-testinfra and people need to get in as root: ``ssh -F FILE NAME``."""
        return self.folder / "ssh_config"

    @property
    def known_hosts(self) -> Path:
        """Where the machine's key is kept after the first connection."""
        return self.folder / "known_hosts"

    def run(self, command: str, *, check: bool = True) -> str:
        """Run a shell command as root and return what it prints, without blanks at its ends.

        Raises:
            AssertionError: It failed, or the machine is not reached.
        """
        done = self._ssh(command)
        assert not check or done.returncode == 0, f"{self.name}: {command}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def reboot(self) -> None:
        """Reboot, and wait until it is another boot that answers."""
        before = self.boot_id()
        self.run("systemctl reboot", check=False)
        self.await_boot(before)

    def boot_id(self) -> str:
        """Return what differs from boot to boot; empty while it does not answer."""
        return self.run("cat /proc/sys/kernel/random/boot_id", check=False)

    def await_boot(self, before: str = "") -> None:
        """Wait until the machine has booted, into another boot than the one before, and all its services are up.

        Raises:
            TimeoutError: It has not, after BOOT_SECONDS.
        """
        give_up = time.monotonic() + BOOT_SECONDS
        while self.boot_id() in {"", before} or self.run("systemctl is-system-running", check=False) not in _UP:
            if time.monotonic() > give_up or self.qemu.poll() is not None:
                message = f"{self.name} does not boot; its console is in {self.folder / 'console.log'}"
                raise TimeoutError(message)
            time.sleep(_POLL_SECONDS)

    def pull_the_plug(self) -> None:
        """End it as a power failure does."""
        self.qemu.send_signal(signal.SIGKILL)
        self.qemu.wait(10)

    def _ssh(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["ssh", "-F", self.ssh_config, self.name, command],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_COMMAND_SECONDS,
        )


_UP = {"running", "degraded"}


@contextlib.contextmanager
def started(name: str, image: Image, folder: Path, hardware: Hardware = STOCK) -> Iterator[Machine]:
    """Start a machine on a disk of its own, which begins as the image; it boots when the block begins.

    The folder gets ``console.log`` and ``qemu.log``. Call ``await_boot`` before anything else.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port, disk = free_port(), folder / "disk.qcow2"
    overlay = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b"]
    subprocess.run([*overlay, image.disk, disk], check=True, capture_output=True)
    _write_ssh_config(folder, name, port, image.key)
    command = _qemu(image, folder, port, hardware)
    with process(folder / "qemu.log", command) as qemu:
        yield Machine(name, port, folder, image.key, qemu)


def _qemu(image: Image, folder: Path, port: int, hardware: Hardware) -> list[str]:
    """Return the command line: emulated throughout, so that it is the same with and without /dev/kvm."""
    functions = [sys.executable, "-m", "tests.real.hosts.pci_functions", *hardware.functions, "--"]
    processor = ["-accel", "tcg,thread=multi", "-cpu", "qemu64,+rdrand", "-smp", "2"]
    memory = ["-m", _MEMORY, "-object", f"memory-backend-memfd,id=ram,size={_MEMORY},share=on"]
    kernel = ["-kernel", str(image.kernel), "-initrd", str(image.initrd), "-append", _KERNEL_COMMAND_LINE]
    disk = [
        "-drive",
        f"file={folder / 'disk.qcow2'},if=none,id=disk,cache=unsafe",
        "-device",
        "virtio-blk-pci,drive=disk",
    ]
    network = f"user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:{port}-:22"
    card = ["-netdev", network, "-device", "virtio-net-pci,netdev=net,romfile="]
    bmc = ["-device", "ipmi-bmc-sim,id=bmc", "-device", "isa-ipmi-kcs,bmc=bmc"] if hardware.bmc else []
    console = ["-nodefaults", "-display", "none", "-serial", f"file:{folder / 'console.log'}"]
    machine = [*hardware.board(folder), *processor, *memory, *kernel, *disk, *card, *bmc, *console]
    return ["nice", *functions, "qemu-system-x86_64", *machine]


_KERNEL_COMMAND_LINE = "root=/dev/vda rw console=ttyS0 net.ifnames=0 panic=-1"


def _write_ssh_config(folder: Path, name: str, port: int, key: Path) -> None:
    """Write what leads to the machine, and to nothing of the user's own."""
    options: Sequence[tuple[str, object]] = (
        ("HostName", "127.0.0.1"),
        ("Port", port),
        ("User", "root"),
        ("IdentityFile", key),
        ("IdentitiesOnly", "yes"),
        ("UserKnownHostsFile", folder / "known_hosts"),
        ("StrictHostKeyChecking", "accept-new"),
        ("ConnectTimeout", 5),
        ("ServerAliveInterval", 10),
        ("LogLevel", "ERROR"),
    )
    lines = (f"  {option} {value}\n" for option, value in options)
    (folder / "ssh_config").write_text(f"Host {name}\n{''.join(lines)}")
