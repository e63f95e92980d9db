"""The container toolkit: installs its binaries, tells the container runtime about them, writes CDI files."""

from __future__ import annotations

from gpu_provision.sandbox.distributions import distribution_of
from gpu_provision.sandbox.nodes.behaviours.behaviour import Behaviour
from gpu_provision.sandbox.nodes.container import Container
from gpu_provision.sandbox.nodes.machine import CRIO_DROP_IN, HANDLER, RUNTIME_CONFIGS

OWNER = "toolkit"
_CONFIG_VARIABLES = ("RUNTIME_DROP_IN_CONFIG", "RUNTIME_CONFIG", "CONTAINERD_CONFIG", "DOCKER_CONFIG", "CRIO_CONFIG")
_NAME_VARIABLES = ("NVIDIA_RUNTIME_NAME", "CONTAINERD_RUNTIME_CLASS", "DOCKER_RUNTIME_NAME")  # for any runtime
_SOCKET_VARIABLES = ("RUNTIME_SOCKET", "CONTAINERD_SOCKET", "DOCKER_SOCKET", "CRIO_SOCKET")


async def _install(container: Container) -> int:
    machine, files = container.machine, container.files
    root = container.env.get("ROOT") or next((w for w in container.argv[1:] if w.startswith("/")), "/usr/local/nvidia")
    container.log("Starting nvidia-toolkit", f"Installing NVIDIA container toolkit to '{root}/toolkit'")
    await container.sleep(container.world.timings.toolkit_install)
    if not files.host_path(root):
        container.log(
            f"warning: {root} is not a directory of the host; the container runtime will not find the toolkit"
        )
    programs = [f"{root}/toolkit/{name}" for name in ("nvidia-container-runtime", "nvidia-cdi-hook")]
    for path in programs:
        files.write(path, "ELF")
    machine.host.show_containers_toolkit(filter(None, map(files.host_path, programs)))
    config = next((container.env[name] for name in _CONFIG_VARIABLES if container.env.get(name)), "")
    problem = _configure(container, config, root)
    if problem:
        container.log(problem)
        return 1
    if container.env.get("CDI_ENABLED") == "true" and files.host_path("/var/run/cdi"):
        files.write(
            "/var/run/cdi/management.nvidia.com-gpu.yaml", "cdiVersion: 0.5.0\nkind: management.nvidia.com/gpu\n"
        )
    machine.state.owners[OWNER] = container.key
    machine.changed()
    container.log("Waiting for signal")
    return await container.for_ever()


def _configure(container: Container, config: str, root: str) -> str:
    """Write the container runtime's configuration and have it restart; return what went wrong."""
    if container.env.get("ENABLE_NRI_PLUGIN") == "true":
        return ""
    host_config = container.files.host_path(config) if config else ""
    if host_config not in (*RUNTIME_CONFIGS, CRIO_DROP_IN):
        return f"unable to setup runtime: config file {config or '(none)'} is not one that the container runtime reads"
    socket = next((container.env[name] for name in _SOCKET_VARIABLES if container.env.get(name)), "")
    elsewhere = _elsewhere(container, container.files.host_path(socket))
    if elsewhere:
        return elsewhere
    if host_config != CRIO_DROP_IN and not container.files.host_path(socket):
        return f"unable to restart container runtime: dial unix {socket}: connect: no such file or directory"
    container.log(f"Loading config from {config}", f"Flushing config to {config}", "Sending SIGHUP signal")
    name = next((container.env[name] for name in _NAME_VARIABLES if container.env.get(name)), "nvidia")
    container.files.write(config, f"{HANDLER}{name}\n# at {root}/toolkit/nvidia-container-runtime\n")
    container.machine.state.owners["runtime-config"] = host_config
    return ""


def _elsewhere(container: Container, socket: str) -> str:
    """Return what a containerd of the distribution's own misses; empty on machines with the system's."""
    distribution = distribution_of(container.machine.spec.kubelet)
    if distribution is None or container.env.get("RUNTIME") != "containerd":
        return ""
    config = container.files.host_path(container.env.get("RUNTIME_CONFIG", ""))
    if config not in {distribution.config, distribution.lasting}:
        return f"unable to setup runtime: {config or 'no file'} is not one that {distribution.name} reads"
    if socket != distribution.socket:
        return f"unable to restart container runtime: {distribution.name} does not listen on {socket or '(none)'}"
    return ""


def _stopped(container: Container) -> None:
    """Take back the runtime's configuration, as the toolkit does when it is asked to end; its binaries stay."""
    machine = container.machine
    if machine.state.owners.get(OWNER) != container.key:
        return
    del machine.state.owners[OWNER]
    machine.state.files.pop(machine.state.owners.pop("runtime-config", ""), None)
    machine.changed()


TOOLKIT = Behaviour(_install, _stopped)
