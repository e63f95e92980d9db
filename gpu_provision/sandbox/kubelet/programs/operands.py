"""The GPU operands but for the driver: container toolkit, device plugin, GPU Feature Discovery, DCGM."""

from __future__ import annotations

import time
from typing import Any

import yaml

from gpu_provision.sandbox.api import NODE_FEATURES, NODES
from gpu_provision.sandbox.hosts.spec import find_distribution
from gpu_provision.sandbox.kubelet.container import Container, Program
from gpu_provision.sandbox.kubelet.machine import CRIO_DROP_IN, HANDLER, RUNTIME_CONFIGS
from gpu_provision.sandbox.kubelet.node import GPU_RESOURCE
from gpu_provision.sandbox.kubelet.programs.nfd import has_changed, publish
from gpu_provision.sandbox.operand_rules import gpu_labels

_SOCKETS = "/var/lib/kubelet/device-plugins"
_PLUGIN_OWNER = "device-plugin"


def count_replicas(config: str) -> int:
    """Return how many times each GPU is offered, by the configuration's time slicing or MPS."""
    try:
        sharing: Any = (yaml.safe_load(config) or {}).get("sharing") or {}
    except (yaml.YAMLError, AttributeError):
        return 1
    kind = sharing.get("mps") or sharing.get("timeSlicing") or {}
    found = [r.get("replicas", 1) for r in kind.get("resources") or () if r.get("name") == GPU_RESOURCE]
    return int(found[0]) if found else 1


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
    machine.state.owners[_PLUGIN_OWNER] = container.key
    container.up()
    while True:
        count = _count_devices(container)
        machine.register_devices(count)
        await machine.until(lambda: _count_devices(container) != machine.state.devices)


def _count_devices(container: Container) -> int:
    machine = container.machine
    fault = machine.faults.of("plugin-sees-fewer", machine.name)
    seen = max(0, machine.gpus - int(fault.get("count", 1))) if fault else machine.gpus
    config = container.env.get("CONFIG_FILE", "")
    return seen * (count_replicas(container.files.read(config)) if config else 1)


def _stop_plugin(container: Container) -> None:
    """The kubelet loses the plugin's socket: its devices can no longer be had."""
    machine = container.machine
    if machine.state.owners.get(_PLUGIN_OWNER) == container.key:
        del machine.state.owners[_PLUGIN_OWNER]
        machine.lose_plugin()


async def _run_config_manager(container: Container) -> int:
    """Copy the configuration that the node's label names; then watch the label, unless it is to run once."""
    chosen = await _read_config_name(container)
    source = f"{container.env.get('CONFIG_FILE_SRCDIR', '/available-configs')}/{chosen}"
    if chosen and not container.files.exists(source):
        container.log(f"error: specified config {chosen} does not exist")
        return 1
    container.files.write(container.env.get("CONFIG_FILE_DST", "/config/config.yaml"), container.files.read(source))
    container.log(f"Updating to config: {chosen or '(empty)'}")
    if container.env.get("ONESHOT") == "true":
        return 0
    return await container.for_ever()


async def _read_config_name(container: Container) -> str:
    label = container.env.get("NODE_LABEL", "nvidia.com/device-plugin.config")
    node = await container.simulation.api.get(NODES, container.machine.name)
    return (node["metadata"].get("labels") or {}).get(label) or container.env.get("DEFAULT_CONFIG", "")


DEVICE_PLUGIN = Program(_run_plugin, _stop_plugin)
CONFIG_MANAGER = Program(_run_config_manager)
_TIMESTAMP = "nvidia.com/gfd.timestamp"


async def _run_gfd(container: Container) -> int:
    container.log("Starting GPU Feature Discovery")
    node = container.env.get("NODE_NAME", "")
    if not container.visible_gpus or not node:
        problem = "could not load NVML library" if node else "NODE_NAME is not set"
        container.log(f"error: failed to initialize: {problem}")
        return 1 if container.env.get("GFD_FAIL_ON_INIT_ERROR", "true") == "true" else await container.for_ever()
    container.hold_gpu()
    container.up()
    stamp = await _read_start_time(container, node)
    machine = container.machine
    while True:
        labels = _current_labels(container)
        await publish(container, f"nvidia-features-for-{node}", labels | stamp)
        container.log(f"Created {len(labels) + 1} labels")
        await machine.until(has_changed(lambda: _current_labels(container), labels))


def _current_labels(container: Container) -> dict[str, str]:
    machine, gpu = container.machine, container.machine.spec.gpu
    if gpu is None:
        return {}
    config = container.env.get("CONFIG_FILE", "")
    copies = count_replicas(container.files.read(config)) if config else 1
    strategy = container.env.get("MIG_STRATEGY", "none")
    return gpu_labels(gpu, machine.gpus, machine.state.driver, strategy=strategy, copies=copies)


async def _read_start_time(container: Container, node: str) -> dict[str, str]:
    """Return when this program started; one that was only taken over again keeps its time."""
    name, found = f"nvidia-features-for-{node}", None
    if container.adopted:
        found = await container.simulation.find(NODE_FEATURES, name, container.namespace)
    kept = (found or {}).get("spec", {}).get("labels", {})
    return {_TIMESTAMP: kept.get(_TIMESTAMP) or str(int(time.time()))}


GFD = Program(_run_gfd)


