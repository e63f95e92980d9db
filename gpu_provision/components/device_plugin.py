"""The device plugin: makes ``nvidia.com/gpu`` a resource that pods can request."""

from __future__ import annotations

from typing import Any

from gpu_provision.components import labels, operands, pods
from gpu_provision.components.objects import config_map, is_at_least
from gpu_provision.model.cluster import Manifest, RenderContext
from gpu_provision.model.specs import DevicePluginSpec, OperandSpec

NAME = "device_plugin"
TITLE = "NVIDIA device plugin"
REQUIRES: tuple[str, ...] = ("validator",)
_ACCOUNT = "nvidia-device-plugin"
_APP = "nvidia-device-plugin-daemonset"
_CONTAINER = "nvidia-device-plugin"
_ENTRYPOINT = "nvidia-device-plugin-entrypoint"
_ENTRYPOINT_FILES = {"entrypoint.sh": pods.script("wait-for-driver", "device-plugin")}

# The kubelet uses this path for plugins, whatever its root directory is.
_PLUGIN_DIRECTORY = "/var/lib/kubelet/device-plugins"

_VOLUMES = [
    pods.config_volume(_ENTRYPOINT, mode=0o700),
    pods.host_volume("device-plugin", _PLUGIN_DIRECTORY),
    operands.RUN_NVIDIA_VALIDATIONS,
    operands.DRIVER_INSTALL_DIR,
    operands.HOST_ROOT,
    operands.CDI_ROOT,
    pods.host_volume("mps-root", "/run/nvidia/mps", "DirectoryOrCreate"),
    pods.host_volume("mps-shm", "/run/nvidia/mps/shm"),
]

_MOUNTS = [
    pods.mount(_ENTRYPOINT, "/bin/entrypoint.sh", read_only=True, sub_path="entrypoint.sh"),
    pods.mount("device-plugin", _PLUGIN_DIRECTORY),
    operands.MOUNT_VALIDATIONS,
    pods.mount("driver-install-dir", "/driver-root", pods.TO_CONTAINER),
    operands.MOUNT_HOST_ROOT,
    pods.mount("cdi-root", "/var/run/cdi"),
    pods.mount("mps-shm", "/dev/shm"),  # noqa: S108 -- the container's shared memory, not a file of this program
    pods.mount("mps-root", "/mps"),
]


def manifests(spec: DevicePluginSpec, context: RenderContext) -> list[Manifest]:
    """Return access rights, the entrypoint and the DaemonSet."""
    configurations = operands.config_files(context, spec.config_name)
    config = ConfigManager(spec, context)
    return [
        *operands.access(_ACCOUNT, context.namespace, cluster_rules=config.cluster_rules),
        config_map(_ENTRYPOINT, context.namespace, _ENTRYPOINT_FILES, {labels.APP: _APP}),
        operands.daemon_set(
            context,
            _APP,
            switch="device-plugin",
            # The GPU Operator's side-car notices another label, but not another content of the same configuration.
            pod_annotations=operands.config_annotation(_ENTRYPOINT_FILES, configurations),
            pod=_pod(spec, context, config),
            gpu_containers=[_CONTAINER],
        ),
    ]


def _pod(spec: DevicePluginSpec, context: RenderContext, config: ConfigManager) -> dict[str, Any]:
    wait = operands.wait_for_toolkit(
        context, pods.mount("run-nvidia-validations", operands.VALIDATIONS, pods.TO_CONTAINER)
    )
    return operands.pod(
        spec,
        serviceAccountName=_ACCOUNT,
        runtimeClassName=operands.runtime_class(context),
        shareProcessNamespace=config.is_on or None,
        imagePullSecrets=pods.pull_secrets(spec, context.inventory.specs.validator),
        initContainers=[wait, *config.init_containers],
        containers=[
            operands.container(
                spec,
                _CONTAINER,
                command=["/bin/entrypoint.sh"],
                env=_environment(spec, context, config),
                security=pods.PRIVILEGED,
                mounts=[*_MOUNTS, *config.mounts],
            ),
            *config.side_cars("nvidia-device-plugin"),
        ],
        volumes=[*_VOLUMES, *config.volumes],
    )


def _environment(spec: DevicePluginSpec, context: RenderContext, config: ConfigManager) -> dict[str, str]:
    specs = context.inventory.specs
    # Plugins since 0.15 use the CDI fields of the kubelet's API.
    cdi_strategy = "cdi-annotations,cdi-cri" if is_at_least(spec.image.version, (0, 15)) else "cdi-annotations"
    hook = f"{specs.toolkit.install_dir}/toolkit/nvidia-cdi-hook"
    cdi = {
        "CDI_ENABLED": "true",
        "CDI_ANNOTATION_PREFIX": "cdi.k8s.io/",
        **({"NVIDIA_CDI_HOOK_PATH": hook} if specs.toolkit.enabled else {}),
    }
    return {
        "PASS_DEVICE_SPECS": "true",
        "FAIL_ON_INIT_ERROR": "true",
        "DEVICE_LIST_STRATEGY": cdi_strategy if specs.cdi_enabled else "envvar",
        "DEVICE_ID_STRATEGY": "uuid",
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "all",
        "MPS_ROOT": "/run/nvidia/mps",
        **operands.mig_environment(context),
        **(cdi if specs.cdi_enabled else {}),
        **config.environment,
    }


_AVAILABLE = "/available-configs"
_CHOSEN = "/config/config.yaml"


class ConfigManager:
    """Parts of a pod that follow ``device_plugin.config_name``; all empty without it.

    A container chooses a configuration by the node's label before the main one starts, and a side-car signals the main
    process when the label chooses another one. As in the reference, the program is in the device plugin's image.
    """

    def __init__(self, spec: OperandSpec, context: RenderContext) -> None:
        """Read the settings of the device plugin; its containers get the resources of ``spec``, the pod's component."""
        self._spec, self._resources = context.inventory.specs.device_plugin, spec.resources
        self.is_on = bool(self._spec.config_name)
        # Of all containers of a pod, ``config-manager`` alone reads the label.
        self.cluster_rules = [operands.READ_NODES] if self.is_on else []
        self.environment = {"CONFIG_FILE": _CHOSEN} if self.is_on else {}
        self.mounts, self.volumes = [], []
        if self.is_on:
            self.mounts = [pods.mount("available-configs", _AVAILABLE), pods.mount("config", "/config")]
            source = pods.config_volume("available-configs", self._spec.config_name)
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
            "NODE_LABEL": "nvidia.com/device-plugin.config",
            "CONFIG_FILE_SRCDIR": _AVAILABLE,
            "CONFIG_FILE_DST": _CHOSEN,
            "DEFAULT_CONFIG": self._spec.config_default,
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
