"""Containers beside the driver, which load further modules: nvidia-peermem, nvidia-fs and gdrdrv.

The startup probes of those that build a module see it. That of nvidia-peermem passes also as long as no network driver
is loaded (NVIDIA/gpu-driver-container, probe_nvidia_peermem), and the device plugin has to start after all modules. So
the validator waits for them, see `wait_for_driver_container`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gpu_provision.components import driver_toolkit, operands, pods
from gpu_provision.model.cluster import RenderContext, Target
from gpu_provision.model.driver_specs import DriverSpec
from gpu_provision.model.inventory import Inventory, NodePool
from gpu_provision.model.operand_specs import ContainerSpec, Image
from gpu_provision.model.specs import Specs

_Mounts = Sequence[Mapping[str, Any]]

VOID = {"NVIDIA_VISIBLE_DEVICES": "void"}
"""Keeps the hook of NVIDIA's runtime off a container, where that runtime is the default one."""

_LOGS = [pods.mount("var-log", "/var/log"), pods.mount("dev-log", "/dev/log", read_only=True)]
_PEERMEM_MOUNTS = [
    pods.mount("run-nvidia", "/run/nvidia", pods.BOTH_WAYS),
    *_LOGS,
    pods.mount("run-mellanox-drivers", "/run/mellanox/drivers", pods.TO_CONTAINER),
]
_BUILD_MOUNTS = [pods.mount("run-nvidia", "/run/nvidia", pods.TO_CONTAINER), *_LOGS]

# Delays and thresholds of the GPU Operator's probes.
_STARTUP = {
    "initialDelaySeconds": 10,
    "periodSeconds": 10,
    "timeoutSeconds": 10,
    "failureThreshold": 120,
    "successThreshold": 1,
}
_LIVENESS = {**_STARTUP, "initialDelaySeconds": 30, "periodSeconds": 30, "failureThreshold": 1}


class _Program(NamedTuple):
    """A program that builds and loads a kernel module."""

    container: str
    command: str
    module: str
    with_toolkit: str  # argument of `driver_toolkit.ENTRYPOINT`


_PROGRAMS = {
    "gds": _Program("nvidia-fs-ctr", "nvidia-gds-driver", "nvidia_fs", "nv-fs-ctr-run-with-dtk"),
    "gdrcopy": _Program("nvidia-gdrcopy-ctr", "nvidia-gdrcopy-driver", "gdrdrv", "gdrcopy-ctr-run-with-dtk"),
}


def module_environment(pool: NodePool) -> dict[str, str]:
    """Return the variables by which the driver container and its startup probe know of further modules."""
    return {
        **rdma_environment(pool.driver),
        **({"GDS_ENABLED": "true"} if pool.gds.enabled else {}),
        **({"GDRCOPY_ENABLED": "true"} if pool.gdrcopy.enabled else {}),
    }


def rdma_environment(spec: DriverSpec) -> dict[str, str]:
    """Return the variables of GPUDirect RDMA, which the driver manager has, too."""
    if not spec.rdma.enabled:
        return {}
    return {"GPU_DIRECT_RDMA_ENABLED": "true", **({"USE_HOST_MOFED": "true"} if spec.rdma.use_host_mofed else {})}


def variables_from(secret: str) -> list[dict[str, Any]]:
    """Return the ``envFrom`` of a container that gets all keys of a Secret as variables."""
    return [{"secretRef": {"name": secret}}] if secret else []


def plugin_environment(inventory: Inventory) -> dict[str, str]:
    """Return the variables with which the device plugin mounts the devices of nvidia-fs, of RDMA and of gdrdrv.

    It is one DaemonSet for all pools: on nodes without these devices it mounts none (NVIDIA/k8s-device-plugin,
    `CreateSpecFile` in internal/cdi/cdi.go).
    """
    users: list[Specs | NodePool] = [inventory.specs, *inventory.pools.values()]
    return {
        **({"GDS_ENABLED": "true", "MOFED_ENABLED": "true"} if any(each.gds.enabled for each in users) else {}),
        **({"GDRCOPY_ENABLED": "true"} if any(each.gdrcopy.enabled for each in users) else {}),
    }


