"""The MPS control daemon: pods share GPUs through CUDA MPS where a configuration of the device plugin declares it.

It has the image and the settings of the device plugin, as in the GPU Operator.
"""

from __future__ import annotations

from typing import Any

from gpu_provision.components import labels, operands, pods
from gpu_provision.components.config_manager import ConfigManager
from gpu_provision.components.device_plugin import ACCOUNT, MPS_MOUNTS, mps_volumes
from gpu_provision.components.sharing import mps_configurations
from gpu_provision.model.cluster import Manifest, RenderContext
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.specs import DevicePluginSpec

NAME = "mps_control_daemon"
TITLE = "MPS control daemon"
REQUIRES: tuple[str, ...] = ("validator",)

_APP = "nvidia-device-plugin-mps-control-daemon"
_PROGRAM = "mps-control-daemon"
_CONTAINER = f"{_PROGRAM}-ctr"


def spec(inventory: Inventory) -> DevicePluginSpec | None:
    """Return the device plugin's spec, or None if nothing can declare MPS."""
    plugin = inventory.specs.device_plugin
    return plugin if plugin.enabled and plugin.config_map else None


def is_needed(_spec: DevicePluginSpec, context: RenderContext) -> bool:
    """Whether a configuration declares MPS; of a ConfigMap that the inventory only names, once it was read."""
    return bool(mps_configurations(context))


def manifests(spec: DevicePluginSpec, context: RenderContext) -> list[Manifest]:
    """Return the DaemonSet, for the nodes that GPU Feature Discovery labels as their configuration declares MPS.

    A restart ends all programs that use MPS on the node, so only a change of these configurations restarts the pods.
    """
    daemon_set = operands.daemon_set(
        context,
        _APP,
        switch="device-plugin",
        node_labels={labels.MPS_CAPABLE: "true"},
        pod_annotations=operands.config_annotation(mps_configurations(context)),
        pod=_pod(spec, context),
        gpu_containers=[_CONTAINER],
    )
    return [daemon_set]


def _pod(spec: DevicePluginSpec, context: RenderContext) -> dict[str, Any]:
    config = ConfigManager(spec, context)
    mount = pods.container(
        "mps-control-daemon-mounts",
        spec,
        command=[_PROGRAM, "mount-shm"],
        securityContext=pods.PRIVILEGED,
        resources=dict(spec.resources),
        volumeMounts=[pods.mount("mps-root", "/mps", pods.BOTH_WAYS)],
    )
    daemon = pods.container(
        _CONTAINER,
        spec,
        command=[_PROGRAM],
        env=pods.environment(
            {
                **pods.NODE_NAME,
                "NVIDIA_VISIBLE_DEVICES": "all",
                "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
                **operands.mig_environment(context),
                **config.environment,
            }
        ),
        securityContext=pods.PRIVILEGED,
        resources=dict(spec.resources),
        volumeMounts=[*MPS_MOUNTS, *config.mounts],
    )
    return operands.gpu_pod(
        spec,
        context,
        ACCOUNT,
        hostPID=True,  # a server of MPS looks for its own process under /proc
        initContainers=[operands.wait_for_toolkit(context, operands.MOUNT_RUN_NVIDIA), mount, *config.init_containers],
        # The reference signals /usr/bin/mps-control-daemon, which is not the name of the process: the side-car ends
        # with an error at each change. https://github.com/NVIDIA/k8s-device-plugin/pull/1827
        containers=[daemon, *config.side_cars(_PROGRAM)],
        volumes=[operands.RUN_NVIDIA, *mps_volumes(spec.mps), *config.volumes],
    )
