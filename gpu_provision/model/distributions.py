"""Where each Kubernetes distribution keeps the files that GPU software has to find.

Sources: k0s' documentation (https://docs.k0sproject.io/stable/runtime/) and the toolkit's settings for it
(https://github.com/NVIDIA/nvidia-container-toolkit/pull/1029); k3s' documentation (https://docs.k3s.io/advanced,
configuring containerd), and RKE2's, which is alike; MicroK8s' documentation
(https://microk8s.io/docs/configuring-services).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
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

_SYSTEM = Places(
    containerd_config="/etc/containerd/config.toml",
    toolkit_config="/etc/containerd/config.toml",
    socket="/run/containerd/containerd.sock",
    units=("containerd",),
    images="/var/lib/containerd",
    marks=("/etc/kubernetes/kubelet.conf", "/var/lib/kubelet/kubeadm-flags.env"),
)

DISTRIBUTIONS: Mapping[str, Places] = {
    "k3s": Places(
        containerd_config="/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
        toolkit_config="/var/lib/rancher/k3s/agent/etc/containerd/config.toml.tmpl",
        socket="/run/k3s/containerd/containerd.sock",
        binary="/var/lib/rancher/k3s/data/current/bin/containerd",
        units=("k3s", "k3s-agent"),
        images="/var/lib/rancher",
        marks=("/var/lib/rancher/k3s/agent", "/var/lib/rancher/k3s/server"),
    ),
    "rke2": Places(
        containerd_config="/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
        toolkit_config="/var/lib/rancher/rke2/agent/etc/containerd/config.toml.tmpl",
        socket="/run/k3s/containerd/containerd.sock",
        binary="/var/lib/rancher/rke2/bin/containerd",
        units=("rke2-server", "rke2-agent"),
        images="/var/lib/rancher",
        marks=("/var/lib/rancher/rke2/agent", "/var/lib/rancher/rke2/server"),
    ),
    "microk8s": Places(
        containerd_config="/var/snap/microk8s/current/args/containerd.toml",
        toolkit_config="/var/snap/microk8s/current/args/containerd-template.toml",
        socket="/var/snap/microk8s/common/run/containerd.sock",
        binary="/snap/microk8s/current/bin/containerd",
        units=("snap.microk8s.daemon-containerd",),
        kubelet_root="/var/snap/microk8s/common/var/lib/kubelet",
        images="/var/snap/microk8s/common",
        marks=("/var/snap/microk8s/current/args/containerd-template.toml",),
    ),
    "k0s": Places(
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


def places_of(distribution: str) -> Places:
    """Return where a distribution keeps its files; those of a system's own containerd for any other."""
    return DISTRIBUTIONS.get(distribution, _SYSTEM)