def tagged_image(image: Image, target: Target, kernel: str = "") -> str:
    """Return an image with the suffix of a kernel, if any, and of a node's system. A digest takes no suffix."""
    if target.os is None or image.version.startswith("sha256:"):
        return image.reference
    return image.reference_with_tag("-".join(filter(None, (image.version, kernel, target.os.tag))))


def containers(
    target: Target, driver_image: str, *, parameters: _Mounts, sources: _Mounts, variables: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """Yield the containers beside the driver of a group.

    Args:
        target: A node of the group.
        driver_image: Has nvidia-peermem.
        parameters: Mounts of the parameters of kernel modules.
        sources: Mounts of package sources and certificates.
        variables: Further variables of containers that build modules.
    """
    spec = target.pool.driver
    if spec.rdma.enabled:
        yield _peermem(spec, driver_image, parameters)
    for component, own in target.pool.module_builders.items():
        yield _builder(_PROGRAMS[component], own, target, sources, variables)


def _peermem(spec: DriverSpec, image: str, parameters: _Mounts) -> dict[str, Any]:
    """Return the container that loads nvidia-peermem again after each replacement of the network driver."""
    is_loaded = {"exec": {"command": ["nvidia-driver", "probe_nvidia_peermem"]}}
    host = {"USE_HOST_MOFED": "true"} if spec.rdma.use_host_mofed else {}
    return pods.container(
        "nvidia-peermem-ctr",
        spec,
        image=image,
        command=["nvidia-driver"],
        args=["reload_nvidia_peermem"],
        env=pods.environment({**VOID, **host}),
        startupProbe={**is_loaded, **_STARTUP},
        livenessProbe={**is_loaded, **_LIVENESS},
        securityContext=pods.PRIVILEGED_S0,
        resources=dict(spec.resources),
        volumeMounts=[*_PEERMEM_MOUNTS, *parameters],
    )


def _builder(
    program: _Program, own: ContainerSpec, target: Target, sources: _Mounts, variables: Mapping[str, str]
) -> dict[str, Any]:
    """Return a container whose program builds and loads a module once the driver is there.

    With a Driver Toolkit its container builds the module, and this one loads it.
    """
    spec, script = target.pool.driver, f'{pods.script("after-driver")}exec {program.command} install "$@"\n'
    # The first argument is the name of the script.
    command, args = ["sh", "-c", script], [program.command, *own.args] if own.args else []
    if target.toolkit_release:
        command, args = [driver_toolkit.ENTRYPOINT], [program.with_toolkit]
    return pods.container(
        program.container,
        own,
        image=tagged_image(own.image, target),
        command=command,
        args=args,
        env=pods.environment({**VOID, **variables}, own.env),
        envFrom=variables_from(spec.secret_env),
        startupProbe={"exec": {"command": ["test", "-d", f"/sys/module/{program.module}"]}, **_STARTUP},
        securityContext=pods.PRIVILEGED_S0,
        resources=dict(spec.resources),
        volumeMounts=[*_BUILD_MOUNTS, *sources, *([driver_toolkit.MOUNT] if target.toolkit_release else [])],
    )


def wait_for_driver_container(context: RenderContext) -> list[dict[str, Any]]:
    """Return the validator's init container that waits for the driver container and the modules beside it.

    The GPU Operator's validator does that only for driver DaemonSets of a ClusterPolicy or an NVIDIADriver; for others
    it is enough that nvidia-smi answers, while daemons such as the fabric manager may not run yet. What the driver
    container itself has announced counts: nodes of a fleet differ, also during a rollout.
    """
    if not any(pool.has_driver_container for pool in context.inventory.pools.values()):
        return []
    spec = context.inventory.specs.validator
    wait = pods.container(
        "driver-container-validation",
        spec,
        **pods.shell(pods.script("wait-for-driver-container")),
        securityContext=pods.PRIVILEGED_ROOT,
        resources=dict(spec.resources),
        volumeMounts=[operands.MOUNT_VALIDATIONS_BOTH_WAYS],
    )
    return [wait]
