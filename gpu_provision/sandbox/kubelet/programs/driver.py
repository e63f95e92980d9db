"""The driver container, the containers beside it, and its driver manager."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import NODES, NOT_FOUND, PODS, Object, ignoring
from gpu_provision.sandbox.kubelet.container import Container, Program, requested_devices
from gpu_provision.sandbox.kubelet.machine import DRIVER_ROOT
from gpu_provision.sandbox.operand_rules import DEPLOY, OPERANDS, branch, paused_labels, resumed_labels

_AUTO_UPGRADE = "nvidia.com/gpu-driver-upgrade-enabled"
_MAX_WAIT = 300.0
_MODULES = ("nvidia", "nvidia_uvm", "nvidia_modeset")
_MAJOR_ONLY = ("rhel", "rocky", "ol")
_DEFAULT_VERSION = "580.95.05"
_OWNER = "driver"
_REFUSED = "modprobe: ERROR: could not insert 'nvidia': No such device"
_ENTITLEMENT = "/etc/pki/entitlement"
_NO_ENTITLEMENT = "FATAL: failed to install elfutils-libel-devel. RHEL entitlement may be improperly deployed."
Install = Callable[[Container, str, str, str], Awaitable[tuple[str, ...]]]
"""Takes container, version, the image's system and the kernel of its modules; returns what a failure printed."""

_BUILD_ERROR = "error: implicit declaration of function 'follow_pfn' [-Werror=implicit-function-declaration]"


async def _run_manager(container: Container) -> int:
    if not container.env.get("NODE_NAME"):
        container.log("Error: required environment variable NODE_NAME is not set")
        return 1
    machine = container.machine
    if machine.host_driver and container.files.host_path("/host/usr") == "/usr":
        container.log(f"NVIDIA GPU driver is already pre-installed on the node: {machine.host_driver}")
        await label_node(container, {f"{DEPLOY}driver": "pre-installed"})
        await container.simulation.pause()
        return 1
    if "nvidia" in machine.state.modules:
        return await _replace(container)
    container.log("NVIDIA driver module is not loaded", "No eviction needed")
    if not machine.host.unload("nouveau"):
        container.log("failed to unload nouveau driver: module is in use")
        return 1
    await _restore(container)
    return 0


async def _replace(container: Container) -> int:
    """Pause the operands, evict what uses the GPU, unload the old driver, and let the operands go on."""
    machine, simulation = container.machine, container.simulation
    node = await simulation.api.get(NODES, machine.name)
    paused = paused_labels(objects.labels(node))
    await label_node(container, paused)
    for operand, app in OPERANDS.items():
        if f"{DEPLOY}{operand}" in paused:
            container.log(f"Waiting for {operand} to shutdown")
            await wait_until_gone(container, partial(is_app, app))
    digest = container.env.get("DRIVER_CONFIG_DIGEST", "")
    if digest and digest == machine.state.driver_digest:
        container.log("Driver configuration has not changed, skipping driver uninstall")
        await _restore(container)
        return 0
    if _evicts(container, node):
        await simulation.api.patch(NODES, machine.name, {"spec": {"unschedulable": True}})
        await _evict_gpu_pods(container)
    container.log("Unloading NVIDIA driver kernel modules...")
    unloaded = machine.unload_driver()
    if not unloaded:
        container.log("Failed to unload the NVIDIA driver kernel modules: module nvidia is in use")
    await _restore(container)
    return 0 if unloaded else 1


def _evicts(container: Container, node: Object) -> bool:
    upgrading = objects.annotations_of(node).get(_AUTO_UPGRADE) == "true"
    return container.env.get("ENABLE_GPU_POD_EVICTION", "true") == "true" and not upgrading


async def wait_until_gone(container: Container, chosen: Callable[[Object], bool]) -> None:
    """Wait until the chosen pods have left the node, but not for ever."""
    simulation = container.simulation
    try:
        async with asyncio.timeout(simulation.timings.scale(_MAX_WAIT)):
            while any(map(chosen, simulation.pods.by_index("node", container.machine.name))):
                await simulation.pause()
    except TimeoutError:
        container.log("timed out waiting for pods to shut down")


