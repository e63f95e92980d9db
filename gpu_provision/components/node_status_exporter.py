"""The node status exporter, off by default: metrics of how far the stack has come on each node.

It is a program of the validator's image. It reads the files of the validations, and waits for none.
"""

from __future__ import annotations

from typing import Any

from gpu_provision.components import labels, monitoring, operands, pods
from gpu_provision.components.objects import rule
from gpu_provision.model.cluster import Manifest, RenderContext
from gpu_provision.model.monitoring_specs import NodeStatusExporterSpec

NAME = "node_status_exporter"
TITLE = "Node status exporter"
REQUIRES: tuple[str, ...] = ("node_labels",)

_NAME = "nvidia-node-status-exporter"
_PORT_NAME, _PORT = "node-status", 8000
_LABELS = {labels.APP: _NAME}

_RULES = [rule("", ["pods"], ["get", "list"]), rule("apps", ["daemonsets"], ["get", "list", "watch"])]


def manifests(spec: NodeStatusExporterSpec, context: RenderContext) -> list[Manifest]:
    """Return access rights, Service and DaemonSet; a ServiceMonitor, and alerts on OpenShift, if there is that kind."""
    monitor = monitoring.service_monitor(_NAME, context.namespace, _LABELS, port=_PORT_NAME)
    served = context.facts.resources
    with_monitor = monitoring.SERVICE_MONITORS in served
    with_rule = context.openshift is not None and monitoring.PROMETHEUS_RULES in served
    return [
        *operands.access(_NAME, context.namespace, *_RULES, cluster_rules=[operands.READ_NODES]),
        operands.service(context, _NAME, (_PORT_NAME, _PORT), annotations=monitoring.SCRAPED),
        operands.daemon_set(context, _NAME, switch="node-status-exporter", pod=_pod(spec)),
        *([monitor] if with_monitor else []),
        *([monitoring.node_status_rule(_NAME, context.namespace, _LABELS)] if with_rule else []),
    ]


def _pod(spec: NodeStatusExporterSpec) -> dict[str, Any]:
    declared: pods.Environment = {
        "NVIDIA_VISIBLE_DEVICES": "void",
        "COMPONENT": "metrics",
        "METRICS_PORT": str(_PORT),
        **pods.NODE_NAME,
        **pods.OPERATOR_NAMESPACE,
    }
    container = operands.container(
        spec,
        _NAME,
        command=["nvidia-validator"],
        env=declared,
        ports=[pods.port(_PORT_NAME, _PORT)],
        security=pods.PRIVILEGED_ROOT,
        mounts=[operands.MOUNT_RUN_NVIDIA, operands.MOUNT_HOST_ROOT],
    )
    return operands.pod(
        spec,
        serviceAccountName=_NAME,
        imagePullSecrets=pods.pull_secrets(spec),
        containers=[container],
        volumes=[operands.RUN_NVIDIA, operands.HOST_ROOT],
    )
