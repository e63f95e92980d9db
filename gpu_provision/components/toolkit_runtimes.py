"""Container runtimes that the toolkit configures, and their files on the host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gpu_provision.components.objects import is_at_least
from gpu_provision.model.cluster import Target
from gpu_provision.model.hosts import DISTRIBUTIONS, KUBEADM

CONTAINERD = "containerd"
CRIO = "cri-o"
DOCKER = "docker"

# Distributions whose containerd binary the toolkit needs: https://github.com/NVIDIA/nvidia-container-toolkit/pull/1029.
_NEEDS_EXECUTABLE = frozenset({"k0s"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """A container runtime: its name in the toolkit, and its files on the host; empty for none.

    ``cdi_since`` is its first version with CDI, ``nri_since`` that with NRI, by the release notes of containerd and
    CRI-O. Docker uses the nvidia runtime in any version, and has no NRI. ``executable`` is the program that prints its
    configuration, if it is not the default one. ``config_env`` and ``socket_env`` are the GPU Operator's settings for
    other paths, such as those of k3s.
    """

    name: str
    toolkit_name: str
    config: str
    config_env: str
    drop_in: str = ""
    socket: str = ""
    socket_env: str = ""
    cdi_since: tuple[int, int] = (0, 0)
    nri_since: tuple[int, int] | None = None
    executable: str = ""


# The defaults of the GPU Operator 26.7.
_RUNTIMES: Mapping[str, Runtime] = {
    CONTAINERD: Runtime(
        name=CONTAINERD,
        toolkit_name="containerd",
        config="/etc/containerd/config.toml",
        config_env="CONTAINERD_CONFIG",
        drop_in="/etc/containerd/conf.d/99-nvidia.toml",
        socket="/run/containerd/containerd.sock",
        socket_env="CONTAINERD_SOCKET",
        cdi_since=(1, 7),
        nri_since=(1, 7),
    ),
    CRIO: Runtime(
        name=CRIO,
        toolkit_name="crio",
        config="/etc/crio/config.toml",
        config_env="CRIO_CONFIG",
        drop_in="/etc/crio/crio.conf.d/99-nvidia.conf",
        cdi_since=(1, 23),
        nri_since=(1, 26),
    ),
    DOCKER: Runtime(
        name=DOCKER,
        toolkit_name="docker",
        config="/etc/docker/daemon.json",
        config_env="DOCKER_CONFIG",
        socket="/var/run/docker.sock",
        socket_env="DOCKER_SOCKET",
    ),
}

# Distributions with a containerd of their own, with another configuration and socket. The drop-in has the same path,
# which the configuration imports.
_DISTRIBUTION_RUNTIMES: Mapping[str, Runtime] = {
    name: replace(
        _RUNTIMES[CONTAINERD],
        name=name,
        config=places.toolkit_config,
        socket=places.socket,
        executable=places.binary if name in _NEEDS_EXECUTABLE else "",
    )
    for name, places in DISTRIBUTIONS.items()
    if name != KUBEADM
}

RUNTIMES: Mapping[str, Runtime] = {**_RUNTIMES, **_DISTRIBUTION_RUNTIMES}
"""Name, as in the label of nodes -> the runtime."""


def runtime_of(target: Target) -> str:
    """Return the container runtime of a node.

    If none, or an unknown one, is reported, it is CRI-O on OpenShift, elsewhere containerd. The containerd of a
    Kubernetes distribution has the distribution's name.
    """
    reported = target.facts.container_runtime if target.facts else ""
    distribution = target.facts.distribution if target.facts else ""
    if distribution in _DISTRIBUTION_RUNTIMES and reported not in {CRIO, DOCKER}:
        return distribution
    return reported if reported in RUNTIMES else CRIO if target.on_openshift else CONTAINERD


def supports_cdi(target: Target) -> bool:
    """Whether a node's runtime supports CDI; an unknown version counts as new."""
    return is_at_least(_version_of(target), RUNTIMES[runtime_of(target)].cdi_since)


def _version_of(target: Target) -> str:
    return target.facts.container_runtime_version if target.facts else ""


_NEWEST_SCHEMA_SINCE = (2, 3)


def shows_newest_schema(target: Target) -> bool:
    """Whether ``config dump`` of a node's containerd shows a newer schema than the file may have."""
    version = _version_of(target)
    is_containerd = RUNTIMES[runtime_of(target)].toolkit_name == CONTAINERD
    return is_containerd and bool(version) and is_at_least(version, _NEWEST_SCHEMA_SINCE)


def supports_nri(target: Target) -> bool:
    """Whether a node's runtime has NRI, which may be turned off; an unknown version counts as new."""
    since = RUNTIMES[runtime_of(target)].nri_since
    return since is not None and is_at_least(_version_of(target), since)


def main_runtime(targets: Iterable[Target]) -> str:
    """Return the runtime whose DaemonSet has the plain name: containerd if any node runs it."""
    names = {runtime_of(target) for target in targets} or {CONTAINERD}
    return CONTAINERD if CONTAINERD in names else min(names)


def additional_runtimes(targets: Iterable[Target]) -> tuple[str, ...]:
    """Return the other runtimes, each of which gets a DaemonSet of its own."""
    targets = tuple(targets)
    return tuple(sorted({runtime_of(target) for target in targets} - {main_runtime(targets)}))


def needs_no_class(targets: Iterable[Target], *, cdi: bool) -> bool:
    """Whether GPUs reach operands without a runtime class: by CRI-O's hook, without CDI."""
    return not cdi and {runtime_of(target) for target in targets} == {CRIO}
