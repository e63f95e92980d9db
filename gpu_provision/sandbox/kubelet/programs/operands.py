"""The GPU operands but for driver and device plugin: container toolkit, validator, GPU Feature Discovery, DCGM."""

from __future__ import annotations

import asyncio
import contextlib
import time

from gpu_provision.sandbox.api import DAEMON_SETS, NODE_FEATURES, PODS, ApiError, Object
from gpu_provision.sandbox.hosts.spec import find_distribution
from gpu_provision.sandbox.kubelet.container import Container, Program
from gpu_provision.sandbox.kubelet.machine import CRIO_DROP_IN, DRIVER_ROOT, HANDLER, NRI_OWNER, RUNTIME_CONFIGS
from gpu_provision.sandbox.kubelet.programs.device_plugin import read_offer
from gpu_provision.sandbox.kubelet.programs.nfd import publish
from gpu_provision.sandbox.operand_rules import OWNING_KINDS, driver_ready, gpu_labels, mig_labels

_TOOLKIT_OWNER, _CONFIG_OWNER = "toolkit", "runtime-config"
_TIMESTAMP = "nvidia.com/gfd.timestamp"
_CONFIG_VARIABLES = ("RUNTIME_DROP_IN_CONFIG", "RUNTIME_CONFIG", "CONTAINERD_CONFIG", "DOCKER_CONFIG", "CRIO_CONFIG")
_NAME_VARIABLES = ("NVIDIA_RUNTIME_NAME", "CONTAINERD_RUNTIME_CLASS", "DOCKER_RUNTIME_NAME")  # for any runtime
_SOCKET_VARIABLES = ("RUNTIME_SOCKET", "CONTAINERD_SOCKET", "DOCKER_SOCKET", "CRIO_SOCKET")
_NRI_SOCKET = "/run/nri/nri.sock"  # /var/run is /run
_CDI_SPEC = "/var/run/cdi/management.nvidia.com-gpu.yaml"
_VALIDATIONS = "/run/nvidia/validations"
_DRIVER_READY = f"{_VALIDATIONS}/.driver-ctr-ready"
_SMI = f"{DRIVER_ROOT}/usr/bin/nvidia-smi"
_HOST_SMI = "/host/usr/bin/nvidia-smi"
_POLLS_PLUGIN, _POLLS_POD = 30, 60
_CUDA_POD = "nvidia-cuda-validator"


def _first_set(container: Container, variables: tuple[str, ...], default: str = "") -> str:
    return next((container.env[name] for name in variables if container.env.get(name)), default)


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
    if container.env.get("ENABLE_NRI_PLUGIN") == "true":
        problem = _start_nri_plugin(container)
    else:
        problem = _configure_runtime(container, _first_set(container, _CONFIG_VARIABLES), root)
    if problem:
        container.log(problem)
        return 1
    if container.env.get("CDI_ENABLED") == "true" and files.host_path("/var/run/cdi"):
        files.write(_CDI_SPEC, "cdiVersion: 0.5.0\nkind: management.nvidia.com/gpu\n")
    machine.state.owners[_TOOLKIT_OWNER] = container.key
    machine.save_and_notify()
    container.log("Waiting for signal")
    return await container.run_forever()


def _start_nri_plugin(container: Container) -> str:
    """Connect the plugin to the container runtime, which keeps its configuration; return what went wrong."""
    socket = container.env.get("NRI_SOCKET", "")
    if container.files.host_path(socket) != _NRI_SOCKET:
        return f"unable to start the NRI plugin: dial unix {socket}: connect: no such file or directory"
    container.machine.state.owners[NRI_OWNER] = container.key
    return ""


