"""Specs of the components: one frozen, fully resolved record each, with the images of a release.

A field that is a `setting` is a key of the inventory. The first paragraph of a docstring describes the section.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpu_provision.model.driver_specs import DriverSpec, GdrcopySpec, GdsSpec
from gpu_provision.model.monitoring_specs import DcgmExporterSpec, DcgmSpec, NodeStatusExporterSpec, OperatorMetrics
from gpu_provision.model.operand_specs import DRIVER_CONTAINER_ROOT, OperandSpec, SecretKey, timeout_setting
from gpu_provision.model.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class NfdPart:
    """Where the pods of a part of Node Feature Discovery run."""

    node_selector: Mapping[str, str] = setting({}, "Labels of the nodes that its pods run on.", "labels")
    affinity: Mapping[str, Any] = setting({}, kind="affinity")


@dataclass(frozen=True, slots=True, kw_only=True)
class NfdDeployment(NfdPart):
    """A part of Node Feature Discovery that is a Deployment."""

    replicas: int = setting(1, "Number of its pods.", minimum=1, maximum=100)
    resources: Mapping[str, Any] = setting({}, kind="resources")
    tolerations: tuple[Mapping[str, Any], ...] = setting((), "Tolerations beyond its own.", "tolerations")


@dataclass(frozen=True, slots=True, kw_only=True)
class NfdGarbageCollector(NfdDeployment):
    """Its garbage collector, which removes NodeFeatures of nodes that are gone."""

    enabled: bool = setting(True, "Whether it is installed. If off, NodeFeatures of removed nodes stay.")


@dataclass(frozen=True, slots=True, kw_only=True)
class NfdSpec(OperandSpec):
    """Node Feature Discovery, which labels the nodes that have a GPU."""

    enabled: bool = setting(
        True, "Whether Node Feature Discovery is installed. If off, another installation has to label the nodes."
    )
    host_network: bool = False
    namespace: str = setting("node-feature-discovery", "Namespace of Node Feature Discovery.", "name")
    worker_tolerations: tuple[Mapping[str, Any], ...] = setting(
        (), "Tolerations of the worker beyond its own, which cover GPU nodes and the control plane.", "tolerations"
    )
    priority_class_name: str = setting("system-node-critical", "Priority class of its pods.", "object_name")
    worker_config: Mapping[str, Any] = setting(
        {},
        "Configuration of the worker, as nfd-worker.conf has it. It is merged over the default, key by key; lists are "
        "replaced. Labels of GPUs and operating systems must remain.",
        "nfd_config",
        examples=[{"sources": {"cpu": {"cpuid": {"attributeBlacklist": ["ADX"]}}}}],
    )
    master_config: Mapping[str, Any] = setting(
        {},
        "Configuration of the master, as nfd-master.conf has it. It is merged over the default, key by key; lists are "
        "replaced. `extraLabelNs` must have nvidia.com.",
        "nfd_config",
        examples=[{"extraLabelNs": ["nvidia.com", "example.com"]}],
    )
    nodefeaturerules: bool = setting(
        False,
        "Whether nodes are labelled `nvidia.com/gdrcopy.capable`, `gds.capable` and `peermem.capable` where the kernel "
        "has the module. The rules of the GPU Operator's NodeFeatureRule are in the worker's configuration here.",
    )
    worker: NfdPart = setting(NfdPart(), "The worker, a DaemonSet. `resources` and `args` of `nfd` are its own.")
    master: NfdDeployment = setting(NfdDeployment(), "The master, which labels the nodes.")
    gc: NfdGarbageCollector = setting(NfdGarbageCollector())


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolkitSpec(OperandSpec):
    """The container toolkit, which configures the container runtime for GPUs."""

    enabled: bool = setting(
        True, "Whether the container toolkit is installed. If off, the hosts need their own toolkit and a host driver."
    )
    install_dir: str = setting("/usr/local/nvidia", "Directory on the host for the toolkit.", "host_path")


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationSettings:
    """Settings of one validation."""

    env: Mapping[str, str | SecretKey] = setting(
        {}, "Environment variables of this validation alone. They override `validator.env`.", "env"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatorSpec(OperandSpec):
    """The operator validator, and the image of the vectorAdd pods. Cannot be off."""

    enabled: bool = True
    args: tuple[str, ...] = setting(
        (), "Arguments of `sh -c` in the main container, in place of its script, which only waits.", "args"
    )
    driver: ValidationSettings = setting(
        ValidationSettings(), "The validation of the driver, in the pods of the toolkit and of the validator."
    )
    toolkit: ValidationSettings = setting(
        ValidationSettings(), "The validation of the toolkit, and the containers of other operands that wait for it."
    )
    cuda: ValidationSettings = setting(ValidationSettings(), "The vectorAdd in the validator's pod.")
    plugin: ValidationSettings = setting(
        ValidationSettings(), "The validation that the node offers GPUs. It starts no pods; a run does."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginConfigs:
    """Configurations of the device plugin, such as for time slicing and MPS: docs/sharing.md."""

    name: str = setting(
        "",
        "ConfigMap of the configurations. With `data` it gets this name, by default `nvidia-device-plugin-config`; "
        "without, it has to exist.",
        "object_name",
        reference=None,
    )
    default: str = setting(
        "",
        "Configuration of nodes without the label `nvidia.com/device-plugin.config`. Without a default, these nodes "
        "share nothing.",
        "plugin_config_name",
        reference=None,
    )
    data: Mapping[str, Mapping[str, Any]] = setting({}, kind="plugin_configs", reference=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsSection:
    """CUDA MPS, by which pods share a GPU."""

    root: str = setting("/run/nvidia/mps", "Directory of MPS on the hosts.", "host_path")


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePluginSpec(OperandSpec):
    """The device plugin, which makes nvidia.com/gpu allocatable."""

    config: PluginConfigs = setting(PluginConfigs(), reference=None)
    config_name: str = setting("", "Short form of `config.name`.", "object_name", reference="config.name")
    config_default: str = setting("", "Short form of `config.default`.", "config_map_key", reference="config.default")
    mps: MpsSection = setting(MpsSection())

    @property
    def config_map(self) -> str:
        """Name of the ConfigMap of configurations; empty without any, as of a plugin that is off and would make it."""
        if self.config.data and not self.enabled:
            return ""
        return self.config_name or self.config.name or ("nvidia-device-plugin-config" if self.config.data else "")

    @property
    def default_config(self) -> str:
        """The configuration of nodes without a choice; empty for none."""
        return self.config_default or self.config.default


@dataclass(frozen=True, slots=True, kw_only=True)
class GfdSpec(OperandSpec):
    """GPU Feature Discovery, which labels nodes with properties of their GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigManagerConfig:
    """Configurations of the MIG manager besides those that it has for every GPU."""

    name: str = setting(
        "",
        "ConfigMap with the key config.yaml. Without `data`, one that exists; with it, the one that is made.",
        "object_name",
    )
    data: Mapping[str, Any] = setting({}, kind="mig_configs", reference=None, shown=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuClientsConfig:
    """Services of the host that use GPUs, which the MIG manager stops while it works on a host driver."""

    name: str = setting(
        "", "ConfigMap with the key clients.yaml. Default: one with the services of DGX systems.", "object_name"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MigManagerSpec(OperandSpec):
    """The MIG manager, which divides GPUs into MIG devices. It runs if a pool declares `mig`."""

    enabled: bool = setting(
        False,
        "Whether it runs although no pool declares `mig`: on nodes whose GPUs are capable of MIG. It then follows the "
        "label `nvidia.com/mig.config` that other programs write.",
    )
    config: MigManagerConfig = setting(MigManagerConfig())
    gpu_clients_config: GpuClientsConfig = setting(GpuClientsConfig())
    timeout: int = timeout_setting(900)


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSetSettings:
    """Settings of the DaemonSets of all operands."""

    labels: Mapping[str, str] = setting(
        {},
        "Labels of all operands' pods. Driver pods that run get and lose them without a restart; other pods restart, "
        "node by node. `app` and `app.kubernetes.io/part-of` cannot be changed.",
        "labels",
    )
    annotations: Mapping[str, str] = setting(
        {},
        "Annotations of all operands' pods; driver pods get and lose them without a restart. Not for secrets: plans "
        "and records show them.",
        "annotations",
    )
    tolerations: tuple[Mapping[str, Any], ...] = setting(
        ({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},),
        "Tolerations of all operands; they replace the default.",
        "tolerations",
    )
    priority_class_name: str = setting("system-node-critical", "Priority class of the operands' pods.", "object_name")
    pod_security_context: Mapping[str, Any] = setting(
        {}, "Security context of all operands' pods: defaults of their containers.", "pod_security_context"
    )
    update_strategy: str = setting(
        "RollingUpdate",
        "How the pods of operands are replaced. `OnDelete`: a pod with the previous content counts as ready, and goes "
        "on until you delete it. The driver and the validator are not affected.",
        enum=["RollingUpdate", "OnDelete"],
    )
    max_unavailable: int | str = setting(
        1,
        "How many pods of a DaemonSet may be replaced at the same time: a number, or a percentage of the nodes. This "
        "value does not apply to the driver, which is replaced by a rollout or by hand.",
        "percentage_of_pods",
        reference="rollingUpdate.maxUnavailable",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPaths:
    """Directories of the hosts, for systems that have them elsewhere: docs/hosts.md."""

    root_fs: str = setting(
        "/",
        "Root file system of the hosts. Operands run programs of the host in it, by chroot.",
        "root_path",
        reference="rootFS",
    )
    driver_install_dir: str = setting(
        DRIVER_CONTAINER_ROOT,
        "Root of the files of a host driver that is not in the host's own directories, such as "
        "/home/kubernetes/bin/nvidia, which is the default if all GPU nodes are of GKE and have host drivers. The "
        "driver container always installs into /run/nvidia/driver.",
        "host_path",
    )
    kubelet_root_dir: str = setting(
        "",
        "Directory of the kubelet, its `--root-dir`. Default: that of the nodes' Kubernetes distribution, else "
        "/var/lib/kubelet.",
        "host_path",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupTaintSpec:
    """Taint that keeps your pods off a node until it is validated: docs/startup-taint.md."""

    enabled: bool = setting(
        False,
        "Whether the stack's pods tolerate the taint `gpu-provision.io/not-validated`, with which your nodes register. "
        "A run removes the taint once all validations of the node have passed. It then labels the node "
        "`gpu-provision.io/validated`, with a digest of the validated content.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CdiSection:
    """The Container Device Interface."""

    enabled: bool = setting(True, "Whether containers get GPUs through CDI.")
    nri_plugin_enabled: bool = setting(
        False,
        "Whether operands get their GPUs from an NRI plugin in the toolkit's pod. The toolkit then changes no "
        "configuration of the container runtime, and there are no RuntimeClasses. The runtimes of all GPU nodes need "
        "NRI: containerd 2.0, containerd 1.7 with NRI turned on, or CRI-O 1.26.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MigSection:
    """Multi-Instance GPU."""

    strategy: str = setting("single", "How MIG devices are offered to Kubernetes.", enum=["none", "single", "mixed"])


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSection:
    """Settings with the GPU Operator's names."""

    runtime_class: str = setting("nvidia", "Name of the RuntimeClass for GPU containers.", "object_name")
    metrics: OperatorMetrics = setting(OperatorMetrics())


@dataclass(frozen=True, slots=True, kw_only=True)
class Specs:
    """Every component's spec; the field names are the component names and the inventory's keys."""

    nfd: NfdSpec
    driver: DriverSpec
    gds: GdsSpec
    gdrcopy: GdrcopySpec
    toolkit: ToolkitSpec
    validator: ValidatorSpec
    device_plugin: DevicePluginSpec
    gfd: GfdSpec
    mig_manager: MigManagerSpec
    dcgm: DcgmSpec
    dcgm_exporter: DcgmExporterSpec
    node_status_exporter: NodeStatusExporterSpec
    daemonsets: DaemonSetSettings = field(default_factory=DaemonSetSettings)
    host_paths: HostPaths = field(default_factory=HostPaths)
    startup_taint: StartupTaintSpec = field(default_factory=StartupTaintSpec)
    cdi_enabled: bool = CdiSection().enabled
    nri_plugin_enabled: bool = CdiSection().nri_plugin_enabled
    mig_strategy: str = MigSection().strategy
    runtime_class: str = OperatorSection().runtime_class
    operator_metrics: OperatorMetrics = field(default_factory=OperatorMetrics)
