"""Hosts with systemd by the dozen on one machine: Debian booted by systemd-nspawn, which the machine itself needs not.

    with nspawn_hosts(folder, 20) as hosts:         # nspawn-01 ... nspawn-20, each with its own sshd on loopback
        hosts[0].run("systemctl is-system-running") # as root over SSH; user admin is there, too, and has sudo

They are of the same system as light hosts, and have the same PCI bus and sysctls of their own. The kernel's modules
are this machine's, and cannot be loaded: of those that tests know, I2C is built in, and no other is there.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.real.hosts.built import namespaces_missing
from tests.real.hosts.machine_layer import begun
from tests.real.hosts.ssh_host import NamespacedHost, await_ssh
from tests.real.processes import await_ready

_FIRST_SCRIPT = Path(__file__).with_name("nspawn_host.sh")
_INSTANCES = Path("/proc/sys/fs/inotify/max_user_instances")
_INSTANCES_OF_A_HOST = 16
_CGROUPS = Path("/sys/fs/cgroup")

# What is bound over the kernel's own: the PCI bus, and each sysctl that the machine has.
_BIND = """
mount --bind /.machine/devices /sys/bus/pci/devices
cd /.machine/sysctls
find vm fs net -type f | while read -r sysctl; do
  [ ! -e "/proc/sys/$sysctl" ] || mount --bind "$sysctl" "/proc/sys/$sysctl"
done
"""


@dataclass(frozen=True, slots=True)
class NspawnHost(NamespacedHost):
    """A running host with systemd, which it may reboot: that is another process of this machine then."""

    @property
    def pid(self) -> int:
        """The host's first process, as this machine numbers it: the child of systemd-nspawn."""
        return _child(_child(self.outside.pid))

    def kill(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # it has ended already
            os.kill(self.pid, signal.SIGKILL)
        self.outside.wait(30)


def _child(pid: int) -> int:
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


def missing() -> str:
    """Return what this machine lacks to run such hosts, with what mends it; empty for nothing."""
    return namespaces_missing(**{"systemd-nspawn": "systemd-container"})


@contextlib.contextmanager
def nspawn_hosts(folder: Path, count: int, *, name: str = "nspawn") -> Iterator[tuple[NspawnHost, ...]]:
    """Start hosts that have booted when the block begins and end with it, NAME-01 and so on."""
    names = [f"{name}-{number:02}" for number in range(1, count + 1)]
    first = ["unshare", "--mount", str(_FIRST_SCRIPT)]
    with _enough_inotify(count), begun(NspawnHost, first, "console.log", folder, names, _own_cgroups) as hosts:
        for host in hosts:
            await_boot(host)
        yield hosts


@contextlib.contextmanager
def _enough_inotify(count: int) -> Iterator[None]:
    """Let so many systemds watch files; the usual limit of the machine is reached by eight of them."""
    before = _INSTANCES.read_text()
    _INSTANCES.write_text(str(max(int(before), 128 + count * _INSTANCES_OF_A_HOST)))
    try:
        yield
    finally:
        _INSTANCES.write_text(before)


@contextlib.contextmanager
def _own_cgroups(host: str) -> Iterator[list[Path]]:
    """Make a control group below ours in each hierarchy that systemd uses, and remove it with all below it."""
    name = f"gpu-provision-test-{os.getpid()}-{host}"
    hierarchies = {"0::": ("", "unified"), "name=systemd:": ("systemd",)}
    made = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        for mark, folders in hierarchies.items():
            _, found, path = line.partition(mark)
            there = [_CGROUPS / each for each in folders if (_CGROUPS / each / "cgroup.procs").exists()]
            made += [each / path.lstrip("/") / name for each in there if found]
    for group in made:
        group.mkdir()
    try:
        yield made
    finally:
        for group in made:
            _remove_cgroup(group)


def _remove_cgroup(group: Path) -> None:
    """Remove a control group with all below it; what ran in it may need a moment to be gone."""
    below = sorted((each for each in group.rglob("*") if each.is_dir()), reverse=True)
    for each in (*below, group):
        assert await_ready(partial(_removed, each)), f"{each} is in use"


def _removed(group: Path) -> bool:
    with contextlib.suppress(OSError):
        group.rmdir()
    return not group.exists()


def await_boot(host: NspawnHost) -> None:
    """Wait until a host has booted, and lay what is not the kernel's over what is; after a reboot, too."""
    await_ssh(host)
    subprocess.run(["nsenter", "-t", str(host.pid), "-m", "sh", "-euc", _BIND], check=True, capture_output=True)
    state = host.run("systemctl is-system-running --wait", check=False)
    if state not in {"running", "degraded"}:
        message = f"{host.name} is {state}: {host.run('systemctl --failed', check=False)}"
        raise TimeoutError(message)
