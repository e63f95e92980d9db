"""Objects for Prometheus, and a dashboard for Grafana.

Alert rules and dashboard name metrics of the exporter's default list (`etc/dcp-metrics-included.csv` of
NVIDIA/dcgm-exporter) and of the controller. Further rules are there if the stack's own list has their metrics.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

import yaml

from gpu_provision.components.objects import manifest
from gpu_provision.model.cluster import Manifest
from gpu_provision.model.monitoring_specs import DashboardSpec, PrometheusRuleSpec, ServiceMonitorSpec

SERVICE_MONITORS = "servicemonitors.monitoring.coreos.com"
PROMETHEUS_RULES = "prometheusrules.monitoring.coreos.com"
"""Kinds of the Prometheus Operator, which a cluster may lack."""

SCRAPED = {"prometheus.io/scrape": "true"}
"""Annotation of Services that Prometheus finds without the Prometheus Operator."""

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # C is ten times faster; not every wheel has it
_DASHBOARD_KEY = "nvidia-gpus.json"
_SOURCE = {"type": "prometheus", "uid": "${source}"}
_WIDTH, _HEIGHT, _PER_ROW = 8, 7, 3  # Grafana's grid has 24 columns


def service_monitor(
    name: str, namespace: str, labels: Mapping[str, str], spec: ServiceMonitorSpec | None = None, *, port: str
) -> Manifest:
    """Return the ServiceMonitor of a Service with these labels; without a spec, Prometheus has its own defaults."""
    settings = spec and {
        "interval": spec.interval,
        "scrapeTimeout": spec.scrape_timeout,
        "honorLabels": spec.honor_labels,
        "relabelings": [*map(dict, spec.relabelings)],
    }
    return manifest(
        ("monitoring.coreos.com/v1", "ServiceMonitor"),
        name,
        namespace=namespace,
        labels={**(spec.additional_labels if spec else {}), **labels},
        spec={
            "jobLabel": next(iter(labels)),
            "selector": {"matchLabels": dict(labels)},
            "namespaceSelector": {"matchNames": [namespace]},
            "endpoints": [{"port": port, "path": "/metrics", **(settings or {})}],
        },
    )


def prometheus_rule(  # noqa: PLR0913 - where it is, and what it depends on
    name: str, namespace: str, labels: dict[str, str], spec: PrometheusRuleSpec, *, metrics: str, on_openshift: bool
) -> Manifest:
    """Return the PrometheusRule for the exporter ``name`` with these labels.

    ``metrics``: the list of metrics in place of the default one; empty if there is none, or if it is unknown. On
    OpenShift it also has the names of its console; alerts only if the spec turns them on.
    """
    text = _read("alerts.yaml").replace("MAX_TEMPERATURE", str(spec.max_temperature)).replace("NAMESPACE", namespace)
    rules, exported = _load(text), {line.partition(",")[0].strip() for line in metrics.splitlines()}
    for group in rules["groups"]:
        group["rules"] = [each for each in group["rules"] if each.pop("needs", None) in {None, *exported}]
    groups = [*([_accelerators()] if on_openshift else ()), *(rules["groups"] if spec.enabled else ())]
    return _rule(name, namespace, {**spec.additional_labels, **labels}, groups)


def _rule(name: str, namespace: str, labels: Mapping[str, str], groups: list[dict[str, Any]]) -> Manifest:
    kind = ("monitoring.coreos.com/v1", "PrometheusRule")
    return manifest(kind, name, namespace=namespace, labels=labels, spec={"groups": groups})


def _accelerators() -> dict[str, Any]:
    """Return the rules that give metrics the names by which OpenShift knows accelerators of all vendors."""
    records: dict[str, str] = _load(_read("openshift_rules.yaml"))["accelerators"]
    vendor = {"vendor": "nvidia"}
    rules = [{"record": record, "expr": metric, "labels": vendor} for record, metric in records.items()]
    return {"name": "dcgm.accelerator.metrics", "interval": "30s", "rules": rules}


def node_status_rule(name: str, namespace: str, labels: Mapping[str, str]) -> Manifest:
    """Return the PrometheusRule with the alerts of the node status exporter ``name``."""
    groups = _load(_read("openshift_rules.yaml"))["node_status"]
    return _rule(f"{name}-alerts", namespace, labels, groups)


def dashboard(name: str, namespace: str, labels: dict[str, str], spec: DashboardSpec) -> Manifest:
    """Return the ConfigMap with the dashboard, for the sidecar of Grafana that reads those with a label."""
    content = {
        "title": "NVIDIA GPUs",
        "uid": "gpu-provision-gpus",
        "schemaVersion": 39,
        "tags": ["gpu"],
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": [{"name": "source", "type": "datasource", "query": "prometheus", "label": "Source"}]},
        "panels": [*_panels()],
    }
    return manifest(
        ("v1", "ConfigMap"),
        f"{name}-dashboard",
        namespace=namespace,
        labels={**spec.labels, **labels},
        annotations=spec.annotations,
        data={_DASHBOARD_KEY: json.dumps(content, indent=1)},
    )


def _panels() -> Iterator[dict[str, Any]]:
    for place, (title, unit, expression) in enumerate(_load(_read("dashboard.yaml"))):
        row, column = divmod(place, _PER_ROW)
        yield {
            "id": place + 1,
            "title": title,
            "type": "timeseries",
            "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
            "datasource": _SOURCE,
            "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
            "targets": [{"refId": "A", "expr": _by_gpu(expression), "legendFormat": "{{node}} GPU {{gpu}}"}],
        }


def _by_gpu(expression: str) -> str:
    """Return an expression by node and GPU; versions of the exporter differ in the label of the node."""
    for label in ("Hostname", "hostname"):
        expression = f'label_replace({expression}, "node", "$1", "{label}", "(.+)")'
    return f"max by (node, gpu) ({expression})"


def _load(text: str) -> Any:
    return yaml.load(text, Loader=_LOADER)  # noqa: S506 - a safe loader


def _read(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
