"""The stand-alone DCGM host engine, off by default: the exporter has one built in."""

from __future__ import annotations

from typing import Any

from gpu_provision.components import labels, operands, pods
from gpu_provision.components.objects import is_since, manifest
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
    return [
        *operands.access(_NAME, context.namespace),
        _service(context),
        operands.daemon_set(context, _NAME, switch="dcgm", pod=_pod(spec, context)),
    ]


def _service(context: RenderContext) -> Manifest:
    # Every exporter must reach the engine of its own node and no other. On by default since Kubernetes 1.22.
    local = {"internalTrafficPolicy": "Local"} if is_since(context.facts.version, (1, 22)) else {}
    ports = [{"name": "dcgm", "port": _PORT, "targetPort": _PORT, "protocol": "TCP"}]
    return manifest(
        ("v1", "Service"),
        _NAME,
        namespace=context.namespace,
        labels={labels.APP: _NAME},
        spec={"type": "ClusterIP", **local, "selector": {labels.APP: _NAME}, "ports": ports},
    )


def _pod(spec: DcgmSpec, context: RenderContext) -> dict[str, Any]:
    return operands.pod(
        spec,
        serviceAccountName=_NAME,
        runtimeClassName=operands.runtime_class(context),
        imagePullSecrets=pods.pull_secrets(spec, context.inventory.specs.validator),
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
