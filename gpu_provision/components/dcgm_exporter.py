"""The DCGM exporter: GPU metrics in Prometheus format."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any

from gpu_provision.components import dcgm, labels, monitoring, operands, pods
from gpu_provision.components.host_paths import kubelet_root_dir
from gpu_provision.components.objects import config_map, role, rule
from gpu_provision.model.cluster import Manifest, RenderContext
from gpu_provision.model.monitoring_specs import DcgmExporterSpec
from gpu_provision.model.operand_specs import HOST_NETWORK

NAME = "dcgm_exporter"
TITLE = "DCGM exporter"
REQUIRES: tuple[str, ...] = ("validator",)

_NAME = "nvidia-dcgm-exporter"
_PORT = 9400
_LABELS = {labels.APP: _NAME}

_COLLECTORS = "/etc/dcgm-exporter/dcp-metrics-included.csv"
_OWN_COLLECTORS_KEY = "dcgm-metrics.csv"
_OWN_COLLECTORS = f"/etc/dcgm-exporter/{_OWN_COLLECTORS_KEY}"

_READ_CONFIG_MAPS = rule("", ["configmaps"], ["get", "list"])
_POD_RULES = [rule("", ["pods"], ["get", "list", "watch"])]

# Variables of the user that make the exporter read pods, the one that names a ConfigMap of metrics, and the engine's.
_POD_SETTINGS = ("DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS", "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID")
_LABEL_SETTING = "DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX"
_METRICS_SETTING = "DCGM_EXPORTER_CONFIGMAP_DATA"
_ENGINE = "DCGM_REMOTE_HOSTENGINE_INFO"
_JOBS = "hpc-job-mapping"
_POD_RESOURCES = "/var/lib/kubelet/pod-resources"

_HEALTH = {"httpGet": {"path": "/health", "port": _PORT}, "initialDelaySeconds": 45}


def manifests(spec: DcgmExporterSpec, context: RenderContext) -> list[Manifest]:
    """Return the exporter's objects; ServiceMonitor and PrometheusRule only if the cluster has the kind."""
    namespace, served, data = context.namespace, context.facts.resources, spec.config.data
    with_monitor = spec.service_monitor.enabled and monitoring.SERVICE_MONITORS in served
    on_openshift = context.openshift is not None
    with_rule = (spec.prometheus_rule.enabled or on_openshift) and monitoring.PROMETHEUS_RULES in served
    place = _NAME, namespace, _LABELS
    monitor = monitoring.service_monitor(*place, spec.service_monitor, port="gpu-metrics")
    metrics = _metrics_files(spec, context)
    listed = metrics.get(_OWN_COLLECTORS_KEY, "")
    reader = role(f"{_NAME}-read-pods", namespace, _POD_RULES, subject=_NAME, kind="ClusterRole")
    return [
        *operands.access(_NAME, namespace, _READ_CONFIG_MAPS),
        *(reader if _reads_pods(spec) else []),
        operands.service(
            context,
            _NAME,
            ("gpu-metrics", _PORT),
            kind=spec.service_type,
            annotations=monitoring.SCRAPED,
            is_local=spec.internal_traffic_policy == "Local",
        ),
        operands.daemon_set(
            context,
            _NAME,
            switch="dcgm-exporter",
            pod_annotations=dict(spec.annotations) | operands.config_annotation(metrics),
            pod=_pod(spec, context),
            gpu_containers=[_NAME],
        ),
        *([monitor] if with_monitor else []),
        *([config_map(spec.config_map, namespace, {_OWN_COLLECTORS_KEY: data}, _LABELS)] if data else []),
        *(
            [monitoring.prometheus_rule(*place, spec.prometheus_rule, metrics=listed, on_openshift=on_openshift)]
            if with_rule
            else []
        ),
        *([monitoring.dashboard(*place, spec.dashboard)] if spec.dashboard.enabled else []),
    ]


def _metrics_files(spec: DcgmExporterSpec, context: RenderContext) -> Mapping[str, str]:
    """Return the content of the ConfigMap of metrics; empty if it is unknown."""
    if spec.config.data:
        return {_OWN_COLLECTORS_KEY: spec.config.data}
    return operands.config_files(context, spec.config_map)


def _reads_pods(spec: DcgmExporterSpec) -> bool:
    by_name = any(spec.settings.get(name, "").lower() == "true" for name in _POD_SETTINGS)
    return by_name or spec.enable_pod_labels or spec.enable_pod_uid


def _pod(spec: DcgmExporterSpec, context: RenderContext) -> dict[str, Any]:
    own = [pods.config_volume("metrics-config", name)] if (name := spec.config_map) else []
    jobs = spec.hpc_job_mapping
    calls_api = _reads_pods(spec) or spec.env.get(_METRICS_SETTING, "none") not in {"", "none"}
    on_host = HOST_NETWORK if spec.settings.get(_ENGINE, "").startswith("localhost") else {}
    return operands.gpu_pod(
        spec,
        context,
        _NAME,
        **on_host,
        automountServiceAccountToken=None if calls_api else False,
        initContainers=[operands.wait_for_toolkit(context, operands.MOUNT_RUN_NVIDIA)],
        containers=[_container(spec, context)],
        volumes=[
            pods.host_volume("pod-gpu-resources", posixpath.join(kubelet_root_dir(context), "pod-resources")),
            pods.host_volume("run-nvidia", "/run/nvidia"),
            *([pods.host_volume(_JOBS, jobs.directory, "DirectoryOrCreate")] if jobs.enabled else []),
            *own,
        ],
    )


def _container(spec: DcgmExporterSpec, context: RenderContext) -> dict[str, Any]:
    with_engine, jobs = context.inventory.specs.dcgm.enabled, spec.hpc_job_mapping
    pod_fields = spec.enable_pod_labels, spec.enable_pod_uid
    declared: pods.Environment = {
        "DCGM_EXPORTER_LISTEN": f":{_PORT}",
        "DCGM_EXPORTER_KUBERNETES": "true",
        "DCGM_EXPORTER_COLLECTORS": _OWN_COLLECTORS if spec.config_map else _COLLECTORS,
        **pods.NODE_NAME,
        **({_ENGINE: dcgm.ADDRESS} if with_engine else {}),
        **{name: "true" for name, is_on in zip(_POD_SETTINGS, pod_fields, strict=True) if is_on},
        **({_LABEL_SETTING: ",".join(spec.pod_label_allowlist_regex)} if spec.pod_label_allowlist_regex else {}),
        **({"DCGM_HPC_JOB_MAPPING_DIR": jobs.directory} if jobs.enabled else {}),
    }
    own = [pods.mount("metrics-config", _OWN_COLLECTORS, read_only=True, sub_path=_OWN_COLLECTORS_KEY)]
    return operands.container(
        spec,
        _NAME,
        env=declared,
        ports=[pods.port("metrics", _PORT)],
        livenessProbe=_HEALTH | {"periodSeconds": 5},
        readinessProbe=_HEALTH,
        security=pods.PRIVILEGED,
        mounts=[
            pods.mount("pod-gpu-resources", _POD_RESOURCES, read_only=True),
            *([pods.mount(_JOBS, jobs.directory, read_only=True)] if jobs.enabled else []),
            *(own if spec.config_map else []),
        ],
    )
