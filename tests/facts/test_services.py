"""Who holds NVIDIA's devices."""

from __future__ import annotations

from pathlib import Path

from gpu_provision.facts.record import command, parse
from gpu_provision.facts.services import Holder
from gpu_provision.sandbox import hosts
from gpu_provision.sandbox.host_root import HostSpec

SET_UP = """
mkdir -p /dev /proc/41/fd /proc/42/fd
: >/dev/nvidia0; : >/dev/nvidiactl
ln -s /dev/nvidia0 /proc/41/fd/3; ln -s /dev/nvidiactl /proc/41/fd/4; ln -s /dev/null /proc/41/fd/0
ln -s /dev/nvidia0 /proc/42/fd/9
echo nvidia-persiste >/proc/41/comm; echo python3 >/proc/42/comm
echo '0::/system.slice/nvidia-persistenced.service' >/proc/41/cgroup
echo '0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-abc.scope' >/proc/42/cgroup
"""


def test_holders_are_processes_with_units_and_devices(sandbox: Path) -> None:
    """A service by its unit, a container by its process."""
    host = hosts.ensure(HostSpec(name="held"), sandbox)
    hosts.run(host, SET_UP).check_returncode()
    record = parse(hosts.run(host, command(sections=["services"])).stdout.decode().splitlines())
    assert record
    assert record.services.holders == (
        Holder(41, "nvidia-persiste", "nvidia-persistenced", ("/dev/nvidia0", "/dev/nvidiactl")),
        Holder(42, "python3", "", ("/dev/nvidia0",)),
    )
