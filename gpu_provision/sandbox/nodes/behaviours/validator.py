"""The operator validator's checks, one for each COMPONENT: driver, toolkit, cuda, plugin."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from gpu_provision.sandbox.api import ApiError
from gpu_provision.sandbox.nodes.behaviours.behaviour import Behaviour
from gpu_provision.sandbox.nodes.container import Container
from gpu_provision.sandbox.nodes.machine import DRIVER_ROOT
from gpu_provision.sandbox.nodes.world import DAEMON_SETS, NOT_FOUND, PODS

Object = dict[str, Any]

VALIDATIONS = "/run/nvidia/validations"
_DRIVER_READY = f"{VALIDATIONS}/.driver-ctr-ready"
_SMI = f"{DRIVER_ROOT}/usr/bin/nvidia-smi"
_HOST_SMI = "/host/usr/bin/nvidia-smi"
_OWNING_KINDS = {"ClusterPolicy", "NVIDIADriver"}
_POLLS_PLUGIN, _POLLS_POD = 30, 60
_DAEMON_SET = "nvidia-operator-validator"


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


def _waits(container: Container) -> bool:
    return container.env.get("WITH_WAIT") == "true"


async def _driver(container: Container) -> str | None:
    if container.files.exists(_HOST_SMI) and container.machine.host_driver:
        container.log('level=info msg="Detected a pre-installed driver on the host"')
        return _driver_file(host=True)
    container.log('level=info msg="Attempting to validate a driver container installation"')
    marker = await _driver_is_owned(container)

    def there() -> bool:
        seen = container.files.propagates(_SMI) and container.files.exists(_SMI)
        return seen and bool(container.machine.state.driver) and (not marker or container.files.exists(_DRIVER_READY))

    if not there() and not _waits(container):
        container.log('level=fatal msg="failed to validate the driver: nvidia-smi is not in the driver root"')
        return None
    waited_for = _DRIVER_READY if marker else _SMI
    await container.until(
        there, f'level=warning msg="waiting for {waited_for}: no such file, retrying after 5 seconds"'
    )
    return _driver_file(host=False)


async def _driver_is_owned(container: Container) -> bool:
    """Tell whether a driver DaemonSet of the GPU Operator itself exists; only then its marker file is waited for."""
    namespace = container.env.get("OPERATOR_NAMESPACE", "")
    if not namespace:
        return False
    daemon_sets, _ = await container.world.api.list(DAEMON_SETS, namespace)
    owners = [owner for ds in daemon_sets for owner in ds["metadata"].get("ownerReferences") or ()]
    return any(owner["kind"] in _OWNING_KINDS for owner in owners)


def _driver_file(*, host: bool) -> str:
    root = "/" if host else DRIVER_ROOT
    inside = "/host" if host else "/driver-root"
    return (
        f"IS_HOST_DRIVER={str(host).lower()}\nNVIDIA_DRIVER_ROOT={root}\nDRIVER_ROOT_CTR_PATH={inside}\n"
        f"NVIDIA_DEV_ROOT={root}\nDEV_ROOT_CTR_PATH={inside}\n"
    )


async def _toolkit(container: Container) -> str | None:
    await container.world.pause()
    if container.visible_gpus:
        return ""
    container.log(
        'level=info msg="Running command nvidia-smi"',
        'toolkit is not ready: exec: "nvidia-smi": executable file not found in $PATH',
    )
    return None


async def _cuda(container: Container) -> str | None:
    missing = [name for name in ("NODE_NAME", "OPERATOR_NAMESPACE", "VALIDATOR_IMAGE") if not container.env.get(name)]
    if missing:
        container.log(f'level=fatal msg="invalid configuration: {missing[0]} must not be empty"')
        return None
    return await _run_workload(container, "nvidia-cuda-validator", "cuda-validation", {})


async def _plugin(container: Container) -> str | None:
    if not container.env.get("NODE_NAME"):
        container.log('level=fatal msg="invalid -n <node-name> flag: must not be empty string"')
        return None
    machine = container.machine
    try:
        async with asyncio.timeout(_POLLS_PLUGIN * container.world.timings.scaled(container.world.timings.retry)):
            waiting = 'level=info msg="GPU resources are not yet discovered by the node, retrying after 5 seconds"'
            await container.until(lambda: machine.state.registered > 0, waiting)
    except TimeoutError:
        container.log('level=fatal msg="GPU resources are not discovered by the node"')
        return None
    if container.env.get("WITH_WORKLOAD") == "true":
        limits = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
        return await _run_workload(container, "nvidia-device-plugin-validator", "plugin-validation", limits)
    return ""


async def _run_workload(container: Container, app: str, name: str, extra: Mapping[str, Any]) -> str | None:
    """Run vectorAdd in a pod of its own on this node; return what to write once it succeeded."""
    api, namespace = container.world.api, container.env["OPERATOR_NAMESPACE"]
    try:
        daemon_set = await api.get(DAEMON_SETS, _DAEMON_SET, namespace)
    except ApiError as refusal:
        container.log(f'level=fatal msg="failed to retrieve validator daemonset: {refusal.message}"')
        return None
    await _remove_old(container, app, namespace)
    made = await api.create(PODS, _workload(container, daemon_set, (app, name), extra), namespace)
    outcome = await _outcome(container, made)
    if outcome == "Succeeded":
        return ""
    container.log(f'level=error msg="pod {made["metadata"]["name"]} did not succeed: {outcome or "timed out"}"')
    return None


async def _remove_old(container: Container, app: str, namespace: str) -> None:
    for pod in container.world.pods.by("node", container.machine.name):
        metadata = pod["metadata"]
        if (metadata.get("labels") or {}).get("app") == app and metadata["namespace"] == namespace:
            try:
                await container.world.api.delete(PODS, metadata["name"], namespace, grace_seconds=0)
            except ApiError as refusal:
                if refusal.code != NOT_FOUND:
                    raise


async def _outcome(container: Container, pod: Object) -> str:
    """Return the phase that the pod ended in; empty if it did not end in time."""
    metadata, world = pod["metadata"], container.world
    pause = world.timings.scaled(world.timings.retry)
    for _ in range(_POLLS_POD):
        seen = world.pods.objects.get((metadata["namespace"], metadata["name"]), pod)
        phase = str((seen.get("status") or {}).get("phase", ""))
        if phase in {"Succeeded", "Failed"}:
            return phase
        await asyncio.sleep(pause)
    return ""


def _workload(container: Container, daemon_set: Object, names: tuple[str, str], extra: Mapping[str, Any]) -> Object:
    app, name = names
    env = container.env
    image = {
        "image": env.get("VALIDATOR_IMAGE", container.image),
        "imagePullPolicy": env.get("VALIDATOR_IMAGE_PULL_POLICY") or "IfNotPresent",
    }
    template = daemon_set["spec"]["template"]["spec"]
    visible = [] if extra else [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    spec = {
        "nodeName": env["NODE_NAME"],
        "restartPolicy": "OnFailure",
        "serviceAccountName": container.pod["spec"].get("serviceAccountName", "default"),
        "tolerations": template.get("tolerations") or [],
        "initContainers": [
            {
                "name": name,
                **image,
                "command": ["sh", "-c"],
                "args": ["vectorAdd"],
                "env": visible,
                "securityContext": {"privileged": True},
                **extra,
            }
        ],
        "containers": [
            {
                "name": app,
                **image,
                "command": ["sh", "-c"],
                "args": ["echo cuda workload validation is successful"],
                "securityContext": {"privileged": True},
            }
        ],
    }
    if env.get("VALIDATOR_RUNTIME_CLASS"):
        spec["runtimeClassName"] = env["VALIDATOR_RUNTIME_CLASS"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": f"{app}-",
            "namespace": env["OPERATOR_NAMESPACE"],
            "labels": {"app": app},
            "ownerReferences": daemon_set["metadata"].get("ownerReferences") or [],
        },
        "spec": spec,
    }


_CHECKS: dict[str, Callable[[Container], Awaitable[str | None]]] = {
    "driver": _driver,
    "toolkit": _toolkit,
    "cuda": _cuda,
    "plugin": _plugin,
}

VALIDATOR = Behaviour(_validate)
