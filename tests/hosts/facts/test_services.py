"""Who holds NVIDIA's devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_provision.hosts.facts.host import command, parse
from gpu_provision.hosts.facts.system import DeviceUser, Services
from gpu_provision.sandbox import hosts
from gpu_provision.sandbox.hosts.spec import HostSpec

SET_UP = """
mkdir -p /dev /proc/41/fd /proc/42/fd
: >/dev/nvidia0; : >/dev/nvidiactl
ln -s /dev/nvidia0 /proc/41/fd/3; ln -s /dev/nvidiactl /proc/41/fd/4; ln -s /dev/null /proc/41/fd/0
ln -s /dev/nvidia0 /proc/42/fd/9
echo nvidia-persiste >/proc/41/comm; echo python3 >/proc/42/comm
echo '0::/system.slice/nvidia-persistenced.service' >/proc/41/cgroup
echo '0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-abc.scope' >/proc/42/cgroup
"""


def read_services(sandbox: Path, more: str = ":") -> Services:
    """Return what the fact says of a host with holders of devices, and of what else was done there."""
    host = hosts.ensure(HostSpec(name="held"), sandbox)
    hosts.run(host, f"{SET_UP}\n{more}").check_returncode()
    record = parse(hosts.run(host, command(sections=["services"])).stdout.decode().split("\n"))
    assert record
    return record.services


def test_holders_are_processes_with_units_and_devices(sandbox: Path) -> None:
    assert read_services(sandbox).holders == (
        DeviceUser(41, "nvidia-persiste", "nvidia-persistenced", ("/dev/nvidia0", "/dev/nvidiactl")),
        DeviceUser(42, "python3", "", ("/dev/nvidia0",)),
    )


def test_process_that_ends_meanwhile_is_no_holder(sandbox: Path) -> None:
    assert [holder.pid for holder in read_services(sandbox, "rm /proc/42/comm").holders] == [41]


@pytest.mark.parametrize(
    "name",
    ["", " ", "a ] b", "] [end]", r"\n[end]", r"\c", "-n", "%s", "a\x1cb", "caf\N{LATIN SMALL LETTER E WITH ACUTE}"],
)
def test_process_names_itself_as_it_likes(sandbox: Path, name: str) -> None:
    held = read_services(sandbox, f"printf '%s\\n' '{name}' >/proc/41/comm").holders
    assert [(holder.pid, holder.command) for holder in held] == [(41, name.strip()), (42, "python3")]


def test_file_whose_path_holds_an_arrow_is_no_device(sandbox: Path) -> None:
    path = "/tmp/x-> /dev/nvidia0"  # noqa: S108 - of a simulated host
    more = f"mkdir -p '{path}' /proc/43/fd; ln -s '{path}' /proc/43/fd/3; echo x >/proc/43/comm; : >/proc/43/cgroup"
    assert [holder.pid for holder in read_services(sandbox, more).holders] == [41, 42]
