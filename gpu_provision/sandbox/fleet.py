"""Fleets: the simulated machines of a sandbox, their GPU models, and how long things take on them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from gpu_provision.sandbox.faults import NodeFault
from gpu_provision.sandbox.openshift_releases import OpenShiftRelease
from gpu_provision.sandbox.operand_rules import GPU_MODELS, GpuModel, Mig


@cache
def models() -> dict[str, GpuModel]:
    """Return every model under its name and under each of its aliases."""
    return {known_as: model for model in GPU_MODELS for known_as in (model.name, *model.aliases)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """How long things take on a machine, in seconds; ``speed`` divides them all.

    Attributes:
        speed: 2 makes everything twice as fast.
        image_pull: Pulling an image that the machine does not have yet.
        container_start: Between the image and the running container.
        driver_build: Building and loading the driver.
        toolkit_install: Installing the container toolkit.
        vectoradd: One run of the CUDA sample.
        probe: What one second of a probe's initial delay costs.
        retry: How long a waiter or a retry of the kubelet pauses; stands for the 5 seconds of the real ones.
        back_off: First pause before a crashed container starts again; doubles up to 30 times itself.
        reboot: How long a machine is away while it reboots.
        render_delay: How long the Machine Config Operator waits for further changes before it renders a configuration.
        drain_retry: How long the Machine Config Operator waits before it drains a node again.
        termination: Longest grace that a container takes to end.
        lease: Between two heartbeats of a node; not divided by ``speed``.
    """

    speed: float = 1.0
    image_pull: float = 0.5
    container_start: float = 0.05
    driver_build: float = 4.0
    toolkit_install: float = 1.0
    vectoradd: float = 0.5
    probe: float = 0.0
    retry: float = 0.5
    back_off: float = 1.0
    reboot: float = 3.0
    render_delay: float = 5.0
    drain_retry: float = 5.0
    termination: float = 0.2
    lease: float = 10.0

    def scale(self, seconds: float) -> float:
        """Return a duration as this fleet lives it."""
        return seconds / self.speed


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSpec:
    """One simulated machine as the fleet declares it.

    Attributes:
        os: Identifier and version in one word, such as ``ubuntu22.04``.
        runtime: Container runtime as a node reports it, such as ``containerd://1.7.27``.
        gpu: Model of its GPUs; None for a machine without.
        mig: The MIG devices of each GPU; None without MIG.
        host: What the simulated host has besides: ``driver`` (version of a driver installed on the host),
            ``nouveau``, ``modules``, ``builtin``, ``mellanox`` (a network card for RDMA); read by the
            simulation of hosts too.
        release: The release of OpenShift whose RHCOS it runs; None on every other machine.
    """

    name: str
    os: str = "ubuntu22.04"
    kernel: str = ""
    architecture: str = "amd64"
    runtime: str = "containerd://1.7.27"
    kubelet: str = "v1.34.1"
    cpus: int = 16
    memory: str = "64Gi"
    pods: int = 110
    gpu: GpuModel | None = None
    gpus: int = 0
    mig: Mig | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Mapping[str, Any], ...] = ()
    roles: tuple[str, ...] = ()
    host: Mapping[str, Any] = field(default_factory=dict)
    release: OpenShiftRelease | None = None

    def on_release(self, release: OpenShiftRelease) -> MachineSpec:
        """Return the machine with the RHCOS of a release, and with its kubelet and CRI-O."""
        return replace(
            self,
            release=release,
            os=release.os,
            kernel=release.kernel_on(self.architecture),
            kubelet=release.kubelet,
            runtime=release.runtime,
        )

    @property
    def os_id(self) -> str:
        """The identifier without the version, ``ubuntu``; ``os_version`` is the rest, ``22.04``."""
        return self.os.rstrip("0123456789.")

    @property
    def os_version(self) -> str:
        """The version alone."""
        return self.os[len(self.os_id) :]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenShiftSpec:
    """An OpenShift cluster.

    Attributes:
        release: The release that is installed at first.
        proxy: The cluster-wide proxy: ``http``, ``https`` and ``no_proxy``.
        trusted_ca: PEM text of certificates that the cluster trusts besides the usual ones.
        pools: Names of custom MachineConfigPools; nodes with a role of such a name are in it.
    """

    release: OpenShiftRelease
    proxy: Mapping[str, str] = field(default_factory=dict)
    trusted_ca: str = ""
    pools: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The machines of one sandbox.

    Attributes:
        name: Name of the sandbox.
        openshift: What makes the cluster an OpenShift cluster; None for plain Kubernetes.
        source: The file it came from; empty for a fleet made in memory.
        events: Whether nodes record every event or only the ones about problems.
    """

    name: str
    machines: tuple[MachineSpec, ...]
    timings: Timings = field(default_factory=Timings)
    faults: tuple[NodeFault, ...] = ()
    events: str = "all"
    source: str = ""
    openshift: OpenShiftSpec | None = None


def fleet_digest(fleet: Fleet) -> str:
    """Return a digest of what a fleet says, wherever it came from."""
    return hashlib.sha256(repr(replace(fleet, source="")).encode()).hexdigest()[:16]
