"""The driver manager, init container of the driver: clears the way for a driver on a node that may have one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from gpu_provision.sandbox.api import ApiError
from gpu_provision.sandbox.nodes.admission import gpus_asked
from gpu_provision.sandbox.nodes.behaviours.behaviour import Behaviour
from gpu_provision.sandbox.nodes.container import Container
from gpu_provision.sandbox.nodes.world import NODES, NOT_FOUND, PODS

Object = dict[str, Any]

_PAUSED = "paused-for-driver-upgrade"
_DEPLOY = "nvidia.com/gpu.deploy."
_AUTO_UPGRADE = "nvidia.com/gpu-driver-upgrade-enabled"
_OPERANDS = {
    "operator-validator": "nvidia-operator-validator",
    "container-toolkit": "nvidia-container-toolkit-daemonset",
    "device-plugin": "nvidia-device-plugin-daemonset",
    "gpu-feature-discovery": "gpu-feature-discovery",
    "dcgm-exporter": "nvidia-dcgm-exporter",
    "dcgm": "nvidia-dcgm",
}
"""Deploy label -> label ``app`` of the pods to wait for, in the order in which the driver manager waits."""
_LONGEST_WAIT = 300.0


async def _uninstall(container: Container) -> int:
    if not container.env.get("NODE_NAME"):
        container.log("Error: required environment variable NODE_NAME is not set")
        return 1
    machine = container.machine
    if machine.host_driver and container.files.host_path("/host/usr") == "/usr":
        return await _pre_installed(container)
    if "nvidia" in machine.state.modules:
        return await _replace(container)
    container.log("NVIDIA driver module is not loaded", "No eviction needed")
    if not machine.unload_nouveau():
        container.log("failed to unload nouveau driver: module is in use")
        return 1
    await _restore(container)
    return 0


async def _pre_installed(container: Container) -> int:
    container.log(f"NVIDIA GPU driver is already pre-installed on the node: {container.machine.host_driver}")
    await _label(container, {f"{_DEPLOY}driver": "pre-installed"})
    await container.world.pause()
    return 1


async def _replace(container: Container) -> int:
    """Pause the operands, evict what uses the GPU, unload the old driver, and let the operands go on."""
    machine = container.machine
    node = await container.world.api.get(NODES, machine.name)
    await _pause(container, node)
    digest = container.env.get("DRIVER_CONFIG_DIGEST", "")
    if digest and digest == machine.state.driver_digest:
        container.log("Driver configuration has not changed, skipping driver uninstall")
        await _restore(container)
        return 0
    evicts = _evicts(container, node)
    if evicts:
        await container.world.api.patch(NODES, machine.name, {"spec": {"unschedulable": True}})
        await _evict_gpu_pods(container)
    container.log("Unloading NVIDIA driver kernel modules...")
    unloaded = machine.unload_driver()
    if not unloaded:
        container.log("Failed to unload the NVIDIA driver kernel modules: module nvidia is in use")
    await _restore(container)
    return 0 if unloaded else 1


def _evicts(container: Container, node: Mapping[str, Any]) -> bool:
    upgrading = (node["metadata"].get("annotations") or {}).get(_AUTO_UPGRADE) == "true"
    return container.env.get("ENABLE_GPU_POD_EVICTION", "true") == "true" and not upgrading


async def _pause(container: Container, node: Mapping[str, Any]) -> None:
    labels = node["metadata"].get("labels") or {}
    paused = {
        f"{_DEPLOY}{operand}": _paused_value(labels[f"{_DEPLOY}{operand}"])
        for operand in _OPERANDS
        if labels.get(f"{_DEPLOY}{operand}")
    }
    await _label(container, paused)
    for operand, app in _OPERANDS.items():
        if f"{_DEPLOY}{operand}" in paused:
            container.log(f"Waiting for {operand} to shutdown")
            await _gone(container, lambda pod, app=app: (pod["metadata"].get("labels") or {}).get("app") == app)


def _paused_value(value: str) -> str:
    if value == "false" or _PAUSED in value:
        return value
    return _PAUSED if value == "true" else f"{value}_{_PAUSED}"


async def _gone(container: Container, chosen: Any) -> None:
    """Wait until the chosen pods have left the node, but not for ever."""
    world = container.world
    try:
        async with asyncio.timeout(world.timings.scaled(_LONGEST_WAIT)):
            while any(map(chosen, world.pods.by("node", container.machine.name))):
                await world.pause()
    except TimeoutError:
        container.log("timed out waiting for pods to shut down")


async def _evict_gpu_pods(container: Container) -> None:
    world = container.world

    def uses_gpu(pod: Mapping[str, Any]) -> bool:
        owners = pod["metadata"].get("ownerReferences") or ()
        return any(map(gpus_asked, pod["spec"]["containers"])) and all(o["kind"] != "DaemonSet" for o in owners)

    for pod in filter(uses_gpu, world.pods.by("node", container.machine.name)):
        container.log(f"evicting pod {pod['metadata']['namespace']}/{pod['metadata']['name']}")
        try:
            await world.api.delete(PODS, pod["metadata"]["name"], pod["metadata"]["namespace"])
        except ApiError as refusal:
            if refusal.code != NOT_FOUND:
                raise
    await _gone(container, uses_gpu)


async def _restore(container: Container) -> None:
    """Undo what an eviction did: the operands' labels, and the cordon if it is ours to lift."""
    node = await container.world.api.get(NODES, container.machine.name)
    labels = node["metadata"].get("labels") or {}
    paused = {key: value for key, value in labels.items() if key.startswith(_DEPLOY) and value.endswith(_PAUSED)}
    await _label(
        container, {key: value.removesuffix(_PAUSED).removesuffix("_") or "true" for key, value in paused.items()}
    )
    if node["spec"].get("unschedulable") and _evicts(container, node):
        await container.world.api.patch(NODES, container.machine.name, {"spec": {"unschedulable": None}})


async def _label(container: Container, labels: Mapping[str, str]) -> None:
    if labels:
        await container.world.api.patch(NODES, container.machine.name, {"metadata": {"labels": dict(labels)}})


DRIVER_MANAGER = Behaviour(_uninstall)
