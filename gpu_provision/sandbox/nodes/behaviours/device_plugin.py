"""The device plugin, which registers GPUs with the kubelet, and its side-car that picks a configuration."""

from __future__ import annotations

from typing import Any

import yaml

from gpu_provision.sandbox.nodes.behaviours.behaviour import Behaviour
from gpu_provision.sandbox.nodes.container import Container
from gpu_provision.sandbox.nodes.node import GPU_RESOURCE
from gpu_provision.sandbox.nodes.world import NODES

_SOCKETS = "/var/lib/kubelet/device-plugins"
OWNER = "device-plugin"


def replicas(config: str) -> int:
    """Return how many times each GPU is offered, by the configuration's time slicing or MPS."""
    try:
        sharing: Any = (yaml.safe_load(config) or {}).get("sharing") or {}
    except (yaml.YAMLError, AttributeError):
        return 1
    kind = sharing.get("mps") or sharing.get("timeSlicing") or {}
    found = [r.get("replicas", 1) for r in kind.get("resources") or () if r.get("name") == GPU_RESOURCE]
    return int(found[0]) if found else 1


async def _plugin(container: Container) -> int:
    machine = container.machine
    container.log("Starting NVIDIA Device Plugin", "Loading NVML")
    if not container.visible_gpus:
        container.log(
            "Failed to initialize NVML: could not load NVML library.",
            "If this is a GPU node, did you set the docker default runtime to `nvidia`?",
        )
        if container.env.get("FAIL_ON_INIT_ERROR", "true") == "true":
            return 1
        return await container.for_ever()
    if container.files.host_path(_SOCKETS) != _SOCKETS:
        container.log(
            f"error: could not start plugin: listen unix {_SOCKETS}/nvidia-gpu.sock: no such file or directory"
        )
        return 1
    container.hold_gpu()
    container.log(
        f"Starting to serve '{GPU_RESOURCE}' on {_SOCKETS}/nvidia-gpu.sock",
        f"Registered device plugin for '{GPU_RESOURCE}' with Kubelet",
    )
    machine.state.owners[OWNER] = container.key
    container.up()
    while True:
        count = _devices(container)
        machine.register_devices(count)
        await machine.until(lambda: _devices(container) != machine.state.devices)


def _devices(container: Container) -> int:
    machine = container.machine
    fault = machine.faults.of("plugin-sees-fewer", machine.name)
    seen = max(0, machine.gpus - int(fault.get("count", 1))) if fault else machine.gpus
    config = container.env.get("CONFIG_FILE", "")
    return seen * (replicas(container.files.read(config)) if config else 1)


def _stopped(container: Container) -> None:
    """The kubelet loses the plugin's socket: its devices can no longer be had."""
    machine = container.machine
    if machine.state.owners.get(OWNER) == container.key:
        del machine.state.owners[OWNER]
        machine.lose_plugin()


async def _config_manager(container: Container) -> int:
    """Copy the configuration that the node's label names; then watch the label, unless it is to run once."""
    chosen = await _chosen(container)
    source = f"{container.env.get('CONFIG_FILE_SRCDIR', '/available-configs')}/{chosen}"
    if chosen and not container.files.exists(source):
        container.log(f"error: specified config {chosen} does not exist")
        return 1
    container.files.write(container.env.get("CONFIG_FILE_DST", "/config/config.yaml"), container.files.read(source))
    container.log(f"Updating to config: {chosen or '(empty)'}")
    if container.env.get("ONESHOT") == "true":
        return 0
    return await container.for_ever()


async def _chosen(container: Container) -> str:
    label = container.env.get("NODE_LABEL", "nvidia.com/device-plugin.config")
    node = await container.world.api.get(NODES, container.machine.name)
    return (node["metadata"].get("labels") or {}).get(label) or container.env.get("DEFAULT_CONFIG", "")


DEVICE_PLUGIN = Behaviour(_plugin, _stopped)
CONFIG_MANAGER = Behaviour(_config_manager)
