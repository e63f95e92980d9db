"""The stand-alone DCGM host engine, off by default: the exporter has one built in."""

from __future__ import annotations

from typing import Any

from gpu_provision.components import labels, operands, pods
from gpu_provision.components.objects import has_internal_traffic_policy, manifest, role, service_account
from gpu_provision.model.cluster import Manifest, RenderContext
from gpu_provision.model.specs import DcgmSpec

NAME = "dcgm"
TITLE = "NVIDIA DCGM"
REQUIRES: tuple[str, ...] = ("validator",)

_NAME = "nvidia-dcgm"
_PORT = 5555
ADDRESS = f"{_NAME}:{_PORT}"
"""Where the exporter of the same node finds the engine."""

_LIVES = {"tcpSocket": {"port": _PORT}, "initialDelaySeconds": 15}


def manifests(spec: DcgmSpec, context: RenderContext) -> list[Manifest]:
    """Return access rights, the Service and the DaemonSet."""
    namespace = context.namespace
    return [
        service_account(_NAME, namespace),
        *role(_NAME, namespace, [operands.USE_PRIVILEGED_SCC], subject=_NAME),
        _service(context),
        operands.daemon_set(
            context,
            _NAME,
            selector={labels.APP: _NAME},
            node_selector={labels.deploy("dcgm"): "true"},
            pod=_pod(spec, context),
        ),
    ]


def _service(context: RenderContext) -> Manifest:
    # Every exporter must reach the engine of its own node and no other.
    local = {"internalTrafficPolicy": "Local"} if has_internal_traffic_policy(context.facts) else {}
    ports = [{"name": "dcgm", "port": _PORT, "targetPort": _PORT, "protocol": "TCP"}]
    return manifest(
        ("v1", "Service"),
        _NAME,
        namespace=context.namespace,
        labels={labels.APP: _NAME},
        spec={"type": "ClusterIP", **local, "selector": {labels.APP: _NAME}, "ports": ports},
    )


def _pod(spec: DcgmSpec, context: RenderContext) -> dict[str, Any]:
    validator = context.inventory.specs.validator
    return operands.pod(
        spec,
        serviceAccountName=_NAME,
        runtimeClassName=operands.runtime_class(context),
        imagePullSecrets=pods.pull_secrets(spec.image_pull_secrets, validator.image_pull_secrets),
        initContainers=[operands.wait_for_toolkit(context, operands.MOUNT_RUN_NVIDIA)],
        containers=[
            operands.container(
                spec,
                "nvidia-dcgm-ctr",
                env={},
                ports=[pods.port("dcgm", _PORT)],
                livenessProbe=_LIVES,
                readinessProbe=_LIVES,
                security=pods.PRIVILEGED,
            )
        ],
        volumes=[operands.RUN_NVIDIA],
    )
