"""What each component is asked to be: one frozen, fully resolved record per component.

With the images that a release names, and how drivers are upgraded, per pool and for the fleet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from enum import StrEnum
from typing import Any
from zoneinfo import ZoneInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A container image in three parts, as the GPU Operator's values name them.

    Attributes:
        repository: Registry and path, such as ``nvcr.io/nvidia/k8s``.
        image: Last part of the name, such as ``container-toolkit``.
        version: A tag, or a digest that begins with ``sha256:``.
    """

    repository: str
    image: str
    version: str

    @property
    def reference(self) -> str:
        """The name a container runtime pulls: tags after a colon, digests after an at sign."""
        return self.tagged(self.version)

    def tagged(self, tag: str) -> str:
        """Return the reference with another tag or digest."""
        separator = "@" if tag.startswith("sha256:") else ":"
        return f"{self.repository}/{self.image}{separator}{tag}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitForCompletion:
    """Which pods a node waits for before any is evicted; no selector: none. Zero seconds: without limit."""

    pod_selector: str = ""
    timeout_seconds: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PodDeletion:
    """How pods that use GPUs are evicted. Zero seconds: without limit.

    Attributes:
        force: Whether pods without a controller go too, although nothing starts them again.
        delete_empty_dir: Whether pods with emptyDir volumes go too, although their data is lost.
    """

    force: bool = False
    timeout_seconds: int = 300
    delete_empty_dir: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeDrain:
    """Whether and how a node is drained of all pods where evicting those with GPUs was not enough."""

    enable: bool = False
    force: bool = False
    pod_selector: str = ""
    timeout_seconds: int = 300
    delete_empty_dir: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradePolicy:
    """``driver.upgrade_policy``, with the names and defaults of the GPU Operator.

    Attributes:
        max_parallel_upgrades: Nodes at the same time; zero means: as many as ``max_unavailable`` allows.
        max_unavailable: A number of nodes, or a percentage of them, rounded up.
    """

    auto_upgrade: bool = True
    max_parallel_upgrades: int = 1
    max_unavailable: int | str = "25%"
    wait_for_completion: WaitForCompletion = field(default_factory=WaitForCompletion)
    pod_deletion: PodDeletion = field(default_factory=PodDeletion)
    drain: UpgradeDrain = field(default_factory=UpgradeDrain)


class OnFailure(StrEnum):
    """What comes after too many nodes have failed."""

    PAUSE = "pause"  # no further node starts; those under way are finished
    ROLLBACK = "rollback"  # the fleet goes back to the content that it had before


class Order(StrEnum):
    """Which node is next."""

    NAME = "name"  # node-2 before node-10
    LISTED = "listed"  # as the inventory lists them
    IDLE_FIRST = "idle_first"  # the fewest GPU pods first


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """The nodes that go first, alone.

    Attributes:
        nodes: How many; zero with a selector means: all that it selects.
        node_selector: Labels of the nodes to choose from; empty for all.
        soak_seconds: How long they have to stay well before any other node starts.
    """

    nodes: int = 1
    node_selector: Mapping[str, str] = field(default_factory=dict)
    soak_seconds: int = 0


class Day(StrEnum):
    """A day of the week, in the order of ``date.weekday()``."""

    MONDAY = "mon"
    TUESDAY = "tue"
    WEDNESDAY = "wed"
    THURSDAY = "thu"
    FRIDAY = "fri"
    SATURDAY = "sat"
    SUNDAY = "sun"


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceWindow:
    """When nodes may start; those under way are finished also afterwards.

    Attributes:
        days: Days on which a window opens.
        start: Wall clock time at which it opens, ``HH:MM``.
        minutes: How long it is open, at most a day.
        timezone: IANA name.
    """

    days: tuple[Day, ...] = tuple(Day)
    start: str = "00:00"
    minutes: int = 1440
    timezone: str = "UTC"

    @property
    def zone(self) -> tzinfo:
        """The time zone; see `zone_of`."""
        return zone_of(self.timezone)


def zone_of(name: str) -> tzinfo:
    """Return a time zone by its IANA name; UTC also on a machine that knows no other, such as a small image.

    Raises:
        ZoneInfoNotFoundError, ValueError, OSError: This machine knows none of that name.
    """
    return UTC if name == "UTC" else ZoneInfo(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPolicy:
    """``rollout``: what holds over all pools, which the GPU Operator has no notion of.

    Attributes:
        max_parallel_upgrades: Nodes of all pools at the same time; zero for no limit beyond those of the pools.
        max_unavailable: Nodes of all pools, or a percentage of them, rounded up.
        canary: None for no canary.
        stop_after_failures: So many failed nodes, and no further one starts.
    """

    max_parallel_upgrades: int = 0
    max_unavailable: int | str = "100%"
    canary: Canary | None = None
    stop_after_failures: int = 1
    on_failure: OnFailure = OnFailure.PAUSE
    maintenance_window: MaintenanceWindow | None = None
    order: Order = Order.NAME


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
