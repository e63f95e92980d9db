"""The stand-alone DCGM host engine, off by default: the exporter has one built in."""

from __future__ import annotations

from typing import Any

from gpu_provision.components import operands, pods
from gpu_provision.model.cluster import Manifest, RenderContext
from gpu_provision.model.monitoring_specs import DcgmSpec

NAME = "dcgm"
TITLE = "NVIDIA DCGM"
REQUIRES: tuple[str, ...] = ("validator",)

_NAME = "nvidia-dcgm"
_CONTAINER = "nvidia-dcgm-ctr"
_PORT = 5555
ADDRESS = f"{_NAME}:{_PORT}"
"""Address of the engine, for the exporter of the same node."""

_LIVES = {"tcpSocket": {"port": _PORT}, "initialDelaySeconds": 15}


def manifests(spec: DcgmSpec, context: RenderContext) -> list[Manifest]:
    """Return access rights, the Service and the DaemonSet."""
    return [
        *operands.access(_NAME, context.namespace),
        # Every exporter must reach the engine of its own node and no other.
        operands.service(context, _NAME, ("dcgm", _PORT), is_local=True),
        operands.daemon_set(context, _NAME, switch="dcgm", pod=_pod(spec, context), gpu_containers=[_CONTAINER]),
    ]


def _pod(spec: DcgmSpec, context: RenderContext) -> dict[str, Any]:
    return operands.gpu_pod(
        spec,
        context,
        _NAME,
        initContainers=[operands.wait_for_toolkit(context, operands.MOUNT_RUN_NVIDIA)],
        containers=[
            operands.container(
                spec,
                _CONTAINER,
                env={},
                ports=[pods.port("dcgm", _PORT)],
                livenessProbe=_LIVES,
                readinessProbe=_LIVES,
                security=pods.PRIVILEGED,
            )
        ],
        volumes=[operands.RUN_NVIDIA],
    )
