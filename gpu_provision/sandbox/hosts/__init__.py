"""Simulated hosts: real shell commands run on them, against a private state that outlives them.

The state of a host is ``<sandbox directory>/hosts/<node>/``. The first access creates it as the
fleet says; ``remove`` deletes it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gpu_provision.sandbox.errors import FleetError
from gpu_provision.sandbox.hosts import isolation
from gpu_provision.sandbox.hosts.rootfs import write_root
from gpu_provision.sandbox.hosts.spec import HostSpec, to_host_spec
from gpu_provision.sandbox.state import sandbox_directory

isolation_problem = isolation.isolation_problem


class HostUnavailableError(Exception):
    """No simulated host of this name answers; the text says why, for a person."""


@dataclass(frozen=True, slots=True)
class SimulatedHost:
    """A host whose state exists: ``directory`` is its root directory, as far as it is its own."""

    name: str
    directory: Path


def ensure(spec: HostSpec, directory: Path) -> SimulatedHost:
    """Return a simulated host, made new if it has no state yet.

    Args:
        spec: What the host is if it has to be made.
        directory: Directory of the sandbox.

    Raises:
        HostUnavailableError: The host is declared as unreachable, or its state cannot be written.
    """
    if not spec.reachable:
        message = f"connection to {spec.name} timed out: its fleet declares it as unreachable"
        raise HostUnavailableError(message)
    host = SimulatedHost(spec.name, directory / "hosts" / spec.name)
    try:
        if not host.directory.exists():
            _create(spec, host.directory, directory / "machines" / f"{spec.name}.jsonl")
        isolation.prepare(host.directory)
    except OSError as error:
        message = f"the state of {spec.name} cannot be written: {error}"
        raise HostUnavailableError(message) from error
    return host


def _create(spec: HostSpec, directory: Path, memory: Path) -> None:
    """Make the state aside and move it into place, so that there is all of it or nothing.

    Its boot is the one that the simulated node of this name is in, as its ``memory`` says, if that ever ran.
    """
    try:
        boot_id = str(json.loads(memory.read_text(encoding="utf-8").splitlines()[-1])["boot_id"])
    except (OSError, ValueError, LookupError):
        boot_id = ""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{spec.name}.", dir=directory.parent) as name:
        fresh = Path(name) / "host"
        write_root(fresh, spec)
        isolation.prepare(fresh)
        held = (
            "mkdir -p /sys/module/{0}; modprobe -r {0}; echo '{0} 2285568 4 - Live 0x0000000000000000' >>/proc/modules"
        )
        steps = ["boot", *map(held.format, spec.in_use), "echo 86400.00 86400.00 >/proc/uptime"]
        steps += [f"echo {boot_id} >/proc/sys/kernel/random/boot_id"] if boot_id else []
        run(SimulatedHost(spec.name, fresh), "; ".join(steps)).check_returncode()
        try:
            fresh.rename(directory)
        except OSError:  # another process was first; one state is as good as the other
            if not directory.exists():
                raise


def find(name: str, fleet: str = "default") -> SimulatedHost:
    """Return a simulated host by name, made new from its fleet if it has no state yet.

    Raises:
        HostUnavailableError: The fleet has no such node, or the host cannot be reached.
    """
    # Reading a fleet needs YAML, which would weigh on every pyinfra inventory, simulated or not.
    from gpu_provision.sandbox.fleet_file import load_fleet  # noqa: PLC0415 - see above

    try:
        loaded = load_fleet(fleet)
    except FleetError as error:
        raise HostUnavailableError(str(error)) from error
    machines = {machine.name: machine for machine in loaded.machines}
    if name not in machines:
        message = f"the sandbox {loaded.name} has no node {name}; it has {', '.join(machines)}"
        raise HostUnavailableError(message)
    return ensure(to_host_spec(machines[name]), sandbox_directory(loaded.name))


def argv(host: SimulatedHost, command: str) -> list[str]:
    """Return the command line that runs a shell command on a simulated host."""
    return isolation.argv(host.directory, command)


def run(host: SimulatedHost, command: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run a shell command on a simulated host and return how it ended, with its output."""
    return subprocess.run(argv(host, command), input=stdin, capture_output=True, check=False)  # noqa: S603 - running commands is its purpose, inside the host's own namespaces


def reboot(host: SimulatedHost) -> None:
    """Reboot the host: nothing is loaded but what loads at boot."""
    run(host, "reboot").check_returncode()


def remove(name: str, directory: Path) -> None:
    """Forget a host's state, if there is any; the next use makes it new."""
    shutil.rmtree(directory / "hosts" / name, ignore_errors=True)
