"""The checks of the operator validator, one for each COMPONENT: driver, toolkit, cuda, plugin."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from gpu_provision.sandbox.api import DAEMON_SETS, PODS, ApiError, Object
from gpu_provision.sandbox.kubelet.container import Container, Program
from gpu_provision.sandbox.kubelet.machine import DRIVER_ROOT
from gpu_provision.sandbox.operand_rules import OWNING_KINDS, driver_ready

VALIDATIONS = "/run/nvidia/validations"
_DRIVER_READY = f"{VALIDATIONS}/.driver-ctr-ready"
_SMI = f"{DRIVER_ROOT}/usr/bin/nvidia-smi"
_HOST_SMI = "/host/usr/bin/nvidia-smi"
_POLLS_PLUGIN, _POLLS_POD = 30, 60
_CUDA_POD = "nvidia-cuda-validator"


async def _validate(container: Container) -> int:
    component = container.env.get("COMPONENT", "")
    check = _CHECKS.get(component)
    if check is None:
        container.log(f'level=fatal msg="invalid -c <component-name> flag value: {component}"')
        return 1
    status = f"{container.env.get('OUTPUT_DIR') or VALIDATIONS}/{component}-ready"
    container.files.remove(status)
    content = await check(container)
    if content is None:
        return 1
    container.files.write(status, content)
    container.log(f'level=info msg="{component} is validated"')
    return 0


def _may_wait(container: Container) -> bool:
    return container.env.get("WITH_WAIT") == "true"


async def _driver(container: Container) -> str | None:
    if container.files.exists(_HOST_SMI) and container.machine.host_driver:
        container.log('level=info msg="Detected a pre-installed driver on the host"')
        return driver_ready(host=True)
    container.log('level=info msg="Attempting to validate a driver container installation"')
    marker = await _driver_is_owned(container)

    def there() -> bool:
        seen = container.files.propagates(_SMI) and container.files.exists(_SMI)
        return seen and bool(container.machine.state.driver) and (not marker or container.files.exists(_DRIVER_READY))

    if not there() and not _may_wait(container):
        container.log('level=fatal msg="failed to validate the driver: nvidia-smi is not in the driver root"')
        return None
    waited_for = _DRIVER_READY if marker else _SMI
    await container.until(
        there, f'level=warning msg="waiting for {waited_for}: no such file, retrying after 5 seconds"'
    )
    return driver_ready(host=False)


async def _driver_is_owned(container: Container) -> bool:
    """Tell whether a driver DaemonSet of the GPU Operator itself exists; only then its marker file is waited for."""
    namespace = container.env.get("OPERATOR_NAMESPACE", "")
    if not namespace:
        return False
    daemon_sets, _ = await container.simulation.api.list(DAEMON_SETS, namespace)
    owners = [owner for ds in daemon_sets for owner in ds["metadata"].get("ownerReferences") or ()]
    return any(owner["kind"] in OWNING_KINDS for owner in owners)


async def _toolkit(container: Container) -> str | None:
    await container.simulation.pause()
    if container.visible_gpus:
        return ""
    container.log(
        'level=info msg="Running command nvidia-smi"',
        'toolkit is not ready: exec: "nvidia-smi": executable file not found in $PATH',
    )
    return None


async def _cuda(container: Container) -> str | None:
    """Run vectorAdd in a pod of its own, as the GPU Operator's validator and that of earlier versions do."""
    missing = [name for name in ("NODE_NAME", "OPERATOR_NAMESPACE", "VALIDATOR_IMAGE") if not container.env.get(name)]
    if missing:
        container.log(f'level=fatal msg="invalid configuration: {missing[0]} must not be empty"')
        return None
    simulation, namespace = container.simulation, container.env["OPERATOR_NAMESPACE"]
    for pod in simulation.pods.by("node", container.machine.name):
        metadata = pod["metadata"]
        if (metadata.get("labels") or {}).get("app") == _CUDA_POD and metadata["namespace"] == namespace:
            with contextlib.suppress(ApiError):
                await simulation.api.delete(PODS, metadata["name"], namespace, grace_seconds=0)
    name = (await simulation.api.create(PODS, _cuda_pod(container), namespace))["metadata"]["name"]
    for _ in range(_POLLS_POD):
        await asyncio.sleep(simulation.timings.scaled(simulation.timings.retry))
        phase = (simulation.pods.objects.get((namespace, name)) or {}).get("status", {}).get("phase")
        if phase == "Succeeded":
            return ""
        if phase == "Failed":
            break
    container.log(f'level=error msg="pod {name} did not succeed"')
    return None


def _cuda_pod(container: Container) -> Object:
    env, own = container.env, container.pod["spec"]
    image = {"image": env["VALIDATOR_IMAGE"], "imagePullPolicy": env.get("VALIDATOR_IMAGE_PULL_POLICY", "IfNotPresent")}
    runtime_class = env.get("VALIDATOR_RUNTIME_CLASS")
    vector_add = {
        "name": "cuda-validation",
        **image,
        "command": ["sh", "-c"],
        "args": ["vectorAdd"],
        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": f"{_CUDA_POD}-", "labels": {"app": _CUDA_POD}},
        "spec": {
            "nodeName": env["NODE_NAME"],
            "restartPolicy": "OnFailure",
            "tolerations": own.get("tolerations") or [],
            **({"runtimeClassName": runtime_class} if runtime_class else {}),
            "initContainers": [vector_add],
            "containers": [{"name": _CUDA_POD, **image, "command": ["echo", "cuda workload validation is successful"]}],
        },
    }


async def _plugin(container: Container) -> str | None:
    if not container.env.get("NODE_NAME"):
        container.log('level=fatal msg="invalid -n <node-name> flag: must not be empty string"')
        return None
    machine = container.machine
    try:
        async with asyncio.timeout(
            _POLLS_PLUGIN * container.simulation.timings.scaled(container.simulation.timings.retry)
        ):
            waiting = 'level=info msg="GPU resources are not yet discovered by the node, retrying after 5 seconds"'
            await container.until(lambda: machine.state.registered > 0, waiting)
    except TimeoutError:
        container.log('level=fatal msg="GPU resources are not discovered by the node"')
        return None
    return ""


_CHECKS: dict[str, Callable[[Container], Awaitable[str | None]]] = {
    "driver": _driver,
    "toolkit": _toolkit,
    "cuda": _cuda,
    "plugin": _plugin,
}

VALIDATOR = Program(_validate)
