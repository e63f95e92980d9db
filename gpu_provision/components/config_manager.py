"""The config manager: containers by which a pod follows its node's choice of a configuration of the device plugin."""

from __future__ import annotations

from typing import Any

from gpu_provision.components import labels, operands, pods
from gpu_provision.model.cluster import RenderContext
from gpu_provision.model.operand_specs import OperandSpec

_AVAILABLE = "/available-configs"
_CHOSEN = "/config/config.yaml"


class ConfigManager:
    """Parts of a pod that follow ``device_plugin.config``; all empty without it.

    A container chooses a configuration by the node's label before the main one starts, and a side-car signals the main
    process when the label chooses another one. As in the reference, the program is in the device plugin's image.
    """

    def __init__(self, spec: OperandSpec, context: RenderContext) -> None:
        """Read the settings of the device plugin; its containers get the resources of ``spec``, the pod's component."""
        self._spec, self._resources = context.inventory.specs.device_plugin, spec.resources
        self.is_on = bool(self._spec.config_map)
        # Of all containers of a pod, ``config-manager`` alone reads the label.
        self.cluster_rules = [operands.READ_NODES] if self.is_on else []
        self.environment = {"CONFIG_FILE": _CHOSEN} if self.is_on else {}
        self.mounts, self.volumes = [], []
        if self.is_on:
            self.mounts = [pods.mount("available-configs", _AVAILABLE), pods.mount("config", "/config")]
            source = pods.config_volume("available-configs", self._spec.config_map)
            self.volumes = [source, {"name": "config", "emptyDir": {}}]

    @property
    def init_containers(self) -> list[dict[str, Any]]:
        """The container that chooses a configuration before the main one starts."""
        env = {"ONESHOT": "true", "SEND_SIGNAL": "false", "SIGNAL": "", "PROCESS_TO_SIGNAL": ""}
        return [self._container("config-manager-init", env)] if self.is_on else []

    def side_cars(self, process: str) -> list[dict[str, Any]]:
        """Return the container that signals ``process`` when the node's label chooses another configuration."""
        env = {"ONESHOT": "false", "SEND_SIGNAL": "true", "SIGNAL": "1", "PROCESS_TO_SIGNAL": process}
        return [self._container("config-manager", env, securityContext=pods.PRIVILEGED)] if self.is_on else []

    def _container(self, name: str, env: dict[str, str], **fields: Any) -> dict[str, Any]:
        declared: pods.Environment = {
            "ONESHOT": env["ONESHOT"],
            "KUBECONFIG": "",
            **pods.NODE_NAME,
            "NODE_LABEL": labels.PLUGIN_CONFIG,
            "CONFIG_FILE_SRCDIR": _AVAILABLE,
            "CONFIG_FILE_DST": _CHOSEN,
            "DEFAULT_CONFIG": self._spec.default_config,
            "FALLBACK_STRATEGIES": "empty",
            **env,
        }
        return pods.container(
            name,
            self._spec,
            command=["config-manager"],
            env=pods.environment(declared),
            **fields,
            resources=dict(self._resources),
            volumeMounts=self.mounts,
        )
