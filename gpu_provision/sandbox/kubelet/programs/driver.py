"""The driver container and its driver manager."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from gpu_provision.sandbox.api import NODES, NOT_FOUND, PODS, ApiError
from gpu_provision.sandbox.kubelet.container import Container, Program
from gpu_provision.sandbox.kubelet.machine import DRIVER_ROOT
from gpu_provision.sandbox.kubelet.pod_sandbox import requested_gpus
from gpu_provision.sandbox.operand_rules import DEPLOY, OPERANDS, branch, paused_labels, resumed_labels

_AUTO_UPGRADE = "nvidia.com/gpu-driver-upgrade-enabled"

_LONGEST_WAIT = 300.0


async def _run_manager(container: Container) -> int:
    if not container.env.get("NODE_NAME"):
        container.log("Error: required environment variable NODE_NAME is not set")
        return 1
    machine = container.machine
    if machine.host_driver and container.files.host_path("/host/usr") == "/usr":
        return await _report_host_driver(container)
    if "nvidia" in machine.state.modules:
        return await _replace(container)
    container.log("NVIDIA driver module is not loaded", "No eviction needed")
    if not machine.unload_nouveau():
        container.log("failed to unload nouveau driver: module is in use")
        return 1
    await _restore(container)
    return 0


async def _report_host_driver(container: Container) -> int:
    container.log(f"NVIDIA GPU driver is already pre-installed on the node: {container.machine.host_driver}")
    await _label(container, {f"{DEPLOY}driver": "pre-installed"})
    await container.simulation.pause()
    return 1


async def _replace(container: Container) -> int:
    """Pause the operands, evict what uses the GPU, unload the old driver, and let the operands go on."""
    machine = container.machine
    node = await container.simulation.api.get(NODES, machine.name)
    await _pause(container, node)
    digest = container.env.get("DRIVER_CONFIG_DIGEST", "")
    if digest and digest == machine.state.driver_digest:
        container.log("Driver configuration has not changed, skipping driver uninstall")
        await _restore(container)
        return 0
    evicts = _evicts(container, node)
    if evicts:
        await container.simulation.api.patch(NODES, machine.name, {"spec": {"unschedulable": True}})
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
    paused = paused_labels(node["metadata"].get("labels") or {})
    await _label(container, paused)
    for operand, app in OPERANDS.items():
        if f"{DEPLOY}{operand}" in paused:
            container.log(f"Waiting for {operand} to shutdown")
            await _wait_until_gone(
                container, lambda pod, app=app: (pod["metadata"].get("labels") or {}).get("app") == app
            )


async def _wait_until_gone(container: Container, chosen: Any) -> None:
    """Wait until the chosen pods have left the node, but not for ever."""
    simulation = container.simulation
    try:
        async with asyncio.timeout(simulation.timings.scaled(_LONGEST_WAIT)):
            while any(map(chosen, simulation.pods.by("node", container.machine.name))):
                await simulation.pause()
    except TimeoutError:
        container.log("timed out waiting for pods to shut down")


async def _evict_gpu_pods(container: Container) -> None:
    simulation = container.simulation

    def uses_gpu(pod: Mapping[str, Any]) -> bool:
        owners = pod["metadata"].get("ownerReferences") or ()
        return any(map(requested_gpus, pod["spec"]["containers"])) and all(o["kind"] != "DaemonSet" for o in owners)

    for pod in filter(uses_gpu, simulation.pods.by("node", container.machine.name)):
        container.log(f"evicting pod {pod['metadata']['namespace']}/{pod['metadata']['name']}")
        try:
            await simulation.api.delete(PODS, pod["metadata"]["name"], pod["metadata"]["namespace"])
        except ApiError as refusal:
            if refusal.code != NOT_FOUND:
                raise
    await _wait_until_gone(container, uses_gpu)


async def _restore(container: Container) -> None:
    """Undo what an eviction did: the operands' labels, and the cordon if it is ours to lift."""
    node = await container.simulation.api.get(NODES, container.machine.name)
    await _label(container, resumed_labels(node["metadata"].get("labels") or {}))
    if node["spec"].get("unschedulable") and _evicts(container, node):
        await container.simulation.api.patch(NODES, container.machine.name, {"spec": {"unschedulable": None}})


async def _label(container: Container, labels: Mapping[str, str]) -> None:
    if labels:
        await container.simulation.api.patch(NODES, container.machine.name, {"metadata": {"labels": dict(labels)}})


DRIVER_MANAGER = Program(_run_manager)
_MODULES = ("nvidia", "nvidia_uvm", "nvidia_modeset")
_MAJOR_ONLY = ("rhel", "rocky", "ol")
_DEFAULT_VERSION = "580.95.05"
OWNER = "driver"


def version_and_os(tag: str, env_version: str = "") -> tuple[str, str]:
    """Return driver version and operating system of an image's tag: ``595.91.07-ubuntu24.04``."""
    if not tag:
        return env_version or _DEFAULT_VERSION, ""
    version, _, rest = tag.partition("-")
    return version, rest.rsplit("-", 1)[-1]


def fits_machine(tag_os: str, container: Container) -> bool:
    """Tell whether an image is made for the machine's operating system; tags of some name the major version only."""
    spec = container.machine.spec
    if not tag_os:
        return True
    if spec.os_id in _MAJOR_ONLY:
        return tag_os.split(".", maxsplit=1)[0] == spec.os.split(".")[0]
    return tag_os == spec.os


