"""The driver container: builds for a while, loads its modules, and serves the driver's files to the host."""

from __future__ import annotations

from gpu_provision.sandbox.nodes.behaviours.behaviour import Behaviour
from gpu_provision.sandbox.nodes.behaviours.cuda import branch
from gpu_provision.sandbox.nodes.container import Container
from gpu_provision.sandbox.nodes.machine import DRIVER_ROOT

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


def fits(tag_os: str, container: Container) -> bool:
    """Tell whether an image is made for the machine's operating system; tags of some name the major version only."""
    spec = container.machine.spec
    if not tag_os:
        return True
    if spec.os_id in _MAJOR_ONLY:
        return tag_os.split(".", maxsplit=1)[0] == spec.os.split(".")[0]
    return tag_os == spec.os


async def _reload(container: Container) -> int:
    """Side containers such as the one for nvidia-peermem: wait for the driver, load one module."""
    container.log("waiting for mellanox ofed and nvidia drivers to be installed")
    machine = container.machine
    await machine.until(lambda: "nvidia" in machine.state.modules)
    if "nvidia_peermem" not in machine.state.modules:
        machine.state.modules.append("nvidia_peermem")
        machine.changed()
    return await container.for_ever()


async def _init(container: Container) -> int:
    if any("peermem" in word for word in container.argv):
        return await _reload(container)
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
    if not fits(tag_os, container):
        return (
            f"E: Unable to locate package linux-headers-{spec.kernel}",
            f"Could not resolve Linux kernel version: the image is for {tag_os}, the host runs {spec.os}",
        )
    slow = machine.faults.of("driver-slow", machine.name)
    await container.sleep(container.world.timings.driver_build + float(slow.get("seconds", 60) if slow else 0))
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


def _stopped(container: Container) -> None:
    """Unload the driver unless somebody uses it, as the container's own signal handler does."""
    machine = container.machine
    if machine.state.owners.get(OWNER) != container.key:
        return
    del machine.state.owners[OWNER]
    if not machine.unload_driver():
        container.log("Could not unload NVIDIA driver kernel modules, driver is in use")


DRIVER = Behaviour(_init, _stopped)
