"""What is expected of a host, and where each Kubernetes distribution keeps its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributionPaths:
    """Files of one distribution.

    Attributes:
        containerd_config: What its containerd reads.
        toolkit_config: What has to be changed so that a change lasts: some write ``containerd_config`` at each start.
        socket: Socket of its containerd.
        binary: Its own containerd; empty where that of the system is used.
        units: Units that restart it, first the one of a server.
        kubelet_root: Root directory of its kubelet.
        images: Directory that images are unpacked into.
        marks: Files that only this distribution has.
    """

    containerd_config: str
    toolkit_config: str
    socket: str
    binary: str = ""
    units: tuple[str, ...]
    kubelet_root: str = "/var/lib/kubelet"
    images: str
    marks: tuple[str, ...]


KUBEADM = "kubeadm"

OTHER = "other"


_SYSTEM = DistributionPaths(
    containerd_config="/etc/containerd/config.toml",
    toolkit_config="/etc/containerd/config.toml",
    socket="/run/containerd/containerd.sock",
    units=("containerd",),
    images="/var/lib/containerd",
    marks=("/etc/kubernetes/kubelet.conf", "/var/lib/kubelet/kubeadm-flags.env"),
)


DISTRIBUTIONS: Mapping[str, DistributionPaths] = {
    "k3s": DistributionPaths(
        containerd_config="/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
        toolkit_config="/var/lib/rancher/k3s/agent/etc/containerd/config.toml.tmpl",
        socket="/run/k3s/containerd/containerd.sock",
        binary="/var/lib/rancher/k3s/data/current/bin/containerd",
        units=("k3s", "k3s-agent"),
        images="/var/lib/rancher",
        marks=("/var/lib/rancher/k3s/agent", "/var/lib/rancher/k3s/server"),
    ),
    "rke2": DistributionPaths(
        containerd_config="/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
        toolkit_config="/var/lib/rancher/rke2/agent/etc/containerd/config.toml.tmpl",
        socket="/run/k3s/containerd/containerd.sock",
        binary="/var/lib/rancher/rke2/bin/containerd",
        units=("rke2-server", "rke2-agent"),
        images="/var/lib/rancher",
        marks=("/var/lib/rancher/rke2/agent", "/var/lib/rancher/rke2/server"),
    ),
    "microk8s": DistributionPaths(
        containerd_config="/var/snap/microk8s/current/args/containerd.toml",
        toolkit_config="/var/snap/microk8s/current/args/containerd-template.toml",
        socket="/var/snap/microk8s/common/run/containerd.sock",
        binary="/snap/microk8s/current/bin/containerd",
        units=("snap.microk8s.daemon-containerd",),
        kubelet_root="/var/snap/microk8s/common/var/lib/kubelet",
        images="/var/snap/microk8s/common",
        marks=("/var/snap/microk8s/current/args/containerd-template.toml",),
    ),
    "k0s": DistributionPaths(
        containerd_config="/etc/k0s/containerd.toml",
        toolkit_config="/etc/k0s/containerd.d/nvidia.toml",
        socket="/run/k0s/containerd.sock",
        binary="/var/lib/k0s/bin/containerd",
        units=("k0sworker", "k0scontroller"),
        kubelet_root="/var/lib/k0s/kubelet",
        images="/var/lib/k0s",
        marks=("/var/lib/k0s/bin", "/etc/k0s/containerd.toml"),
    ),
    KUBEADM: _SYSTEM,
}
"""Distribution -> its files; the first whose marks are found is the one. kubeadm's stand last: others have them too."""


def paths_of(distribution: str) -> DistributionPaths:
    """Return where a distribution keeps its files; those of a system's own containerd for any other."""
    return DISTRIBUTIONS.get(distribution, _SYSTEM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """One node as its inventory declares it, in plain values.

    Attributes:
        node: Its name in Kubernetes.
        pool: Name of its pool.
        os: Declared operating system as in ``ubuntu22.04``; empty for whatever it is.
        gpu_model: Declared model; empty for a node without a GPU.
        gpu_count: Declared number of GPUs; 0 for a node without.
        driver_container: Whether the driver comes as a container; if not, it belongs to the host.
        driver_auto: Whether it is the container only on a host without a usable driver of its own.
        driver_image: Driver image without the tag; empty if the driver belongs to the host.
        driver_version: Version, or a digest that begins with ``sha256:``.
        kernel_module_type: ``auto``, ``open`` or ``proprietary``.
        driver_has_proxy: Whether the driver container has a proxy, or gets its packages from an own repository.
        toolkit: Whether the stack installs the container toolkit.
        toolkit_version: Version of its image, or a digest.
        toolkit_dir: Directory that it is installed in; empty if the stack does not install it.
        toolkit_drop_in: Drop-in file that the toolkit writes for the runtime; empty for its default.
        toolkit_config: Runtime's configuration that the toolkit changes; empty for its default.
        toolkit_socket: Likewise, its socket.
        cdi: Whether GPUs reach containers through CDI.
        blacklist_nouveau: Whether the host phase keeps nouveau away.
        hold_packages: Whether the host phase holds kernel and driver packages.
        kernel_modules: Modules that the host phase loads.
        ask_registry: Whether the registry may be asked for the driver image.
        ignore: Codes of findings that do not stop a run.
    """

    node: str
    pool: str
    os: str = ""
    gpu_model: str = ""
    gpu_count: int = 0
    driver_container: bool = True
    driver_auto: bool = False
    driver_image: str = ""
    driver_version: str = ""
    kernel_module_type: str = "auto"
    driver_has_proxy: bool = False
    toolkit: bool = True
    toolkit_version: str = ""
    toolkit_dir: str = ""
    toolkit_drop_in: str = ""
    toolkit_config: str = ""
    toolkit_socket: str = ""
    cdi: bool = True
    blacklist_nouveau: bool = True
    hold_packages: bool = False
    kernel_modules: tuple[str, ...] = ()
    ask_registry: bool = False
    ignore: tuple[str, ...] = ()

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Expectation:
        """Return the expectation that was written out as plain values, as for pyinfra's host data."""
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in data.items()
        }
        return cls(**values)


class ImageState(StrEnum):
    """What a registry says about an image."""

    PRESENT = "present"
    ABSENT = "absent"
    OTHER_ARCHITECTURE = "other-architecture"  # it is there, but not for this kind of processor
    REFUSED = "refused"  # the registry does not say: credentials are missing or not enough
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class ImageAnswer:
    """A registry's answer: the image asked for, its state, and the registry's own words."""

    reference: str
    state: ImageState
    evidence: str = ""
