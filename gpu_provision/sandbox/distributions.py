"""Distributions of Kubernetes that bring a containerd of their own, which keeps its files elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
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
    lasting: str
    socket: str
    process: str


_ALL = (
    Distribution(
        name="k3s",
        config="/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
        lasting="/var/lib/rancher/k3s/agent/etc/containerd/config.toml.tmpl",
        socket="/run/k3s/containerd/containerd.sock",
        process="k3s-agent",
    ),
    Distribution(
        name="rke2",
        config="/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
        lasting="/var/lib/rancher/rke2/agent/etc/containerd/config.toml.tmpl",
        socket="/run/k3s/containerd/containerd.sock",
        process="rke2",
    ),
    Distribution(
        name="k0s",
        config="/etc/k0s/containerd.toml",
        lasting="/etc/k0s/containerd.d/nvidia.toml",
        socket="/run/k0s/containerd.sock",
        process="k0s",
    ),
)


def distribution_of(kubelet: str) -> Distribution | None:
    """Return what a kubelet's version says, as in ``v1.31.4+k3s1``; None for a plain one."""
    build = kubelet.partition("+")[2]
    return next((each for each in _ALL if build.startswith(each.name)), None)


DISTRIBUTIONS: Mapping[str, Distribution] = {each.name: each for each in _ALL}
"""By name."""
