"""The device plugin: makes ``nvidia.com/gpu`` a resource that pods can request."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from gpu_provision.components import driver_side_cars, labels, operands, pods
from gpu_provision.components.config_manager import ConfigManager
from gpu_provision.components.node_labels import plugin_choices
from gpu_provision.components.objects import config_map, is_at_least
from gpu_provision.components.sharing import configurations
from gpu_provision.model import codes
from gpu_provision.model.cluster import Manifest, RenderContext
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.specs import DevicePluginSpec, MpsSection
from gpu_provision.model.text import nodes_at

NAME = "device_plugin"
TITLE = "NVIDIA device plugin"
REQUIRES: tuple[str, ...] = ("validator",)
ACCOUNT = "nvidia-device-plugin"
_APP = "nvidia-device-plugin-daemonset"
_CONTAINER = "nvidia-device-plugin"
_ENTRYPOINT = "nvidia-device-plugin-entrypoint"

MPS_MOUNTS = [
    pods.mount("mps-shm", "/dev/shm"),  # noqa: S108 -- the container's shared memory, not a file of this program
    pods.mount("mps-root", "/mps"),
]

# The kubelet uses this path for plugins, whatever its root directory is.
_PLUGIN_DIRECTORY = "/var/lib/kubelet/device-plugins"

_VOLUMES = [
    pods.config_volume(_ENTRYPOINT, mode=0o700),
    pods.host_volume("device-plugin", _PLUGIN_DIRECTORY),
    operands.RUN_NVIDIA_VALIDATIONS,
    operands.DRIVER_INSTALL_DIR,
    operands.HOST_ROOT,
    operands.CDI_ROOT,
]

_MOUNTS = [
    pods.mount(_ENTRYPOINT, "/bin/entrypoint.sh", read_only=True, sub_path="entrypoint.sh"),
    pods.mount("device-plugin", _PLUGIN_DIRECTORY),
    operands.MOUNT_VALIDATIONS,
    pods.mount("driver-install-dir", "/driver-root", pods.TO_CONTAINER),
    operands.MOUNT_HOST_ROOT,
    pods.mount("cdi-root", "/var/run/cdi"),
    *MPS_MOUNTS,
]


def manifests(spec: DevicePluginSpec, context: RenderContext) -> list[Manifest]:
    """Return access rights, the entrypoint, the inventory's configurations and the DaemonSet."""
    files, config, entrypoint = (
        configurations(context),
        ConfigManager(spec, context),
        operands.entrypoint(context, "device-plugin"),
    )
    own = [config_map(spec.config_map, context.namespace, files, {labels.APP: _APP})] if spec.config.data else []
    return [
        *operands.access(ACCOUNT, context.namespace, cluster_rules=config.cluster_rules),
        config_map(_ENTRYPOINT, context.namespace, entrypoint, {labels.APP: _APP}),
        *own,
        operands.daemon_set(
            context,
            _APP,
            switch="device-plugin",
            # The side-car notices another label, but not another content of the same configuration.
            pod_annotations=operands.config_annotation(entrypoint, files),
            pod=_pod(spec, context, config),
            gpu_containers=[_CONTAINER],
        ),
    ]


def _pod(spec: DevicePluginSpec, context: RenderContext, config: ConfigManager) -> dict[str, Any]:
    wait = operands.wait_for_toolkit(context, operands.MOUNT_VALIDATIONS_TO_CONTAINER)
    return operands.gpu_pod(
        spec,
        context,
        ACCOUNT,
        shareProcessNamespace=config.is_on or None,
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
        volumes=[*_VOLUMES, *mps_volumes(spec.mps), *config.volumes],
    )


def _environment(spec: DevicePluginSpec, context: RenderContext, config: ConfigManager) -> dict[str, str]:
    specs = context.inventory.specs
    # Plugins since 0.15 use the CDI fields of the kubelet's API.
    cdi_strategy = "cdi-annotations,cdi-cri" if is_at_least(spec.image.version, (0, 15)) else "cdi-annotations"
    cdi = {"CDI_ENABLED": "true", "CDI_ANNOTATION_PREFIX": "cdi.k8s.io/", **operands.cdi_hook(specs.toolkit)}
    return {
        "PASS_DEVICE_SPECS": "true",
        "FAIL_ON_INIT_ERROR": "true",
        "DEVICE_LIST_STRATEGY": cdi_strategy if specs.cdi_enabled else "envvar",
        "DEVICE_ID_STRATEGY": "uuid",
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "all",
        "MPS_ROOT": spec.mps.root,
        **operands.mig_environment(context),
        **(cdi if specs.cdi_enabled else {}),
        **driver_side_cars.plugin_environment(context.inventory),
        **config.environment,
    }


def mps_volumes(spec: MpsSection) -> list[dict[str, Any]]:
    """Return the volumes of `MPS_MOUNTS`, which the device plugin shares with the MPS control daemon."""
    shared_memory = str(PurePosixPath(spec.root) / "shm")
    return [pods.host_volume("mps-root", spec.root, "DirectoryOrCreate"), pods.host_volume("mps-shm", shared_memory)]


def problems(spec: DevicePluginSpec, context: RenderContext) -> tuple[Finding, ...]:
    """Return the nodes whose label names no configuration: there the plugin does not start."""
    files, unknown = configurations(context), dict[str, list[str]]()
    for node, choice in plugin_choices(context).items():
        if files and choice and choice not in files:
            unknown.setdefault(choice, []).append(node)
    known, key = ", ".join(sorted(files)), labels.PLUGIN_CONFIG
    return tuple(
        Finding(
            code=codes.NO_PLUGIN_CONFIG,
            what=f"The configuration {choice} of the device plugin does not exist.",
            where=nodes_at(nodes),
            evidence=f"label {key}={choice}; ConfigMap {spec.config_map} has {known}",
            consequence="the device plugin does not start there",
            fix=f"Add it, correct device_plugin.config of the pool, or run: kubectl label node NODE {key}-",
            severity=Severity.WARNING,
        )
        for choice, nodes in sorted(unknown.items())
    )