def _configure_runtime(container: Container, config: str, root: str) -> str:
    """Write the container runtime's configuration and have it restart; return what went wrong."""
    host_config = container.files.host_path(config) if config else ""
    if host_config not in RUNTIME_CONFIGS:
        return f"unable to setup runtime: config file {config or '(none)'} is not one that the container runtime reads"
    socket = _first_set(container, _SOCKET_VARIABLES)
    host_socket = container.files.host_path(socket)
    distribution = find_distribution(container.machine.spec.kubelet)
    if distribution and container.env.get("RUNTIME") == "containerd":
        told = container.files.host_path(container.env.get("RUNTIME_CONFIG", ""))
        if told not in {distribution.config, distribution.persistent_config}:
            return f"unable to setup runtime: {told or 'no file'} is not one that {distribution.name} reads"
        if host_socket != distribution.socket:
            name = distribution.name
            return f"unable to restart container runtime: {name} does not listen on {host_socket or '(none)'}"
    if host_config != CRIO_DROP_IN and not host_socket:
        return f"unable to restart container runtime: dial unix {socket}: connect: no such file or directory"
    container.log(f"Loading config from {config}", f"Flushing config to {config}", "Sending SIGHUP signal")
    name = _first_set(container, _NAME_VARIABLES, "nvidia")
    container.files.write(config, f"{HANDLER}{name}\n# at {root}/toolkit/nvidia-container-runtime\n")
    container.machine.state.owners[_CONFIG_OWNER] = host_config
    return ""


def _stop_toolkit(container: Container) -> None:
    """Take back the runtime's configuration, as the toolkit does when it is asked to end; its binaries stay."""
    machine = container.machine
    if machine.state.owners.get(_TOOLKIT_OWNER) == container.key:
        del machine.state.owners[_TOOLKIT_OWNER]
        machine.state.files.pop(machine.state.owners.pop(_CONFIG_OWNER, ""), None)
        machine.state.owners.pop(NRI_OWNER, None)
        machine.save_and_notify()


async def _validate(container: Container) -> int:
    """Run the check of the operator validator that COMPONENT names, each of which returns its file; or the exporter."""
    component = container.env.get("COMPONENT", "")
    if component == "metrics":
        container.log(f"Running the metrics server, listening on :{container.env.get('METRICS_PORT', '0')}/metrics")
        return await container.run_forever()
    check = {"driver": _check_driver, "toolkit": _check_toolkit, "cuda": _check_cuda, "plugin": _check_plugin}.get(
        component
    )
    if check is None:
        container.log(f'level=fatal msg="invalid -c <component-name> flag value: {component}"')
        return 1
    status = f"{container.env.get('OUTPUT_DIR') or _VALIDATIONS}/{component}-ready"
    container.files.remove(status)
    content = await check(container)
    if content is None:
        return 1
    container.files.write(status, content)
    container.log(f'level=info msg="{component} is validated"')
    return 0


async def _check_driver(container: Container) -> str | None:
    if container.files.exists(_HOST_SMI) and container.machine.host_driver:
        container.log('level=info msg="Detected a pre-installed driver on the host"')
        return driver_ready(host=True)
    container.log('level=info msg="Attempting to validate a driver container installation"')
    marker = await _is_driver_owned(container)

    def there() -> bool:
        seen = container.files.propagates(_SMI) and container.files.exists(_SMI)
        return seen and bool(container.machine.state.driver) and (not marker or container.files.exists(_DRIVER_READY))

    if not there() and container.env.get("WITH_WAIT") != "true":
        container.log('level=fatal msg="failed to validate the driver: nvidia-smi is not in the driver root"')
        return None
    waited_for = _DRIVER_READY if marker else _SMI
    await container.wait_until(
        there, f'level=warning msg="waiting for {waited_for}: no such file, retrying after 5 seconds"'
    )
    return driver_ready(host=False)


async def _is_driver_owned(container: Container) -> bool:
    """Tell whether a driver DaemonSet of the GPU Operator itself exists; only then its marker file is waited for."""
    namespace = container.env.get("OPERATOR_NAMESPACE", "")
    daemon_sets = (await container.simulation.api.list(DAEMON_SETS, namespace))[0] if namespace else []
    owners = [owner for ds in daemon_sets for owner in ds["metadata"].get("ownerReferences") or ()]
    return any(owner["kind"] in OWNING_KINDS for owner in owners)


async def _check_toolkit(container: Container) -> str | None:
    await container.simulation.pause()
    if container.visible_gpus:
        return ""
    container.log(
        'level=info msg="Running command nvidia-smi"',
        'toolkit is not ready: exec: "nvidia-smi": executable file not found in $PATH',
    )
    return None