async def _run_dcgm(container: Container) -> int:
    if not container.visible_gpus:
        container.log("Error: Unable to start host engine: libnvidia-ml.so.1 was not found")
        return 1
    container.hold_gpu()
    container.log("Started host engine version 4 using port number: 5555")
    return await container.for_ever()


async def _run_exporter(container: Container) -> int:
    container.log("Starting dcgm-exporter")
    if not container.visible_gpus and not container.env.get("DCGM_REMOTE_HOSTENGINE_INFO"):
        container.log('level=fatal msg="Error starting nv-hostengine: DCGM initialization error"')
        return 1
    container.hold_gpu()
    listen = container.env.get("DCGM_EXPORTER_LISTEN", ":9400")
    container.log("DCGM successfully initialized!", f"Starting webserver listening on {listen}")
    return await container.for_ever()


DCGM = Program(_run_dcgm)
DCGM_EXPORTER = Program(_run_exporter)
_TOOLKIT_OWNER = "toolkit"
_CONFIG_VARIABLES = ("RUNTIME_DROP_IN_CONFIG", "RUNTIME_CONFIG", "CONTAINERD_CONFIG", "DOCKER_CONFIG", "CRIO_CONFIG")
_NAME_VARIABLES = ("NVIDIA_RUNTIME_NAME", "CONTAINERD_RUNTIME_CLASS", "DOCKER_RUNTIME_NAME")  # for any runtime
_SOCKET_VARIABLES = ("RUNTIME_SOCKET", "CONTAINERD_SOCKET", "DOCKER_SOCKET", "CRIO_SOCKET")


async def _run_toolkit(container: Container) -> int:
    machine, files = container.machine, container.files
    root = container.env.get("ROOT") or next((w for w in container.argv[1:] if w.startswith("/")), "/usr/local/nvidia")
    container.log("Starting nvidia-toolkit", f"Installing NVIDIA container toolkit to '{root}/toolkit'")
    await container.sleep(container.simulation.timings.toolkit_install)
    if not files.host_path(root):
        container.log(
            f"warning: {root} is not a directory of the host; the container runtime will not find the toolkit"
        )
    programs = [f"{root}/toolkit/{name}" for name in ("nvidia-container-runtime", "nvidia-cdi-hook")]
    for path in programs:
        files.write(path, "ELF")
    machine.host.show_containers_toolkit(filter(None, map(files.host_path, programs)))
    config = next((container.env[name] for name in _CONFIG_VARIABLES if container.env.get(name)), "")
    problem = _configure_runtime(container, config, root)
    if problem:
        container.log(problem)
        return 1
    if container.env.get("CDI_ENABLED") == "true" and files.host_path("/var/run/cdi"):
        files.write(
            "/var/run/cdi/management.nvidia.com-gpu.yaml", "cdiVersion: 0.5.0\nkind: management.nvidia.com/gpu\n"
        )
    machine.state.owners[_TOOLKIT_OWNER] = container.key
    machine.changed()
    container.log("Waiting for signal")
    return await container.for_ever()


def _configure_runtime(container: Container, config: str, root: str) -> str:
    """Write the container runtime's configuration and have it restart; return what went wrong."""
    if container.env.get("ENABLE_NRI_PLUGIN") == "true":
        return ""
    host_config = container.files.host_path(config) if config else ""
    if host_config not in (*RUNTIME_CONFIGS, CRIO_DROP_IN):
        return f"unable to setup runtime: config file {config or '(none)'} is not one that the container runtime reads"
    socket = next((container.env[name] for name in _SOCKET_VARIABLES if container.env.get(name)), "")
    elsewhere = _distribution_problem(container, container.files.host_path(socket))
    if elsewhere:
        return elsewhere
    if host_config != CRIO_DROP_IN and not container.files.host_path(socket):
        return f"unable to restart container runtime: dial unix {socket}: connect: no such file or directory"
    container.log(f"Loading config from {config}", f"Flushing config to {config}", "Sending SIGHUP signal")
    name = next((container.env[name] for name in _NAME_VARIABLES if container.env.get(name)), "nvidia")
    container.files.write(config, f"{HANDLER}{name}\n# at {root}/toolkit/nvidia-container-runtime\n")
    container.machine.state.owners["runtime-config"] = host_config
    return ""


def _distribution_problem(container: Container, socket: str) -> str:
    """Return what a containerd of the distribution's own misses; empty on machines with the system's."""
    distribution = find_distribution(container.machine.spec.kubelet)
    if distribution is None or container.env.get("RUNTIME") != "containerd":
        return ""
    config = container.files.host_path(container.env.get("RUNTIME_CONFIG", ""))
    if config not in {distribution.config, distribution.lasting}:
        return f"unable to setup runtime: {config or 'no file'} is not one that {distribution.name} reads"
    if socket != distribution.socket:
        return f"unable to restart container runtime: {distribution.name} does not listen on {socket or '(none)'}"
    return ""


def _stop_toolkit(container: Container) -> None:
    """Take back the runtime's configuration, as the toolkit does when it is asked to end; its binaries stay."""
    machine = container.machine
    if machine.state.owners.get(_TOOLKIT_OWNER) != container.key:
        return
    del machine.state.owners[_TOOLKIT_OWNER]
    machine.state.files.pop(machine.state.owners.pop("runtime-config", ""), None)
    machine.changed()


TOOLKIT = Program(_run_toolkit, _stop_toolkit)