def is_app(app: str, pod: Object) -> bool:
    """Whether a pod has this label ``app``."""
    return objects.labels(pod).get("app") == app


def _uses_gpu(pod: Object) -> bool:
    owned = any(owner["kind"] == "DaemonSet" for owner in objects.owners(pod))
    return not owned and any(map(requested_devices, pod["spec"]["containers"]))


async def _evict_gpu_pods(container: Container) -> None:
    simulation = container.simulation
    for pod in filter(_uses_gpu, simulation.pods.by_index("node", container.machine.name)):
        container.log(f"evicting pod {objects.namespace(pod)}/{objects.name(pod)}")
        with ignoring(NOT_FOUND):
            await simulation.api.delete(PODS, objects.name(pod), objects.namespace(pod))
    await wait_until_gone(container, _uses_gpu)


async def _restore(container: Container) -> None:
    """Undo what an eviction did: the operands' labels, and the cordon if it is ours to lift."""
    api, name = container.simulation.api, container.machine.name
    node = await api.get(NODES, name)
    await label_node(container, resumed_labels(objects.labels(node)))
    if node["spec"].get("unschedulable") and _evicts(container, node):
        await api.patch(NODES, name, {"spec": {"unschedulable": None}})


async def label_node(container: Container, labels: Mapping[str, str]) -> None:
    """Write labels of the container's node."""
    if labels:
        await container.simulation.api.patch(NODES, container.machine.name, {"metadata": {"labels": dict(labels)}})


async def _run_driver(container: Container) -> int:
    machine = container.machine
    if "reload_nvidia_peermem" in container.argv:
        container.log("waiting for mellanox ofed and nvidia drivers to be installed")
        await machine.wait_until(lambda: bool(machine.spec.host.get("mellanox")) and "nvidia" in machine.state.modules)
        return await serve_module(container, "nvidia_peermem")
    return await run_driver(container, install_driver)


async def run_driver(container: Container, install: Install) -> int:
    """Install the driver that the image's tag names, load it, and stay."""
    machine = container.machine
    version, _, rest = container.tag.partition("-")  # 595.91.07-ubuntu24.04, or 595-6.8.0-45-generic-ubuntu24.04
    if not version[:1].isdigit():  # a tag of the user's own
        version, rest = "", container.tag
    kernel = rest.rpartition("-")[0] if version.isdigit() else ""
    version = f"{version}.71.05" if kernel else version or container.env.get("DRIVER_VERSION") or _DEFAULT_VERSION
    digest = container.env.get("DRIVER_CONFIG_DIGEST", "")
    kept = machine.state.driver == version and (container.adopted or (digest and digest == machine.state.driver_digest))
    if kept:
        container.log(f"NVIDIA driver {version} is already loaded with this configuration; nothing to install")
    else:
        image_os = rest.rsplit("-", 1)[-1]
        problem = await install(container, version, image_os, kernel) or _load(container, version)
        if problem:
            container.log(*problem, "Stopping NVIDIA persistence daemon...", "Unmounting NVIDIA driver rootfs...")
            return 1
    state = machine.state
    state.modules += [module for module in _MODULES if module not in state.modules]
    state.driver, state.driver_digest = version, digest
    state.files["/sys/module/nvidia/refcnt"] = "0"
    state.owners[_OWNER] = container.key
    if container.files.publishes(DRIVER_ROOT):  # only then its mount lets the host see the driver's root
        state.files[f"{DRIVER_ROOT}/usr/bin/nvidia-smi"] = version
        machine.host.show_containers_driver(version)
    machine.save_and_notify()
    container.log("Mounting NVIDIA driver rootfs...", "Done, now waiting for signal")
    return await container.run_forever()


