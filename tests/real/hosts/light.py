"""Hosts by the dozen on one machine: Debian's own shell, sshd, sudo and apt in namespaces, without a kernel or systemd.

    with light_hosts(folder, 50) as hosts:          # light-01 ... light-50, each with its own sshd on loopback
        hosts[0].run("cat /etc/hostname")           # as root over SSH; user admin is there, too, and has sudo
        hosts[0].name, hosts[0].port, hosts[0].key, hosts[0].known_hosts, hosts[0].ssh_config
        hosts[0].root / "etc/hostname"              # its files, past SSH, as long as it runs

What goes wrong with hosts, each for one host and at any time:

    host.kill()                                     # it is gone at once, with all that runs on it
    host.freeze(); host.thaw()                      # nothing on it runs; the kernel still takes connections
    host.dies_at("modprobe")                        # ... when that program is called
    host.freezes_at("apt-mark")
    host.fails_at("modprobe", "no such device")     # the program says so and exits 1
    host.ask_for_sudo_password("secret")            # admin's sudo wants one from now on; and that is it
    host.fill_disk(leaving=0)                       # so many bytes are left on its file system
    host.change_host_key()                          # the next connection meets another key than known_hosts has

A host begins with two Tesla T4 on its PCI bus, nouveau loaded for them, I2C built in and IPMI available, packages of a
kernel, 20 GB of disk. Its kernel modules, sysctls and PCI bus are files of its own, with the sandbox's modprobe; all
else is real: mounts, processes and SSH. /proc does not list processes. To run them, a machine needs root: ask
built.namespaces_missing() first, and skip.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.real.hosts.built import ISOLATED
from tests.real.hosts.machine_layer import begun
from tests.real.hosts.ssh_host import NamespacedHost, await_ssh
from tests.real.processes import await_ready

_FIRST_PROCESS = Path(__file__).with_name("light_host.sh")


@dataclass(frozen=True, slots=True)
class LightHost(NamespacedHost):
    def written(self) -> set[tuple[str, int, float]]:
        """Return path, inode and time of every file that was written since it began, past SSH and faster."""
        files = (self.root / ".disk/upper").rglob("*")
        looks = {path: path.lstat() for path in files if path.is_file() and not path.is_symlink()}
        return {
            (str(path.relative_to(self.root / ".disk/upper")), look.st_ino, look.st_mtime)
            for path, look in looks.items()
        }

    def commands_run(self) -> int:
        """Return how many commands were run over SSH since it began; one connection may run many."""
        return (self.folder / "sshd.log").read_text(errors="replace").count("Starting session: command")

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def dies_at(self, program: str) -> None:
        """Let the host end, as from a power failure, when this program is called there."""
        self._replace(program, "kill -TERM 1; sleep 600")

    def freezes_at(self, program: str) -> None:
        self._replace(program, "kill -STOP -1; sleep 86400")

    def fails_at(self, program: str, says: str) -> None:
        self._replace(program, f"echo '{says}' >&2; exit 1")

    def ask_for_sudo_password(self, password: str) -> None:
        self._inside("chpasswd", text=f"admin:{password}\n")
        (self.root / "etc/sudoers.d/admin").write_text("admin ALL=(ALL) ALL\n")

    def fill_disk(self, *, leaving: int = 0) -> None:
        """Let so many bytes be left, to the next page, on the host's file system."""
        used = os.statvfs(self.root)
        size = (used.f_blocks - used.f_bfree) * used.f_frsize + leaving
        self._inside("mount", "-o", f"remount,size={max(size, 1)}", "/.disk")

    def change_host_key(self) -> None:
        key = "/etc/ssh/ssh_host_ed25519_key"
        change = f'rm {key} && ssh-keygen -q -t ed25519 -N "" -f {key} && kill -HUP "$(cat /run/sshd.pid)"'
        self._inside("sh", "-c", change)
        fresh = (self.root / f"{key[1:]}.pub").read_text().split()[1]
        assert await_ready(lambda: fresh in self._offered_key(), self.outside), f"{self.name} keeps its old key"

    def _offered_key(self) -> str:
        """Return the key that its SSH shows to anybody; empty while it does not answer."""
        scan = ["ssh-keyscan", "-t", "ed25519", "-p", str(self.port), "127.0.0.1"]
        return subprocess.run(scan, check=False, capture_output=True, text=True).stdout

    def _inside(self, *command: str, text: str = "") -> None:
        into = ["nsenter", "-t", str(self.pid), "-a"]
        subprocess.run([*into, *command], check=True, input=text, text=True, capture_output=True)

    def _replace(self, program: str, script: str) -> None:
        for folder in ("usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin"):
            place = self.root / folder / program
            if place.exists() or place.is_symlink():
                place.unlink()
                place.write_text(f"#!/bin/sh\n{script}\n")
                place.chmod(0o755)

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to every process of the host: those in the same PID namespace as its first."""
        namespace = Path(f"/proc/{self.pid}/ns/pid").readlink()
        for links in Path("/proc").glob("[0-9]*/ns/pid"):
            with contextlib.suppress(OSError):  # it ended meanwhile
                if links.readlink() == namespace:
                    os.kill(int(links.parts[2]), number)


@contextlib.contextmanager
def light_hosts(folder: Path, count: int, *, name: str = "light") -> Iterator[tuple[LightHost, ...]]:
    """Start hosts that answer when the block begins and end with it, NAME-01 and so on."""
    names = [f"{name}-{number:02}" for number in range(1, count + 1)]
    first = [*ISOLATED, str(_FIRST_PROCESS)]
    with begun(LightHost, first, "sshd.log", folder, names, lambda _: contextlib.nullcontext([])) as hosts:
        for host in hosts:
            await_ssh(host)
        yield hosts
