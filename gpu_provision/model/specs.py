"""Specs of the components: one frozen, fully resolved record each, with the images of a release.

A field that is a `setting` is a key of the inventory. The first paragraph of a docstring describes the section.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpu_provision.model.rollout_policy import UpgradePolicy
from gpu_provision.model.settings import REQUIRED, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A container image in three parts, as the GPU Operator's values name them."""

    repository: str = setting("", kind="repository")
    image: str = setting("", kind="image")
    version: str = setting("", kind="version")

    @property
    def reference(self) -> str:
        """The name that a container runtime pulls: tags after a colon, digests after an at sign."""
        return self.reference_with_tag(self.version)

    def reference_with_tag(self, tag: str) -> str:
        """Return the reference with another tag or digest."""
        separator = "@" if tag.startswith("sha256:") else ":"
        return f"{self.repository}/{self.image}{separator}{tag}"


@dataclass(frozen=True, slots=True)
class SecretKey:
    """A key of a Secret in the namespace of the pods that use it; the tool never reads it."""

    name: str
    key: str


HOST_NETWORK: Mapping[str, Any] = {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
"""Fields of a pod that uses the network of its node."""

DRIVER_CONTAINER_ROOT = "/run/nvidia/driver"
"""Root of the files of a driver that a container installs."""

_ENABLED = "Whether the component is installed."
_PULL_POLICIES = ["Always", "IfNotPresent", "Never"]


def _timeout(seconds: int) -> int:
    text = "Seconds until the run reports this component as failed on a node."
    return setting(seconds, text, reference=None, minimum=1, maximum=86400)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """Settings of a container with an image of its own; names as in the GPU Operator's values."""

    enabled: bool = setting(True, _ENABLED)
    image: Image = setting(REQUIRED, image="version")
    image_pull_policy: str = setting("IfNotPresent", "When the kubelet pulls the image.", enum=_PULL_POLICIES)
    image_pull_secrets: tuple[str, ...] = setting((), kind="image_pull_secrets")
    env: Mapping[str, str | SecretKey] = setting({}, kind="env")
    args: tuple[str, ...] = setting((), kind="args")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperandSpec(ContainerSpec):
    """Settings of every component that runs containers."""

    resources: Mapping[str, Any] = setting({}, kind="resources")
    host_network: bool = setting(
        False, "Whether its pods use the network of their node, which has their ports then.", pod=HOST_NETWORK
    )
    timeout: int = _timeout(300)

    @property
    def settings(self) -> dict[str, str]:
        """The environment variables whose values are known here."""
        return {name: value for name, value in self.env.items() if isinstance(value, str)}


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
class DriverManagerSpec:
    """The init container that unloads the old driver."""

    image: Image = setting(REQUIRED, image="version")
    image_pull_policy: str = setting(
        "", "When the kubelet pulls its image. Default: as that of the driver.", enum=_PULL_POLICIES
    )
    image_pull_secrets: tuple[str, ...] = setting((), kind="image_pull_secrets")
    env: Mapping[str, str | SecretKey] = setting({}, kind="env")


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
    timeout: int = _timeout(1200)
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
        """Name of the ConfigMap of configurations; empty without any."""
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
    timeout: int = _timeout(900)


@dataclass(frozen=True, slots=True, kw_only=True)
class DcgmSpec(OperandSpec):
    """The stand-alone DCGM host engine. The exporter has an engine of its own, so this one is off by default."""

    enabled: bool = setting(False, _ENABLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceMonitorSpec:
    """The Prometheus Operator's ServiceMonitor; created only if the cluster has that kind."""

    enabled: bool = setting(True, "Whether a ServiceMonitor is created.")
    interval: str = setting("15s", "How often Prometheus scrapes.", "duration")
    scrape_timeout: str = setting("10s", "Timeout of a scrape.", "duration")
    honor_labels: bool = setting(False, "Whether labels of the metrics override those of the target.")
    additional_labels: Mapping[str, str] = setting(
        {}, "Labels of the ServiceMonitor, such as the one that your Prometheus selects.", "labels"
    )
    relabelings: tuple[Mapping[str, Any], ...] = setting(
        (), "Relabelings of the target, as a ServiceMonitor has them.", "relabelings"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusRuleSpec:
    """Alert rules for GPUs and drivers; created only if the cluster has the kind PrometheusRule: docs/monitoring.md."""

    enabled: bool = setting(False, "Whether a PrometheusRule is created.")
    additional_labels: Mapping[str, str] = setting(
        {}, "Labels of the PrometheusRule, such as the one that your Prometheus selects.", "labels"
    )
    max_temperature: int = setting(
        85, "Temperature of a GPU in degrees Celsius above which an alert fires.", minimum=30, maximum=120
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardSpec:
    """A dashboard for Grafana, in a ConfigMap that the sidecar of Grafana reads: docs/monitoring.md."""

    enabled: bool = setting(False, "Whether the ConfigMap is created.")
    labels: Mapping[str, str] = setting(
        {"grafana_dashboard": "1"}, "Labels of the ConfigMap, by which the sidecar finds it.", "labels"
    )
    annotations: Mapping[str, str] = setting(
        {}, "Annotations of the ConfigMap, such as the one that names the folder in Grafana.", "annotations"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HpcJobMapping:
    """Labels of HPC jobs: the exporter reads from files which job uses a GPU."""

    enabled: bool = setting(False, "Whether the exporter reads the files.")
    directory: str = setting("/var/lib/dcgm-exporter/job-mapping", "Directory of the files on the host.", "host_path")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig:
    """ConfigMap with key dcgm-metrics.csv: the metrics to export."""

    name: str = setting("", "Name of the ConfigMap. Default with `data`: nvidia-dcgm-exporter-metrics.", "object_name")
    data: str = setting(
        "", "Content of the key. The stack makes the ConfigMap then; without it, the ConfigMap has to exist.", "metrics"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DcgmExporterSpec(OperandSpec):
    """The DCGM exporter: GPU metrics in Prometheus format on port 9400."""

    service_type: str = setting(
        "ClusterIP",
        "Type of the exporter's Service.",
        reference="service.type",
        enum=["ClusterIP", "NodePort", "LoadBalancer"],
    )
    internal_traffic_policy: str = setting(
        "Cluster",
        "Internal traffic policy of the exporter's Service; `Local` reaches only the exporter of the same node.",
        reference="service.internalTrafficPolicy",
        enum=["Cluster", "Local"],
    )
    service_monitor: ServiceMonitorSpec = setting(ServiceMonitorSpec())
    prometheus_rule: PrometheusRuleSpec = setting(PrometheusRuleSpec(), reference=None)
    dashboard: DashboardSpec = setting(DashboardSpec(), reference=None)
    hpc_job_mapping: HpcJobMapping = setting(HpcJobMapping())
    enable_pod_labels: bool = setting(False, "Whether metrics have the labels of the pod that uses the GPU.")
    enable_pod_uid: bool = setting(
        False, "Whether metrics have the uid of the pod that uses the GPU.", reference="enablePodUID"
    )
    pod_label_allowlist_regex: tuple[str, ...] = setting(
        (), "Regular expressions of the pod labels that metrics have. Without any, all of them.", "args"
    )
    host_pid: bool = setting(
        False, "Whether the exporter's pod sees the processes of its node.", reference="hostPID", pod={"hostPID": True}
    )
    metrics_config: str = setting(
        "",
        "ConfigMap with key dcgm-metrics.csv: the metrics to export. Default: the image's own list. Short for "
        "`config.name`.",
        "object_name",
        reference="config.name",
    )
    config: MetricsConfig = setting(
        MetricsConfig(),
        "The metrics to export: the name of a ConfigMap with key dcgm-metrics.csv, or its content.",
        reference=None,
    )
    annotations: Mapping[str, str] = setting(
        {}, "Annotations of the exporter's pods, in addition to those of `daemonsets`.", "annotations"
    )

    @property
    def metrics_of_others(self) -> str:
        """Name of the ConfigMap of metrics that the stack does not make; empty without one."""
        return "" if self.config.data else self.metrics_config or self.config.name


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatusExporterSpec(OperandSpec):
    """Metrics of how far the stack has come on each node, on port 8000. It is a program of the validator's image."""

    enabled: bool = setting(False, _ENABLED)


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
class OperatorServiceMonitor(ServiceMonitorSpec):
    """The ServiceMonitor of the controller's metrics, with its Service: docs/operator.md."""

    enabled: bool = setting(False, "Whether `operator install` and `operator render` with `-i` make them.")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorMetrics:
    """Metrics of the controller."""

    service_monitor: OperatorServiceMonitor = setting(OperatorServiceMonitor())


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