async def install_driver(container: Container, version: str, image_os: str, kernel: str) -> tuple[str, ...]:
    """Build the kernel modules, unless the image has those of a ``kernel``; return what was printed on a failure."""
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
    exact = (image_os, spec.os)
    fits = exact if spec.os_id not in _MAJOR_ONLY else tuple(name.split(".", maxsplit=1)[0] for name in exact)
    if image_os and fits[0] != fits[1]:
        return (
            f"E: Unable to locate package linux-headers-{spec.kernel}",
            f"Could not resolve Linux kernel version: the image is for {image_os}, the host runs {spec.os}",
        )
    if spec.release and not kernel and not container.files.exists(_ENTITLEMENT):
        return (f"Installing elfutils for {spec.kernel}...", _NO_ENTITLEMENT)
    if kernel:
        foreign = f"E: Unable to locate package linux-modules-nvidia-{branch(version)}-server-{spec.kernel}"
        return () if kernel == spec.kernel else (foreign,)
    return await build_modules(container)


async def build_modules(container: Container) -> tuple[str, ...]:
    """Build the kernel modules for the machine's kernel; return what was printed on a failure."""
    machine, spec = container.machine, container.machine.spec
    slow = machine.faults.find("driver-slow", machine.name)
    await container.sleep(container.simulation.timings.driver_build + float(slow.get("seconds", 60) if slow else 0))
    fault = machine.faults.find("driver-build-fails", machine.name)
    if fault is None or str(fault.get("kernel", "")) not in spec.kernel:
        container.log("Building kernel modules: done", f"Proceeding with Linux kernel version {spec.kernel}")
        return ()
    return (
        f"/usr/src/nvidia/nv-mm.c:42: {fault.get('message', _BUILD_ERROR)}",
        f"make: *** [/lib/modules/{spec.kernel}/build: modules] Error 2",
        f"ERROR: The kernel module failed to build for kernel {spec.kernel}.",
    )


def _load(container: Container, version: str) -> tuple[str, ...]:
    """Load the modules; return what was printed when that failed."""
    machine, gpu = container.machine, container.machine.spec.gpu
    security: Mapping[str, Any] = container.spec.get("securityContext") or {}
    container.log("Loading ipmi and i2c_core kernel modules...", "Loading NVIDIA driver kernel modules...")
    if not security.get("privileged"):
        return ("modprobe: ERROR: could not insert 'nvidia': Operation not permitted",)
    if machine.nouveau_loaded():
        return (_REFUSED, "NVRM: the nouveau kernel module is loaded and holds the GPU")
    if gpu is None or not machine.gpus:
        return (_REFUSED, "NVRM: No NVIDIA graphics adapter found!")
    if branch(version) < gpu.oldest_driver:
        return (_REFUSED, f"NVRM: {gpu.name} needs driver branch {gpu.oldest_driver} or later; this is {version}")
    if gpu.open_modules_only and container.env.get("KERNEL_MODULE_TYPE") == "proprietary":
        return (_REFUSED, f"NVRM: {gpu.name} requires the NVIDIA open kernel modules")
    return ()


def _stop_driver(container: Container) -> None:
    """Unload the driver unless it is in use, as the container's own signal handler does."""
    machine = container.machine
    if machine.state.owners.get(_OWNER) != container.key:
        return
    del machine.state.owners[_OWNER]
    if not machine.unload_driver():
        container.log("Could not unload NVIDIA driver kernel modules, driver is in use")


async def serve_module(container: Container, module: str) -> int:
    """Load a module and stay; the driver takes it along when it is unloaded."""
    machine = container.machine
    machine.state.modules += [] if module in machine.state.modules else [module]
    machine.save_and_notify()
    container.log(f"successfully loaded {module} module")
    return await container.run_forever()


async def _run_builder(module: str, container: Container) -> int:
    await container.machine.wait_until(lambda: "nvidia" in container.machine.state.modules)
    return await serve_module(container, module)


DRIVER_MANAGER = Program(_run_manager)
DRIVER = Program(_run_driver, _stop_driver)
GDS = Program(partial(_run_builder, "nvidia_fs"))
GDRCOPY = Program(partial(_run_builder, "gdrdrv"))
