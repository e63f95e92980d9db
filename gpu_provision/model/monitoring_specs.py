"""Specs of the metrics of GPUs, nodes and the controller: exporters, and objects of the Prometheus Operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpu_provision.model.operand_specs import ENABLED, OperandSpec
from gpu_provision.model.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class DcgmSpec(OperandSpec):
    """The stand-alone DCGM host engine. The exporter has an engine of its own, so this one is off by default."""

    enabled: bool = setting(False, ENABLED)


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
    def config_map(self) -> str:
        """Name of the ConfigMap of metrics; empty for the image's own list."""
        return self.metrics_config or self.config.name or ("nvidia-dcgm-exporter-metrics" if self.config.data else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatusExporterSpec(OperandSpec):
    """Metrics of how far the stack has come on each node, on port 8000. It is a program of the validator's image."""

    enabled: bool = setting(False, ENABLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorServiceMonitor(ServiceMonitorSpec):
    """The ServiceMonitor of the controller's metrics, with its Service: docs/operator.md."""

    enabled: bool = setting(False, "Whether `operator install` and `operator render` with `-i` make them.")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorMetrics:
    """Metrics of the controller."""

    service_monitor: OperatorServiceMonitor = setting(OperatorServiceMonitor())
