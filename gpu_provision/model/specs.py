"""What each component is asked to be: one frozen, fully resolved record per component.

The inventory loader fills these from the release, the inventory's own settings and the pool's overrides,
so a reader of a spec never has to ask for a default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpu_provision.model.images import Image
from gpu_provision.model.upgrade import UpgradePolicy


@dataclass(frozen=True, slots=True)
class SecretKey:
    """A key of a Secret in the namespace of the pods that use it; the tool never reads it."""

    name: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OperandSpec:
    """What every component that runs containers has; names as in the GPU Operator's values."""

    enabled: bool = True
    image: Image
    image_pull_policy: str = "IfNotPresent"
    image_pull_secrets: tuple[str, ...] = ()
    env: Mapping[str, str | SecretKey] = field(default_factory=dict)
    args: tuple[str, ...] = ()
    resources: Mapping[str, Any] = field(default_factory=dict)
    timeout: int = 300  # seconds a node may take for this component before the run calls it failed

    @property
    def settings(self) -> dict[str, str]:
        """The environment variables whose values are known here."""
        return {name: value for name, value in self.env.items() if isinstance(value, str)}


@dataclass(frozen=True, slots=True, kw_only=True)
class NfdSpec(OperandSpec):
    """Node Feature Discovery. Off means: another NFD of the cluster labels the nodes."""

    namespace: str = "node-feature-discovery"
    worker_tolerations: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupProbe:
    """How long a driver may take to build and load. Seconds, but for the threshold."""

    initial_delay_seconds: int = 60
    period_seconds: int = 10
    timeout_seconds: int = 60
    failure_threshold: int = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSpec(OperandSpec):
    """The driver container. Off means: the hosts have their own driver.

    ``image.version`` is the driver's version; the operating system's suffix is added per node.

    Attributes:
        prefer_host: Whether a node that has a usable driver of its own keeps it, and gets no container.
    """

    manager: Image
    prefer_host: bool = False
    kernel_module_type: str = "auto"
    startup_probe: StartupProbe = field(default_factory=StartupProbe)
    repo_config: str = ""  # name of a ConfigMap in the operands' namespace; empty for none
    cert_config: str = ""  # likewise
    kernel_module_config: str = ""  # likewise
    licensing_config: str = ""  # name of a Secret; empty for none
    upgrade_policy: UpgradePolicy = field(default_factory=UpgradePolicy)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolkitSpec(OperandSpec):
    """The container toolkit, which teaches the container runtime about GPUs."""

    install_dir: str = "/usr/local/nvidia"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatorSpec(OperandSpec):
    """The operator validator and the image of the vectorAdd pods. Cannot be off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePluginSpec(OperandSpec):
    """The device plugin, which makes ``nvidia.com/gpu`` allocatable."""

    config_name: str = ""  # ConfigMap of plugin configurations; empty for none
    config_default: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GfdSpec(OperandSpec):
    """GPU Feature Discovery, which labels nodes with what their GPUs are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DcgmSpec(OperandSpec):
    """The stand-alone DCGM host engine; off by default."""

    enabled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceMonitorSpec:
    """The Prometheus Operator's ServiceMonitor; made only where its CRD exists."""

    enabled: bool = True
    interval: str = "15s"
    scrape_timeout: str = "10s"
    honor_labels: bool = False
    additional_labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DcgmExporterSpec(OperandSpec):
    """The DCGM exporter, GPU metrics in Prometheus format on port 9400."""

    service_type: str = "ClusterIP"
    service_monitor: ServiceMonitorSpec = field(default_factory=ServiceMonitorSpec)
    metrics_config: str = ""  # ConfigMap with key dcgm-metrics.csv; empty for the image's own list


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSetSettings:
    """What all operand DaemonSets share."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = (
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
    )
    priority_class_name: str = "system-node-critical"
    max_unavailable: int | str = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupTaintSpec:
    """Whether nodes may register with the startup taint, which goes once they are validated."""

    enabled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Specs:
    """Every component's spec; the field names are the component names and the inventory's keys."""

    nfd: NfdSpec
    driver: DriverSpec
    toolkit: ToolkitSpec
    validator: ValidatorSpec
    device_plugin: DevicePluginSpec
    gfd: GfdSpec
    dcgm: DcgmSpec
    dcgm_exporter: DcgmExporterSpec
    daemonsets: DaemonSetSettings = field(default_factory=DaemonSetSettings)
    startup_taint: StartupTaintSpec = field(default_factory=StartupTaintSpec)
    cdi_enabled: bool = True
    mig_strategy: str = "single"
    runtime_class: str = "nvidia"
