"""The device plugin, its config manager, and the MPS control daemon."""

from __future__ import annotations

import asyncio

import yaml

from gpu_provision.sandbox.api import NODES
from gpu_provision.sandbox.informer import Informer
from gpu_provision.sandbox.kubelet.container import Container, Program
from gpu_provision.sandbox.operand_rules import Offer, find_offer

_SOCKETS = "/var/lib/kubelet/device-plugins"
_PLUGIN_OWNER, _MPS_OWNER, _MPS_READY = "device-plugin", "mps-control-daemon", "/mps/.ready"


def read_offer(container: Container) -> Offer:
    """Return what a device plugin offers by MIG, and by the configuration of a container."""
    file = container.env.get("CONFIG_FILE", "")
    try:
        configuration = yaml.safe_load(container.files.read(file) if file else "")
    except yaml.YAMLError:
        configuration = None
    return find_offer(configuration, container.machine.mig, strategy=container.env.get("MIG_STRATEGY", "none"))


async def _run_plugin(container: Container) -> int:
    machine = container.machine
    container.log("Starting NVIDIA Device Plugin", "Loading NVML")
    if not container.visible_gpus:
        container.log(
            "Failed to initialize NVML: could not load NVML library.",
            "If this is a GPU node, did you set the docker default runtime to `nvidia`?",
        )
        if container.env.get("FAIL_ON_INIT_ERROR", "true") == "true":
            return 1
        return await container.run_forever()
    if container.files.host_path(_SOCKETS) != _SOCKETS:
        container.log(
            f"error: could not start plugin: listen unix {_SOCKETS}/nvidia-gpu.sock: no such file or directory"
        )
        return 1
    container.hold_gpu()
    resource = read_offer(container).resource
    container.log(
        f"Starting to serve '{resource}' on {_SOCKETS}/nvidia-gpu.sock",
        f"Registered device plugin for '{resource}' with Kubelet",
    )
    machine.state.owners[_PLUGIN_OWNER] = container.key
    container.report_started()
    while True:
        await container.wait_until(
            lambda: _is_mps_ready(container), "Failed to start plugin: error waiting for MPS daemon; retrying in 30s"
        )
        offered = _count_devices(container)
        machine.register_devices(*offered)
        await machine.wait_until(lambda offered=offered: _count_devices(container) != offered)  # type: ignore[misc]


def _is_mps_ready(container: Container) -> bool:
    return read_offer(container).sharing != "mps" or container.files.exists(_MPS_READY)


def _count_devices(container: Container) -> tuple[int, str]:
    """Return how many devices the plugin registers, and by what name."""
    machine = container.machine
    fault = machine.faults.find("plugin-sees-fewer", machine.name)
    seen = max(0, machine.gpus - int(fault.get("count", 1))) if fault else machine.gpus
    offer = read_offer(container)
    return seen * offer.devices * offer.replicas, offer.resource


def _stop_plugin(container: Container) -> None:
    """Keep the devices and hand out none, as a kubelet does for minutes after it lost the plugin's socket."""
    machine = container.machine
    if machine.state.owners.get(_PLUGIN_OWNER) == container.key:
        del machine.state.owners[_PLUGIN_OWNER]
        machine.state.devices = 0
        machine.save_and_notify()


async def _run_config_manager(container: Container) -> int:
    """Copy the configuration that the node's label names; again whenever that changes, unless it is to run once."""
    machine = container.machine
    nodes = Informer(container.simulation.api, NODES, field_selector=f"metadata.name={machine.name}")
    nodes.on_event(lambda *_: machine.wake())
    following = asyncio.create_task(nodes.run())
    try:
        await nodes.wait_for_sync()
        while True:
            chosen = _choose_config(container, nodes)
            source = f"{container.env.get('CONFIG_FILE_SRCDIR', '/available-configs')}/{chosen}"
            if chosen and not container.files.exists(source):
                container.log(f"error: specified config {chosen} does not exist")
                return 1
            text = container.files.read(source) if chosen else ""
            container.files.write(container.env.get("CONFIG_FILE_DST", "/config/config.yaml"), text)
            container.log(f"Updating to config: {chosen or '(empty)'}")
            if container.env.get("ONESHOT") == "true":
                return 0
            container.report_started()
            await machine.wait_until(lambda chosen=chosen: _choose_config(container, nodes) != chosen)  # type: ignore[misc]
    finally:
        following.cancel()


def _choose_config(container: Container, nodes: Informer) -> str:
    label = container.env.get("NODE_LABEL", "nvidia.com/device-plugin.config")
    labels = next((node["metadata"].get("labels") for node in nodes.objects.values()), None) or {}
    return labels.get(label) or container.env.get("DEFAULT_CONFIG", "")


async def _run_mps_daemon(container: Container) -> int:
    """Make the shared memory of MPS for ``mount-shm``; else serve MPS, if a configuration declares it."""
    if "mount-shm" in container.argv:
        if not container.files.publishes("/mps/shm"):
            container.log("error mounting /mps/shm as tmpfs: the mount does not reach the host")
            return 1
        container.machine.make_directory(container.files.host_path("/mps/shm"))
        return 0
    if not container.visible_gpus:
        container.log("error starting plugins: could not load NVML library")
        return 1
    is_shared = container.files.host_path("/dev/shm") == container.files.host_path("/mps/shm") != ""  # noqa: S108 -- of the container
    if not (is_shared and container.pod["spec"].get("hostPID")):
        container.log("Failed to start MPS daemon: it needs the shared memory of MPS and the host's processes")
        return 1
    container.hold_gpu()
    container.machine.state.owners[_MPS_OWNER] = container.key
    is_on = read_offer(container).sharing == "mps"
    container.log(
        "Starting MPS daemon" if is_on else "No devices are configured for MPS sharing; Waiting indefinitely."
    )
    container.files.write(_MPS_READY, "")
    return await container.run_forever()


def _stop_mps_daemon(container: Container) -> None:
    owners = container.machine.state.owners
    if owners.get(_MPS_OWNER) == container.key:
        del owners[_MPS_OWNER]
        container.files.remove(_MPS_READY)


PLUGIN = Program(_run_plugin, _stop_plugin)
CONFIG_MANAGER = Program(_run_config_manager)
MPS_CONTROL_DAEMON = Program(_run_mps_daemon, _stop_mps_daemon)
