"""Named configurations of the device plugin, which GPU Feature Discovery shares: a side-car follows a node label."""

from __future__ import annotations

from typing import Any

from gpu_provision.components import operands, pods
from gpu_provision.components.objects import cluster_role
from gpu_provision.model.cluster import Context, Manifest
from gpu_provision.model.specs import Image

_AVAILABLE = "/available-configs"
_CHOSEN = "/config/config.yaml"


def is_used(context: Context) -> bool:
    """Whether the inventory names a ConfigMap of configurations."""
    return bool(context.inventory.specs.device_plugin.config_name)


def access(context: Context, account: str) -> list[Manifest]:
    """Return the right to read nodes: of all containers of a pod, ``config-manager`` alone reads the node's label."""
    if not is_used(context):
        return []
    return cluster_role(account, context.namespace, [operands.READ_NODES], subject=account)


def init_containers(context: Context, image: Image) -> list[dict[str, Any]]:
    """Return the container that chooses a configuration before the main one starts."""
    env = {"ONESHOT": "true", "SEND_SIGNAL": "false", "SIGNAL": "", "PROCESS_TO_SIGNAL": ""}
    return [_manager("config-manager-init", context, image, env)] if is_used(context) else []


def side_cars(context: Context, image: Image, process: str) -> list[dict[str, Any]]:
    """Return the container that tells ``process`` when the node's label chooses another configuration."""
    env = {"ONESHOT": "false", "SEND_SIGNAL": "true", "SIGNAL": "1", "PROCESS_TO_SIGNAL": process}
    return [_manager("config-manager", context, image, env)] if is_used(context) else []


def volumes(context: Context) -> list[dict[str, Any]]:
    """Return the volumes that the containers share."""
    if not is_used(context):
        return []
    name = context.inventory.specs.device_plugin.config_name
    return [pods.config_volume("available-configs", name), pods.scratch_volume("config")]


def mounts(context: Context) -> list[dict[str, Any]]:
    """Return the mounts of the main container."""
    return _mounts() if is_used(context) else []


def environment(context: Context) -> dict[str, str]:
    """Return the setting by which the main container finds the chosen configuration."""
    return {"CONFIG_FILE": _CHOSEN} if is_used(context) else {}


def _mounts() -> list[dict[str, Any]]:
    return [pods.mount("available-configs", _AVAILABLE), pods.mount("config", "/config")]


def _manager(name: str, context: Context, image: Image, env: dict[str, str]) -> dict[str, Any]:
    spec = context.inventory.specs.device_plugin
    declared: pods.Environment = {
        "ONESHOT": env["ONESHOT"],
        "KUBECONFIG": "",
        **pods.NODE_NAME,
        "NODE_LABEL": "nvidia.com/device-plugin.config",
        "CONFIG_FILE_SRCDIR": _AVAILABLE,
        "CONFIG_FILE_DST": _CHOSEN,
        "DEFAULT_CONFIG": spec.config_default,
        "FALLBACK_STRATEGIES": "empty",
        "SEND_SIGNAL": env["SEND_SIGNAL"],
        "SIGNAL": env["SIGNAL"],
        "PROCESS_TO_SIGNAL": env["PROCESS_TO_SIGNAL"],
    }
    return pods.container(
        name,
        image.reference,
        imagePullPolicy=spec.image_pull_policy,
        command=["config-manager"],
        env=pods.environment(declared),
        securityContext=pods.PRIVILEGED if env["ONESHOT"] == "false" else None,
        volumeMounts=_mounts(),
    )
