"""The driver on RHCOS: a container of the Driver Toolkit image builds the modules, the driver container loads them.

Both run ``ocp_dtk_entrypoint`` of NVIDIA's driver image, and meet in files of a shared directory.
"""

from __future__ import annotations

from functools import partial

from gpu_provision.sandbox.kubelet.container import Container, Program
from gpu_provision.sandbox.kubelet.programs.driver import (
    DRIVER,
    Install,
    build_modules,
    install_driver,
    run_driver,
    serve_module,
)
from gpu_provision.sandbox.openshift_releases import release_of_toolkit

_SHARED = "/mnt/shared-nvidia-driver-toolkit"
_PREPARED, _STARTED, _BUILT = (f"{_SHARED}/{name}" for name in ("dir_prepared", "driver_build_started", "driver_built"))
_BROKEN = f"{_SHARED}/driver_toolkit_broken"
# Argument of a side-car -> its module, the setting that has the module built, and the file that says it is.
_SIDE_CARS = {
    "nv-fs-ctr-run-with-dtk": ("nvidia_fs", "GDS_ENABLED", f"{_SHARED}/nvidia_fs_built"),
    "gdrcopy-ctr-run-with-dtk": ("gdrdrv", "GDRCOPY_ENABLED", f"{_SHARED}/gdrcopy_built"),
}
_NO_DIRECTORY = "FATAL: DRIVER_TOOLKIT_SHARED_DIR env variable must be populated with a valid directory"
_WRONG_FORMAT = "modprobe: ERROR: could not insert 'nvidia': Exec format error"


async def _run(container: Container) -> int:
    command = container.argv[-1]
    container.log(f"Running {command}")
    if container.files.mount_of(_SHARED) is None:
        container.log(_NO_DIRECTORY)
        return 1
    if command == "dtk-build-driver":
        return await _build(container)
    if command in _SIDE_CARS:
        module, _, built = _SIDE_CARS[command]
        return await _serve_side_car(container, module, built)
    missing = container.env.get("RHCOS_IMAGE_MISSING") == "true"
    if missing:
        version = container.env.get("RHCOS_VERSION", "")
        container.log(f"WARNING: RHCOS '{version}' imagetag missing, using entitlement-based fallback")
    install: Install = install_driver if missing else _install
    return await run_driver(container, install)


async def _install(container: Container, version: str, image_os: str, kernel: str) -> tuple[str, ...]:
    """Let the toolkit's container build the modules; return what was printed on a failure."""
    files, machine = container.files, container.machine
    if machine.state.driver and not machine.unload_driver():
        return ("Could not unload NVIDIA driver kernel modules, driver is in use",)
    files.write(_PREPARED, "")
    waiting = "Waiting for openshift-driver-toolkit-ctr container to start ..."
    await container.wait_until(lambda: files.exists(_STARTED) or files.exists(_BROKEN), waiting)
    if not files.exists(_STARTED):
        container.log("WARNING: broken driver toolkit detected, using entitlement-based fallback")
        return await install_driver(container, version, image_os, kernel)
    waiting = "Waiting for openshift-driver-toolkit-ctr container to build the precompiled driver ..."
    await container.wait_until(lambda: files.exists(_BUILT), waiting)
    container.log("#", "# Executing nvidia-driver load script ...", "#")
    return () if files.read(_BUILT) == machine.spec.kernel else (_WRONG_FORMAT,)


async def _build(container: Container) -> int:
    """Build the modules, if the image has the headers of the machine's kernel, and stay."""
    files, spec = container.files, container.machine.spec
    release = release_of_toolkit(container.image)
    kernel = release.kernel_on(spec.architecture) if release else "package kernel-core is not installed"
    if kernel != spec.kernel:
        found = (f"- Node kernel:    {spec.kernel}", f"- Kernel package: {kernel}")
        container.log("WARNING: broken Driver Toolkit image detected:", *found)
        container.log("INFO: informing nvidia-driver-ctr to fallback on entitled-build.")
        files.write(_BROKEN, "")
        return await container.run_forever()
    files.write(_STARTED, "")
    if files.exists(_BUILT):
        container.log("NVIDIA drivers already generated, nothing to do ...")
        return await container.run_forever()
    container.log("Start building nvidia.ko driver ...", "# Executing nvidia-driver build script ...")
    if problem := await build_modules(container):
        container.log(*problem)
        return 1
    container.log("NVIDIA drivers generated, inform nvidia-driver-ctr container about it and sleep forever.")
    files.write(_BUILT, spec.kernel)
    for _, setting, built in _SIDE_CARS.values():
        if container.env.get(setting) == "true":
            files.write(built, "")
    return await container.run_forever()


async def _serve_side_car(container: Container, module: str, built: str) -> int:
    """Load a module that the toolkit's container builds besides the driver."""
    machine = container.machine
    is_built = partial(container.files.exists, built)
    await container.wait_until(is_built, f"Waiting for openshift-driver-toolkit-ctr container to build {module} ...")
    await machine.wait_until(lambda: "nvidia" in machine.state.modules)
    return await serve_module(container, module)


ENTRYPOINT = Program(_run, DRIVER.on_stop)
