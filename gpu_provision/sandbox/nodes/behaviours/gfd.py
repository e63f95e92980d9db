"""GPU Feature Discovery: says what the node's GPUs are, in a NodeFeature or in a file for NFD's worker."""

from __future__ import annotations

import time

from gpu_provision.sandbox.api import ApiError
from gpu_provision.sandbox.gpus import GpuModel
from gpu_provision.sandbox.nodes.behaviours.behaviour import Behaviour, cuda_version
from gpu_provision.sandbox.nodes.behaviours.device_plugin import replicas
from gpu_provision.sandbox.nodes.behaviours.nfd import differs, node_feature, publish
from gpu_provision.sandbox.nodes.container import Container
from gpu_provision.sandbox.nodes.world import NODE_FEATURES

_FILE = "/etc/kubernetes/node-feature-discovery/features.d/gfd"
_MIG_MODELS = ("A30", "A100", "H100", "H200", "B200")
_TIMESTAMP = "nvidia.com/gfd.timestamp"


def gpu_labels(gpu: GpuModel, count: int, driver: str, *, strategy: str, copies: int = 1) -> dict[str, str]:
    """Return what GPU Feature Discovery says about ``count`` GPUs of one model, without the timestamp."""
    compute_major, _, compute_minor = gpu.compute.partition(".")
    cuda_major, _, cuda_minor = cuda_version(driver).partition(".")
    major, minor, revision = [*driver.split("."), "", ""][:3]
    mig = any(name in gpu.name for name in _MIG_MODELS)
    labels = {
        "cuda.driver.major": major,
        "cuda.driver.minor": minor,
        "cuda.driver.rev": revision,
        "cuda.driver-version.full": driver,
        "cuda.driver-version.major": major,
        "cuda.driver-version.minor": minor,
        "cuda.driver-version.revision": revision,
        "cuda.runtime.major": cuda_major,
        "cuda.runtime.minor": cuda_minor,
        "cuda.runtime-version.full": cuda_version(driver),
        "cuda.runtime-version.major": cuda_major,
        "cuda.runtime-version.minor": cuda_minor,
        "gpu.compute.major": compute_major,
        "gpu.compute.minor": compute_minor,
        "gpu.count": str(count),
        "gpu.family": gpu.family,
        "gpu.machine": "Simulated-Machine",
        "gpu.memory": str(gpu.memory),
        "gpu.mode": "compute" if gpu.pci_class == "0302" else "graphics",
        "gpu.product": gpu.label + ("-SHARED" if copies > 1 else ""),
        "gpu.replicas": str(copies),
        "gpu.sharing-strategy": "time-slicing" if copies > 1 else "none",
        "mig.capable": str(mig).lower(),
        "mps.capable": "false",
        **({"mig.strategy": strategy} if mig else {}),
    }
    return {f"nvidia.com/{key}": value for key, value in labels.items()}


async def _discover(container: Container) -> int:
    container.log("Starting GPU Feature Discovery")
    node = container.env.get("NODE_NAME", "")
    if not container.visible_gpus or not node:
        problem = "could not load NVML library" if node else "NODE_NAME is not set"
        container.log(f"error: failed to initialize: {problem}")
        return 1 if container.env.get("GFD_FAIL_ON_INIT_ERROR", "true") == "true" else await container.for_ever()
    container.hold_gpu()
    container.up()
    stamp = await _timestamp(container, node)
    machine = container.machine
    while True:
        labels = _labels(container)
        await _publish(container, node, labels | stamp)
        await machine.until(differs(lambda: _labels(container), labels))


def _labels(container: Container) -> dict[str, str]:
    machine, gpu = container.machine, container.machine.spec.gpu
    if gpu is None:
        return {}
    config = container.env.get("CONFIG_FILE", "")
    copies = replicas(container.files.read(config)) if config else 1
    strategy = container.env.get("MIG_STRATEGY", "none")
    return gpu_labels(gpu, machine.gpus, machine.state.driver, strategy=strategy, copies=copies)


async def _timestamp(container: Container, node: str) -> dict[str, str]:
    """Return when this program started; one that was only taken over again keeps its time."""
    fresh = {_TIMESTAMP: str(int(time.time()))}
    if not container.adopted:
        return fresh
    try:
        live = await container.world.api.get(NODE_FEATURES, f"nvidia-features-for-{node}", container.namespace)
        return {_TIMESTAMP: live["spec"]["labels"][_TIMESTAMP]}
    except (ApiError, KeyError):
        return fresh


async def _publish(container: Container, node: str, labels: dict[str, str]) -> None:
    if container.env.get("USE_NODE_FEATURE_API", "true") == "true":
        await publish(container, node_feature(f"nvidia-features-for-{node}", container, labels, {}))
    else:
        container.files.write(_FILE, "".join(f"{name}={value}\n" for name, value in sorted(labels.items())))
    container.log(f"Created {len(labels)} labels")


GFD = Behaviour(_discover)
