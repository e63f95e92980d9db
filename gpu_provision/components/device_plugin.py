"""The device plugin: makes ``nvidia.com/gpu`` a resource that pods can request."""

from __future__ import annotations

import re
from typing import Any

from gpu_provision.components import labels, operands, pods, scripts
from gpu_provision.components.objects import cluster_role, config_map, role, service_account
from gpu_provision.model.cluster import Context, Manifest
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.specs import DevicePluginSpec, Image

NAME = "device_plugin"
TITLE = "NVIDIA device plugin"
REQUIRES: tuple[str, ...] = ("validator",)
_ACCOUNT = "nvidia-device-plugin"
_APP = "nvidia-device-plugin-daemonset"
_ENTRYPOINT = "nvidia-device-plugin-entrypoint"
_ENTRYPOINT_FILES = {"entrypoint.sh": scripts.DEVICE_PLUGIN_ENTRYPOINT}

# The kubelet looks for plugins nowhere else, whatever its root directory is.
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
    pods.mount("mps-shm", "/dev/shm"),  # noqa: S108 -- the container's shared memory, not one of our files
    pods.mount("mps-root", "/mps"),
]


def spec(inventory: Inventory) -> DevicePluginSpec | None:
    """Return the spec, or None if the component is off."""
    return inventory.specs.device_plugin if inventory.specs.device_plugin.enabled else None


def manifests(spec: DevicePluginSpec, context: Context) -> list[Manifest]:
    """Return access rights, the entrypoint and the DaemonSet."""
    namespace = context.namespace
    configurations = operands.config_of(context, spec.config_name)
    return [
        service_account(_ACCOUNT, namespace),
        *role(_ACCOUNT, namespace, [operands.USE_PRIVILEGED_SCC], subject=_ACCOUNT),
        *config_access(context, _ACCOUNT),
        config_map(_ENTRYPOINT, namespace, _ENTRYPOINT_FILES, {labels.APP: _APP}),
        operands.daemon_set(
            context,
            _APP,
            selector={labels.APP: _APP},
            node_selector={labels.deploy("device-plugin"): "true"},
            # The reference's side-car sees another label, but not another content of the same configuration.
            pod_annotations=operands.configured_by(_ENTRYPOINT_FILES, configurations),
            pod=_pod(spec, context),
        ),
    ]


def _pod(spec: DevicePluginSpec, context: Context) -> dict[str, Any]:
    validator = context.inventory.specs.validator
    wait = operands.wait_for_toolkit(
        context, pods.mount("run-nvidia-validations", operands.VALIDATIONS, pods.TO_CONTAINER)
    )
    return operands.pod(
        spec,
        serviceAccountName=_ACCOUNT,
        runtimeClassName=operands.runtime_class(context),
        shareProcessNamespace=has_configurations(context) or None,
        imagePullSecrets=pods.pull_secrets(spec.image_pull_secrets, validator.image_pull_secrets),
        initContainers=[wait, *config_init_containers(context, spec.image)],
        containers=[
            _container(spec, context),
            *config_side_cars(context, spec.image, "nvidia-device-plugin"),
        ],
        volumes=[*_VOLUMES, *config_volumes(context)],
    )


def _container(spec: DevicePluginSpec, context: Context) -> dict[str, Any]:
    return operands.container(
        spec,
        "nvidia-device-plugin",
        command=["/bin/entrypoint.sh"],
        env=_environment(spec, context),
        security=pods.PRIVILEGED,
        mounts=[*_MOUNTS, *config_mounts(context)],
    )


def _environment(spec: DevicePluginSpec, context: Context) -> dict[str, str]:
    specs = context.inventory.specs
    strategy = _cdi_strategy(spec.image.version) if specs.cdi_enabled else "envvar"
    cdi = {
        "CDI_ENABLED": "true",
        "CDI_ANNOTATION_PREFIX": "cdi.k8s.io/",
        **(
            {"NVIDIA_CDI_HOOK_PATH": f"{specs.toolkit.install_dir}/toolkit/nvidia-cdi-hook"}
            if specs.toolkit.enabled
            else {}
        ),
    }
    return {
        "PASS_DEVICE_SPECS": "true",
        "FAIL_ON_INIT_ERROR": "true",
        "DEVICE_LIST_STRATEGY": strategy,
        "DEVICE_ID_STRATEGY": "uuid",
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "all",
        "MPS_ROOT": "/run/nvidia/mps",
        **operands.mig_environment(context),
        **(cdi if specs.cdi_enabled else {}),
        **config_environment(context),
    }


def _cdi_strategy(version: str) -> str:
    """Return how devices are handed over: CDI fields of the kubelet's API are known since plugin 0.15."""
    match = re.match(r"v?(\d+)\.(\d+)", version)
    is_older = match is not None and (int(match[1]), int(match[2])) < (0, 15)
    return "cdi-annotations" if is_older else "cdi-annotations,cdi-cri"


_AVAILABLE = "/available-configs"
_CHOSEN = "/config/config.yaml"


def has_configurations(context: Context) -> bool:
    """Whether the inventory names a ConfigMap of configurations."""
    return bool(context.inventory.specs.device_plugin.config_name)


def config_access(context: Context, account: str) -> list[Manifest]:
    """Return the right to read nodes: of all containers of a pod, ``config-manager`` alone reads the node's label."""
    if not has_configurations(context):
        return []
    return cluster_role(account, context.namespace, [operands.READ_NODES], subject=account)


def config_init_containers(context: Context, image: Image) -> list[dict[str, Any]]:
    """Return the container that chooses a configuration before the main one starts."""
    env = {"ONESHOT": "true", "SEND_SIGNAL": "false", "SIGNAL": "", "PROCESS_TO_SIGNAL": ""}
    return [_config_manager("config-manager-init", context, image, env)] if has_configurations(context) else []


def config_side_cars(context: Context, image: Image, process: str) -> list[dict[str, Any]]:
    """Return the container that signals ``process`` when the node's label chooses another configuration."""
    env = {"ONESHOT": "false", "SEND_SIGNAL": "true", "SIGNAL": "1", "PROCESS_TO_SIGNAL": process}
    return [_config_manager("config-manager", context, image, env)] if has_configurations(context) else []


def config_volumes(context: Context) -> list[dict[str, Any]]:
    """Return the volumes that the containers share."""
    if not has_configurations(context):
        return []
    name = context.inventory.specs.device_plugin.config_name
    return [pods.config_volume("available-configs", name), pods.scratch_volume("config")]


def config_mounts(context: Context) -> list[dict[str, Any]]:
    """Return the mounts of the main container."""
    return _manager_mounts() if has_configurations(context) else []


def config_environment(context: Context) -> dict[str, str]:
    """Return the setting by which the main container finds the chosen configuration."""
    return {"CONFIG_FILE": _CHOSEN} if has_configurations(context) else {}


def _manager_mounts() -> list[dict[str, Any]]:
    return [pods.mount("available-configs", _AVAILABLE), pods.mount("config", "/config")]


def _config_manager(name: str, context: Context, image: Image, env: dict[str, str]) -> dict[str, Any]:
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
        volumeMounts=_manager_mounts(),
    )
