"""A host that is reached over SSH, whatever it is made of."""

from __future__ import annotations

import contextlib
import random
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.real.processes import await_ready

CONNECT_SECONDS = 60
"""How long to wait for a host that runs, and shares its processors with many."""

_COMMAND_SECONDS = 120
_PORTS = range(20000, 32000)  # below those that the kernel gives to clients


@dataclass(frozen=True, slots=True)
class SshHost:
    name: str  # what its inventory calls it
    port: int  # the port of its SSH
    folder: Path  # its own files: logs, the SSH configuration
    key: Path  # the private key of root and of admin, who has sudo

    @property
    def address(self) -> str:
        return "127.0.0.1"

    @property
    def proxy(self) -> str:
        return "none"

    @property
    def ssh_config(self) -> Path:
        """What ssh, pytest-testinfra and people need to get in as root: ``ssh -F FILE NAME``."""
        return self.folder / "ssh_config"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    def run(self, command: str, *, check: bool = True, seconds: float = _COMMAND_SECONDS) -> str:
        """Run a shell command as root and return what it prints, without blanks at its ends."""
        done = subprocess.run(
            ["ssh", "-F", self.ssh_config, self.name, command],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
        assert not check or done.returncode == 0, f"{self.name}: {command}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def write_ssh_config(self, *, connect_seconds: int = 5) -> None:
        """Write what leads to the host, and to nothing of the user's own."""
        options: Sequence[tuple[str, object]] = (
            ("HostName", self.address),
            ("Port", self.port),
            ("ProxyCommand", self.proxy),
            ("User", "root"),
            ("IdentityFile", self.key),
            ("IdentitiesOnly", "yes"),
            ("UserKnownHostsFile", self.known_hosts),
            ("StrictHostKeyChecking", "accept-new"),
            ("ConnectTimeout", connect_seconds),
            ("ServerAliveInterval", 10),
            ("LogLevel", "ERROR"),
        )
        lines = (f"  {option} {value}\n" for option, value in options)
        self.ssh_config.write_text(f"Host {self.name}\n{''.join(lines)}")


@dataclass(frozen=True, slots=True)
class NamespacedHost(SshHost):
    """A host that is a process of this machine, in namespaces."""

    outside: subprocess.Popen[bytes]  # the process whose only child is the host's first process

    @property
    def pid(self) -> int:
        (child,) = Path(f"/proc/{self.outside.pid}/task/{self.outside.pid}/children").read_text().split()
        return int(child)

    @property
    def root(self) -> Path:
        return Path(f"/proc/{self.pid}/root")

    def kill(self) -> None:
        self.outside.kill()
        self.outside.wait(10)


def await_ssh(host: NamespacedHost) -> None:
    if not await_ready(lambda: _greets(host.port), host.outside):
        logs = (log.read_text(errors="replace")[-1000:] for log in host.folder.glob("*.log"))
        message = f"{host.name} does not answer: {''.join(logs)}"
        raise TimeoutError(message)


def _greets(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as there:
        return there.recv(4) == b"SSH-"
    return False


def free_ports(count: int) -> list[int]:
    found: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            break
    return found