async def _check_cuda(container: Container) -> str | None:
    """Run vectorAdd in a pod of its own, as the GPU Operator's validator and that of earlier versions do."""
    missing = [name for name in ("NODE_NAME", "OPERATOR_NAMESPACE", "VALIDATOR_IMAGE") if not container.env.get(name)]
    if missing:
        container.log(f'level=fatal msg="invalid configuration: {missing[0]} must not be empty"')
        return None
    simulation, namespace = container.simulation, container.env["OPERATOR_NAMESPACE"]
    for pod in simulation.pods.by_index("node", container.machine.name):
        metadata = pod["metadata"]
        if (metadata.get("labels") or {}).get("app") == _CUDA_POD and metadata["namespace"] == namespace:
            with contextlib.suppress(ApiError):
                await simulation.api.delete(PODS, metadata["name"], namespace, grace_seconds=0)
    name = (await simulation.api.create(PODS, _cuda_pod(container), namespace))["metadata"]["name"]
    for _ in range(_POLLS_POD):
        await simulation.pause()
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


async def _check_plugin(container: Container) -> str | None:
    if not container.env.get("NODE_NAME"):
        container.log('level=fatal msg="invalid -n <node-name> flag: must not be empty string"')
        return None
    state, timings = container.machine.state, container.simulation.timings
    waiting = 'level=info msg="GPU resources are not yet discovered by the node, retrying after 5 seconds"'
    try:
        async with asyncio.timeout(_POLLS_PLUGIN * timings.scale(timings.retry)):
            await container.wait_until(lambda: state.registered > 0, waiting)
    except TimeoutError:
        container.log('level=fatal msg="GPU resources are not discovered by the node"')
        return None
    return ""


async def _run_gfd(container: Container) -> int:
    container.log("Starting GPU Feature Discovery")
    node, machine = container.env.get("NODE_NAME", ""), container.machine
    if not container.visible_gpus or not node:
        problem = "could not load NVML library" if node else "NODE_NAME is not set"
        container.log(f"error: failed to initialize: {problem}")
        return 1 if container.env.get("GFD_FAIL_ON_INIT_ERROR", "true") == "true" else await container.run_forever()
    container.hold_gpu()
    container.report_started()
    name, found = f"nvidia-features-for-{node}", None
    if container.adopted:  # one that was only taken over again keeps the time of its start
        found = await container.simulation.api.find(NODE_FEATURES, name, container.namespace)
    kept = (found or {}).get("spec", {}).get("labels", {})
    stamp = {_TIMESTAMP: kept.get(_TIMESTAMP) or str(int(time.time()))}
    while True:
        labels = _find_labels(container)
        await publish(container, name, labels | stamp)
        container.log(f"Created {len(labels) + 1} labels")
        await machine.wait_until(lambda labels=labels: _find_labels(container) != labels)  # type: ignore[misc]


def _find_labels(container: Container) -> dict[str, str]:
    machine, gpu = container.machine, container.machine.spec.gpu
    if gpu is None:
        return {}
    strategy, (_, _, copies, sharing) = container.env.get("MIG_STRATEGY", "none"), read_offer(container)
    labels = gpu_labels(gpu, machine.gpus, machine.state.driver, strategy=strategy, copies=copies, sharing=sharing)
    if (mig := machine.mig) and strategy != "none":
        labels |= mig_labels(gpu, machine.gpus, mig, strategy=strategy, copies=copies)
    return labels


async def _run_dcgm(container: Container) -> int:
    if not container.visible_gpus:
        container.log("Error: Unable to start host engine: libnvidia-ml.so.1 was not found")
        return 1
    container.hold_gpu()
    container.log("Started host engine version 4 using port number: 5555")
    return await container.run_forever()


async def _run_exporter(container: Container) -> int:
    container.log("Starting dcgm-exporter")
    if not container.visible_gpus and not container.env.get("DCGM_REMOTE_HOSTENGINE_INFO"):
        container.log('level=fatal msg="Error starting nv-hostengine: DCGM initialization error"')
        return 1
    container.hold_gpu()
    listen = container.env.get("DCGM_EXPORTER_LISTEN", ":9400")
    container.log("DCGM successfully initialized!", f"Starting webserver listening on {listen}")
    return await container.run_forever()


TOOLKIT = Program(_run_toolkit, _stop_toolkit)
VALIDATOR = Program(_validate)
GFD = Program(_run_gfd)
DCGM = Program(_run_dcgm)
DCGM_EXPORTER = Program(_run_exporter)
