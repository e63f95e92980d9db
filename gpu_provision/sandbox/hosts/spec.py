"""What a simulated host is when it is new, and the distributions of Kubernetes that bring a containerd of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # fleets need YAML, which would weigh on everybody who only runs a command
    from gpu_provision.sandbox.fleet import MachineSpec

ARCHITECTURES: Mapping[str, str] = {"amd64": "x86_64", "arm64": "aarch64"}
"""What Kubernetes calls them, and what a kernel does."""

# As on the kernels of Debian and Ubuntu: I2C is part of the kernel itself, IPMI is a module.
BUILT_IN = ("i2c_core", "ext4", "nvme_core")
AVAILABLE = ("ipmi_msghandler", "ipmi_devintf", "ipmi_si", "overlay", "br_netfilter")
AT_START = ("overlay", "br_netfilter")
DISK = 512 * 1024 * 1024
"""KiB of a host's disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpec:
    """What a simulated host is when it is new.

    Attributes:
        os_id: As /etc/os-release has it: ``ubuntu``.
        os_version: As /etc/os-release has it: ``22.04``.
        kernel: What ``uname -r`` prints.
        architecture: What ``uname -m`` prints.
        gpus: (PCI device id, PCI class) of each GPU, in hexadecimal digits: ``("1eb8", "0302")``.
        modules: Kernel modules that its system loads by itself; with a GPU, ``nouveau`` as udev would.
        builtin: Modules that are part of its kernel.
        available: Modules that its kernel has, loaded or not.
        in_use: Loaded modules that cannot be unloaded, as nouveau when the console is on it.
        runtime: Container runtime as its node reports it, ``containerd://1.7.27``.
        kubelet: Version of its kubelet, which also names the distribution: ``v1.31.4+k3s1``.
        driver: Version of an NVIDIA driver that is installed on the host; empty for none.
        secure_boot: Whether its firmware says that Secure Boot is on.
        headers: Whether the archives still have the headers of its kernel.
        mellanox: Whether it has a network card of Mellanox.
        disk_free: KiB that are free on its disk.
        reachable: Whether it can be connected to.
        os_release: Fields of /etc/os-release besides the usual ones; RHCOS has some.
    """

    name: str
    os_id: str = "ubuntu"
    os_version: str = "22.04"
    kernel: str = "5.15.0-122-generic"
    architecture: str = "x86_64"
    gpus: tuple[tuple[str, str], ...] = ()
    modules: tuple[str, ...] = AT_START
    builtin: tuple[str, ...] = BUILT_IN
    available: tuple[str, ...] = AVAILABLE
    in_use: tuple[str, ...] = ()
    runtime: str = "containerd://1.7.27"
    kubelet: str = "v1.34.1"
    driver: str = ""
    secure_boot: bool = False
    headers: bool = True
    mellanox: bool = False
    disk_free: int = DISK // 2
    reachable: bool = True
    os_release: Mapping[str, str] = field(default_factory=dict)


def to_host_spec(machine: MachineSpec) -> HostSpec:
    """Read a machine of a fleet; its ``host`` says how the system on it differs from the usual.

    Its keys: ``nouveau`` (true: loaded), ``modules`` (loaded besides the usual), ``builtin`` and ``available``
    (what the kernel has instead of the usual), ``in_use``, ``driver`` (version of one on the host),
    ``secure_boot``, ``headers`` (false: the archives have none of its kernel), ``mellanox`` (a network card of that
    vendor), ``disk_free`` (KiB), ``reachable`` (false: connections time out).
    """
    host = machine.host
    nouveau = ("nouveau",) if host.get("nouveau") else ()
    gpu = ((machine.gpu.device, machine.gpu.pci_class),) if machine.gpu else ()
    return HostSpec(
        name=machine.name,
        os_id=machine.os_id,
        os_version=machine.os_version,
        kernel=machine.kernel,
        architecture=ARCHITECTURES.get(machine.architecture, machine.architecture),
        gpus=gpu * machine.gpus,
        modules=tuple(dict.fromkeys((*AT_START, *nouveau, *host.get("modules", ())))),
        builtin=tuple(host.get("builtin", BUILT_IN)),
        available=tuple(host.get("available", AVAILABLE)),
        in_use=tuple(host.get("in_use", ())),
        runtime=machine.runtime,
        kubelet=machine.kubelet,
        driver=str(host.get("driver", "")),
        secure_boot=bool(host.get("secure_boot")),
        headers=bool(host.get("headers", True)),
        mellanox=bool(host.get("mellanox")),
        disk_free=int(host.get("disk_free", DISK // 2)),
        reachable=bool(host.get("reachable", True)),
        os_release=machine.release.os_release() if machine.release else {},
    )


class Distribution(NamedTuple):
    """What is special about a machine of a distribution.

    Attributes:
        name: As its kubelet's version ends: ``k3s``.
        config: What its containerd reads.
        lasting: What has to be changed for a change to last; may be the same.
        socket: Socket of its containerd.
        process: Name of the process that holds, or starts, its kubelet.
    """

    name: str
    config: str
    persistent_config: str
    socket: str
    process: str


_RANCHER = "/var/lib/rancher/{}/agent/etc/containerd/config.toml{}"
_RANCHER_SOCKET = "/run/k3s/containerd/containerd.sock"
_DISTRIBUTIONS = (
    Distribution("k3s", _RANCHER.format("k3s", ""), _RANCHER.format("k3s", ".tmpl"), _RANCHER_SOCKET, "k3s-agent"),
    Distribution("rke2", _RANCHER.format("rke2", ""), _RANCHER.format("rke2", ".tmpl"), _RANCHER_SOCKET, "rke2"),
    Distribution(
        *("k0s", "/etc/k0s/containerd.toml", "/etc/k0s/containerd.d/nvidia.toml", "/run/k0s/containerd.sock", "k0s")
    ),
)


def find_distribution(kubelet: str) -> Distribution | None:
    """Return what a kubelet's version says, as in ``v1.31.4+k3s1``; None for a plain one."""
    build = kubelet.partition("+")[2]
    return next((each for each in _DISTRIBUTIONS if build.startswith(each.name)), None)