async def _run_peermem(container: Container) -> int:
    """Side containers such as the one for nvidia-peermem: wait for the driver, load one module."""
    container.log("waiting for mellanox ofed and nvidia drivers to be installed")
    machine = container.machine
    await machine.until(lambda: "nvidia" in machine.state.modules)
    if "nvidia_peermem" not in machine.state.modules:
        machine.state.modules.append("nvidia_peermem")
        machine.changed()
    return await container.for_ever()


async def _run_driver(container: Container) -> int:
    if any("peermem" in word for word in container.argv):
        return await _run_peermem(container)
    machine = container.machine
    version, tag_os = version_and_os(container.tag, container.env.get("DRIVER_VERSION", ""))
    digest = container.env.get("DRIVER_CONFIG_DIGEST", "")
    kept = machine.state.driver == version and (container.adopted or (digest and digest == machine.state.driver_digest))
    if kept:
        container.log(f"NVIDIA driver {version} is already loaded with this configuration; nothing to install")
    else:
        problem = await _install(container, version, tag_os) or _load(container, version)
        if problem:
            container.log(*problem, "Stopping NVIDIA persistence daemon...", "Unmounting NVIDIA driver rootfs...")
            return 1
    _serve(container, version, digest)
    container.log("Mounting NVIDIA driver rootfs...", "Done, now waiting for signal")
    return await container.for_ever()


async def _install(container: Container, version: str, tag_os: str) -> tuple[str, ...]:
    """Build the kernel modules; return what was printed when that failed."""
    machine, spec = container.machine, container.machine.spec
    container.log(
        f"DRIVER_ARCH is {'x86_64' if spec.architecture == 'amd64' else 'aarch64'}",
        f"Creating directory NVIDIA-Linux-{version}",
        "========== NVIDIA Software Installer ==========",
        f"Starting installation of NVIDIA driver version {version} for Linux kernel version {spec.kernel}",
        "Stopping NVIDIA persistence daemon...",
        "Unloading NVIDIA driver kernel modules...",
    )
    if machine.state.driver and not machine.unload_driver():
        return ("Could not unload NVIDIA driver kernel modules, driver is in use",)
    container.log("Installing NVIDIA driver kernel modules...", "Resolving Linux kernel version...")
    if not fits_machine(tag_os, container):
        return (
            f"E: Unable to locate package linux-headers-{spec.kernel}",
            f"Could not resolve Linux kernel version: the image is for {tag_os}, the host runs {spec.os}",
        )
    slow = machine.faults.of("driver-slow", machine.name)
    await container.sleep(container.simulation.timings.driver_build + float(slow.get("seconds", 60) if slow else 0))
    return _build_problem(container)


def _build_problem(container: Container) -> tuple[str, ...]:
    machine = container.machine
    fault = machine.faults.of("driver-build-fails", machine.name)
    if fault is None or str(fault.get("kernel", "")) not in machine.spec.kernel:
        container.log("Building kernel modules: done", f"Proceeding with Linux kernel version {machine.spec.kernel}")
        return ()
    default = "error: implicit declaration of function 'follow_pfn' [-Werror=implicit-function-declaration]"
    return (
        f"/usr/src/nvidia/nv-mm.c:42: {fault.get('message', default)}",
        f"make: *** [/lib/modules/{machine.spec.kernel}/build: modules] Error 2",
        f"ERROR: The kernel module failed to build for kernel {machine.spec.kernel}.",
    )


def _load(container: Container, version: str) -> tuple[str, ...]:
    """Load the modules; return what was printed when that failed."""
    machine, gpu = container.machine, container.machine.spec.gpu
    container.log("Loading ipmi and i2c_core kernel modules...", "Loading NVIDIA driver kernel modules...")
    refused = "modprobe: ERROR: could not insert 'nvidia': No such device"
    if not (container.spec.get("securityContext") or {}).get("privileged"):
        return ("modprobe: ERROR: could not insert 'nvidia': Operation not permitted",)
    if machine.nouveau_loaded():
        return (refused, "NVRM: the nouveau kernel module is loaded and holds the GPU")
    if gpu is None or not machine.gpus:
        return (refused, "NVRM: No NVIDIA graphics adapter found!")
    if branch(version) < gpu.oldest_driver:
        return (refused, f"NVRM: {gpu.name} needs driver branch {gpu.oldest_driver} or later; this is {version}")
    if gpu.open_modules_only and container.env.get("KERNEL_MODULE_TYPE") == "proprietary":
        return (refused, f"NVRM: {gpu.name} requires the NVIDIA open kernel modules")
    return ()


def _serve(container: Container, version: str, digest: str) -> None:
    """Have the modules loaded, and the driver's root where its mount lets the host see it."""
    state = container.machine.state
    state.modules += [module for module in _MODULES if module not in state.modules]
    state.driver, state.driver_digest = version, digest
    state.files["/sys/module/nvidia/refcnt"] = "0"
    state.owners[OWNER] = container.key
    if container.files.publishes(DRIVER_ROOT):
        state.files[f"{DRIVER_ROOT}/usr/bin/nvidia-smi"] = version
        container.machine.host.show_containers_driver(version)
    container.machine.changed()


def _stop_driver(container: Container) -> None:
    """Unload the driver unless it is in use, as the container's own signal handler does."""
    machine = container.machine
    if machine.state.owners.get(OWNER) != container.key:
        return
    del machine.state.owners[OWNER]
    if not machine.unload_driver():
        container.log("Could not unload NVIDIA driver kernel modules, driver is in use")


DRIVER = Program(_run_driver, _stop_driver)
