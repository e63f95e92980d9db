"""Specs of the driver container, and of the containers beside it that build further modules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpu_provision.model.operand_specs import PULL_POLICIES, ContainerSpec, Image, OperandSpec, timeout_setting
from gpu_provision.model.rollout_policy import UpgradePolicy
from gpu_provision.model.settings import REQUIRED, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupProbe:
    """How long a driver may take to build and load."""

    initial_delay_seconds: int = setting(60, "Seconds before the first probe.", minimum=0)
    period_seconds: int = setting(10, "Seconds between probes.", minimum=1)
    timeout_seconds: int = setting(60, "Timeout of a probe in seconds.", minimum=1)
    failure_threshold: int = setting(120, "Failed probes until the container is restarted.", minimum=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuDirectRdma:
    """GPUDirect RDMA: a container beside the driver loads nvidia-peermem, again after each new network driver."""

    enabled: bool = setting(
        False, "Whether the module is loaded. Its nodes need a network card of NVIDIA (Mellanox) and its driver."
    )
    use_host_mofed: bool = setting(
        False,
        "Whether the driver of the network card (MLNX_OFED, DOCA) is installed on the host. If off, the Network "
        "Operator brings it as a container.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverManagerSpec(ContainerSpec):
    """The init container that unloads the old driver."""

    enabled: bool = True  # no setting: it is always there
    args: tuple[str, ...] = ()  # no setting: it has those of its command
    image_pull_policy: str = setting(
        "", "When the kubelet pulls its image. Default: as that of the driver.", enum=PULL_POLICIES
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualTopology:
    """Topology of the GPUs of a vGPU guest."""

    config: str = setting("", "ConfigMap with the key nvidia-topologyd.conf.", "object_name")


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSpec(OperandSpec):
    """The driver container, which builds and loads the kernel modules.

    ``image.version`` is the driver's version; the operating system's suffix is added per node.
    """

    enabled: bool = setting(
        True,
        "Whether the driver runs as a container. `false`: the hosts have a host driver. `auto`: a node with a "
        "working host driver keeps it, other nodes get the container; see docs/hosts.md.",
        type=["boolean", "string"],
        enum=[True, False, "auto"],
    )
    image: Image = setting(REQUIRED, image="driver_version")
    use_precompiled: bool = setting(
        False,
        "Whether images with kernel modules for one kernel each are used, instead of a build on the node. `version` is "
        "a branch then, such as `595`; each kernel has a DaemonSet of its own.",
    )
    timeout: int = timeout_setting(1200)
    manager: DriverManagerSpec = setting(REQUIRED, required=False)
    prefer_host: bool = False  # whether a node with a usable driver of its own gets no container
    kernel_module_type: str = setting(
        "auto", "Kernel modules to build: `auto` leaves the choice to the driver.", enum=["auto", "open", "proprietary"]
    )
    startup_probe: StartupProbe = setting(StartupProbe())
    repo_config: str = setting(
        "",
        "ConfigMap with package source files for the driver's build.",
        "object_name",
        reference="repoConfig.configMapName",
    )
    cert_config: str = setting(
        "", "ConfigMap with certificates that the package sources need.", "object_name", reference="certConfig.name"
    )
    kernel_module_config: str = setting(
        "",
        "ConfigMap with parameters of the kernel modules, one file per module, such as nvidia.conf.",
        "object_name",
        reference="kernelModuleConfig.name",
    )
    licensing_config: str = setting(
        "",
        "Secret with gridd.conf and a client token, for vGPU guests.",
        "object_name",
        reference="licensingConfig.secretName",
    )
    licensing_nls_enabled: bool = setting(
        True,
        "Whether the licence is from the NVIDIA License System, so that the Secret has the key "
        "`client_configuration_token.tok`. If off, it has gridd.conf alone.",
        reference="licensingConfig.nlsEnabled",
    )
    virtual_topology: VirtualTopology = setting(VirtualTopology())
    rdma: GpuDirectRdma = setting(GpuDirectRdma())
    secret_env: str = setting(
        "",
        "Secret whose keys are environment variables of the driver container, and of those that build modules beside "
        "it. gpu-provision never reads it.",
        "object_name",
    )
    labels: Mapping[str, str] = setting({}, "Labels of the driver's pods, beside `daemonsets.labels`.", "labels")
    annotations: Mapping[str, str] = setting(
        {}, "Annotations of the driver's pods, beside `daemonsets.annotations`.", "annotations"
    )
    tolerations: tuple[Mapping[str, Any], ...] = setting(
        (), "Tolerations of the driver's pods, beside `daemonsets.tolerations`.", "tolerations"
    )
    priority_class_name: str = setting(
        "", "Priority class of the driver's pods. Default: `daemonsets.priority_class_name`.", "object_name"
    )
    upgrade_policy: UpgradePolicy = setting(
        UpgradePolicy(),
        "How the driver of a node is replaced; names and defaults are those of the GPU Operator. Pools without a "
        "policy share the limits of the inventory's policy; a pool with a policy has its own limits.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GdsSpec(ContainerSpec):
    """GPUDirect Storage: a container beside the driver builds and loads nvidia-fs.

    It has the resources of the driver, and as tag the version with the operating system's suffix.
    """

    enabled: bool = setting(False, "Whether nodes with a driver container load nvidia-fs.")


@dataclass(frozen=True, slots=True, kw_only=True)
class GdrcopySpec(ContainerSpec):
    """GDRCopy: a container beside the driver builds and loads gdrdrv.

    It has the resources of the driver, and as tag the version with the operating system's suffix.
    """

    enabled: bool = setting(False, "Whether nodes with a driver container load gdrdrv.")


MODULE_SECTIONS = ("gds", "gdrcopy")
"""Sections of the containers that build modules beside the driver; an NVIDIADriver has them for itself."""
