"""The state of a machine as pytest-testinfra sees it: gpu-provision does not read it."""

from __future__ import annotations

import testinfra
from testinfra.host import Host

from tests.real.hosts.ssh_host import SshHost


def of(machine: SshHost) -> Host:
    """Return testinfra's view over SSH, by a connection of its own for each question."""
    return testinfra.get_host(f"ssh://{machine.name}", ssh_config=str(machine.ssh_config), controlpersist=0)


def loaded(host: Host) -> set[str]:
    """Return the names of the kernel modules that are loaded, as the kernel writes them."""
    return {line.split()[0] for line in host.file("/proc/modules").content_string.splitlines()}


def built_in(host: Host) -> set[str]:
    """Return the names of the modules that the running kernel has built in."""
    release = host.check_output("uname -r")
    paths = host.file(f"/lib/modules/{release}/modules.builtin").content_string.split()
    return {path.rpartition("/")[2].removesuffix(".ko").replace("-", "_") for path in paths}


def gpus(host: Host) -> list[str]:
    return [line.split()[0] for line in host.check_output("lspci -d 10de::0302; lspci -d 10de::0300").splitlines()]


def written(host: Host) -> set[str]:
    """Return when each file of /etc and /boot was last written or replaced; equal sets mean that none was touched."""
    return set(host.check_output("find /etc /boot -type f -printf '%p %i %T@ %C@\\n'").splitlines())


def contents(host: Host) -> set[str]:
    """Return all that is in /etc: mode, owner, time and digest of each file, mode and owner of all else."""
    looks = (
        "find /etc -type f -printf '%p %m %u %g %T@\\n'",
        "find /etc -type f -exec sha256sum {} +",
        "find /etc ! -type f -printf '%p %m %u %g %l\\n'",
    )
    return {line for look in looks for line in host.check_output(look).splitlines()}
