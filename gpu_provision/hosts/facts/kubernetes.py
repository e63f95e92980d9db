"""Which distribution of Kubernetes runs here, and how its kubelet is set up."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpu_provision.hosts.facts.parser import SectionOutput
from gpu_provision.model.hosts import (
    DISTRIBUTIONS,
    KUBEADM,
    OTHER,
    DistributionPaths,
    paths_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubernetes:
    """The node's side of Kubernetes.

    Attributes:
        distribution: ``kubeadm``, ``k3s``, ``rke2``, ``microk8s``, ``k0s``; ``other`` for a kubelet of unknown
            origin; empty for no Kubernetes.
        running: Whether its kubelet, or the process that holds it, runs.
        kubelet_root: Root directory of the kubelet.
        runtime_endpoint: Path of the socket in the kubelet's settings; empty if they name none.
        cgroup_driver: ``systemd`` or ``cgroupfs`` in the kubelet's settings; empty if they name none.
        node_name: Name of the node in the kubelet's settings; empty for the host's own.
        refuses_swap: Whether the kubelet does not start on a host that swaps; None if unknown.
    """

    distribution: str = ""
    running: bool = False
    kubelet_root: str = ""
    runtime_endpoint: str = ""
    cgroup_driver: str = ""
    node_name: str = ""
    refuses_swap: bool | None = None

    @property
    def places(self) -> DistributionPaths:
        """Where this distribution keeps its files."""
        return paths_of(self.distribution)

    @property
    def socket(self) -> str:
        """The runtime's socket that the kubelet uses; empty without Kubernetes."""
        return self.runtime_endpoint or (self.places.socket if self.distribution else "")


_SWITCH = "fail-swap-on"


_OWNERS = {
    **dict.fromkeys(("k3s", "k3s-server", "k3s-agent"), "k3s"),
    **dict.fromkeys(("rke2", "rke2-server", "rke2-agent"), "rke2"),
    "kubelite": "microk8s",
    "k0s": "k0s",
}
"""Process -> the distribution that it belongs to."""


def read_kubernetes(output: SectionOutput) -> Kubernetes:
    """Read the section: a running process tells more than files that an earlier installation left."""
    processes = output.all("process")
    distribution = _distribution(output, processes)
    flags = _flags(output)
    settings = dict(re.findall(r"^(\w+):\s*\"?([^\"\s]+)", "\n".join(output.all("setting")), re.MULTILINE))
    root = flags.get("root-dir") or (paths_of(distribution).kubelet_root if distribution else "")
    endpoint = flags.get("container-runtime-endpoint") or settings.get("containerRuntimeEndpoint", "")
    return Kubernetes(
        distribution=distribution,
        running=bool(processes),
        kubelet_root=root,
        runtime_endpoint=endpoint.removeprefix("unix://"),
        cgroup_driver=flags.get("cgroup-driver") or settings.get("cgroupDriver", ""),
        node_name=flags.get("hostname-override") or flags.get("node-name", ""),
        refuses_swap=_refuses_swap(distribution, output, flags.get(_SWITCH) or settings.get("failSwapOn", "")),
    )


def _refuses_swap(distribution: str, output: SectionOutput, told: str) -> bool | None:
    """Read the kubelet's setting; without one it refuses to swap, but distributions other than kubeadm set one."""
    if told:
        return told != "false"
    return True if distribution in {KUBEADM, OTHER} and output.has("configured") else None


def _distribution(output: SectionOutput, processes: list[str]) -> str:
    by_process = next((_OWNERS[name] for name in processes if name in _OWNERS), "")
    if by_process:
        return by_process
    marks = [line.partition(" ")[0] for line in output.all("mark")]
    if KUBEADM in marks and "kubelet" in processes:
        return KUBEADM
    unknown = OTHER if processes or output.has("kubelet") else ""
    return next((name for name in DISTRIBUTIONS if name in marks), unknown)


def _flags(output: SectionOutput) -> dict[str, str]:
    """Return the flags that are set, without dashes; a running process counts more than a file."""
    lines = (_without_variables(line) for line in output.all("flag"))
    pairs = (line.partition(" ")[2].removeprefix("--").partition("=") for line in reversed(list(lines)))
    return {name: value.strip("\"'") for name, _, value in pairs if value}


_SNAP = {"SNAP_COMMON": "/var/snap/microk8s/common", "SNAP_DATA": "/var/snap/microk8s/current"}


def _without_variables(line: str) -> str:
    """Write out the variables that MicroK8s' files of arguments hold."""
    return re.sub(r"\$\{?(SNAP_COMMON|SNAP_DATA)\}?", lambda found: _SNAP[found[1]], line)
