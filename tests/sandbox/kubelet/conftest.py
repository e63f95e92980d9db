"""A cluster with simulated nodes in this process: the real store and controllers, time lapsed."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_provision.sandbox.api import CONFIG_MAPS, NODES, PODS, ApiError, ApiResource, Object
from gpu_provision.sandbox.apiserver.local_api import LocalApi
from gpu_provision.sandbox.apiserver.registry import Registry
from gpu_provision.sandbox.apiserver.server import bootstrap
from gpu_provision.sandbox.apiserver.store import Store
from gpu_provision.sandbox.controllers import run_controllers
from gpu_provision.sandbox.fleet import Fleet, MachineSpec, Timings, models
from gpu_provision.sandbox.kubelet.kubelet import build_simulation, run_nodes
from gpu_provision.sandbox.kubelet.logs import KeptLogs
from gpu_provision.sandbox.kubelet.machine import Machine
from tests import data_file

DEADLINE = 60.0
FAST = Timings(speed=40, lease=5)
_PLURALS = {
    "Namespace": ("", "namespaces"),
    "ConfigMap": ("", "configmaps"),
    "Pod": ("", "pods"),
    "RuntimeClass": ("node.k8s.io", "runtimeclasses"),
    "CustomResourceDefinition": ("apiextensions.k8s.io", "customresourcedefinitions"),
    "DaemonSet": ("apps", "daemonsets"),
    "Deployment": ("apps", "deployments"),
    "Job": ("batch", "jobs"),
}


def resource_of(manifest: Object) -> ApiResource:
    """Return where a manifest is kept."""
    group, plural = _PLURALS[manifest["kind"]]
    return ApiResource(group, manifest["apiVersion"].rsplit("/", 1)[-1], plural)


def stack() -> list[Object]:
    """Return the operands' manifests, fresh copies that a test may spoil."""
    text = (Path(__file__).parent / "manifests" / "stack.yaml").read_text()
    return [copy.deepcopy(document) for document in data_file.documents(text)]


def fleet(*, gpus: int = 1, model: str = "Tesla T4", os: str = "ubuntu22.04", **more: Any) -> Fleet:
    """Return a fleet of one GPU machine, ``gpu-1``."""
    machine = MachineSpec(name="gpu-1", os=os, kernel="5.15.0-122-generic", gpu=models()[model], gpus=gpus, **more)
    return Fleet(name="test", machines=(machine,), timings=FAST)


@dataclass
class Lab:
    """A running cluster with simulated nodes."""

    api: LocalApi
    machines: dict[str, Machine]
    logs: KeptLogs
    made: list[Object] = field(default_factory=list)

    @property
    def machine(self) -> Machine:
        """The first machine."""
        return next(iter(self.machines.values()))

    async def create(self, *manifests: Object) -> None:
        """Create objects."""
        for manifest in manifests:
            namespace = manifest["metadata"].get("namespace", "")
            self.made.append(await self.api.create(resource_of(manifest), manifest, namespace))

    async def label(self, **operands: str) -> None:
        """Set deploy labels of every node; by default those of all operands."""
        names = (
            "driver",
            "container-toolkit",
            "operator-validator",
            "device-plugin",
            "gpu-feature-discovery",
            "dcgm-exporter",
        )
        wanted = operands or dict.fromkeys(names, "true")
        labels = {f"nvidia.com/gpu.deploy.{name}": value for name, value in wanted.items()}
        for name in self.machines:
            await self.api.patch(NODES, name, {"metadata": {"labels": labels}})

    async def stack(self, *manifests: Object) -> None:
        """Bring up the operands, or these manifests instead."""
        await self.create(*(manifests or stack()))
        await self.label()

    async def faults(self, *faults: Object) -> None:
        """Put these faults in force and no others."""
        data = {"nodes": yaml.safe_dump(list(faults))}
        try:
            await self.api.patch(CONFIG_MAPS, "sandbox-faults", {"data": data}, "kube-system")
        except ApiError:
            body = {"metadata": {"name": "sandbox-faults"}, "data": data}
            await self.api.create(CONFIG_MAPS, body, "kube-system")

    async def node(self, name: str = "gpu-1") -> Object:
        """Return a node."""
        return await self.api.get(NODES, name)

    async def pods(self, app: str = "", namespace: str = "gpu") -> list[Object]:
        """Return the pods with a label ``app``, or all."""
        return (await self.api.list(PODS, namespace, label_selector=f"app={app}" if app else ""))[0]

    async def pod(self, app: str, namespace: str = "gpu") -> Object:
        """Return the pod with a label ``app``, once there is one that is not going away."""
        return await self.until(lambda: self._living(app, namespace))

    async def _living(self, app: str, namespace: str) -> Object | None:
        living = [p for p in await self.pods(app, namespace) if not p["metadata"].get("deletionTimestamp")]
        return living[0] if living else None

    async def until(self, found: Callable[[], Awaitable[Any]], what: str = "") -> Any:
        """Return what ``found`` finds, once it is true."""
        async with asyncio.timeout(DEADLINE) as limit:
            while not (value := await found()):  # noqa: ASYNC110 - it asks a cluster, as kubectl would
                await asyncio.sleep(0.02)
        assert not limit.expired(), what
        return value

    async def ready(self, app: str, namespace: str = "gpu") -> Object:
        """Return a pod once it is ready."""
        return await self.until(lambda: self._with(app, namespace, is_ready), f"{app} ready")

    async def ended(self, app: str, namespace: str = "gpu") -> Object:
        """Return a pod once it has ended."""
        return await self.until(lambda: self._with(app, namespace, has_ended), f"{app} ended")

    async def waiting(self, app: str, reason: str, namespace: str = "gpu") -> Object:
        """Return a pod once a container of it waits for a reason."""
        return await self.until(lambda: self._with(app, namespace, lambda p: reason in waiting_reasons(p)), reason)

    async def _with(self, app: str, namespace: str, holds: Callable[[Object], bool]) -> Object | None:
        return next((pod for pod in await self.pods(app, namespace) if holds(pod)), None)

    async def event(self, reason: str, text: str = "", namespace: str = "gpu") -> Object:
        """Return an event once it was recorded."""

        async def found() -> Object | None:
            events = (await self.api.list(ApiResource("", "v1", "events"), namespace))[0]
            return next((e for e in events if e["reason"] == reason and text in e["message"]), None)

        return await self.until(found, f"event {reason}")

    async def says(self, app: str, container: str, text: str, namespace: str = "gpu") -> str:
        """Return a container's output once it contains a text."""

        async def found() -> str:
            outputs = [self.output(pod, container) for pod in await self.pods(app, namespace)]
            return next((output for output in outputs if text in output), "")

        output: str = await self.until(found, f"{app}/{container} says {text}")
        return output

    def output(self, pod: Object, container: str) -> str:
        """Return what a container has printed."""
        lines = self.logs.lines(pod["metadata"]["namespace"], pod["metadata"]["name"], container) or ()
        return "".join(f"{line}\n" for _, line in lines)

    async def allocatable(self, count: int, name: str = "gpu-1") -> None:
        """Return once a node has this many GPUs to give."""

        async def given() -> bool:
            return (await self.node(name))["status"]["allocatable"].get("nvidia.com/gpu") == str(count)

        await self.until(given, f"{count} GPUs")


def is_ready(pod: Object) -> bool:
    """Tell whether a pod is ready."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def has_ended(pod: Object) -> bool:
    """Tell whether a pod has ended."""
    return (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}


def waiting_reasons(pod: Object) -> set[str]:
    """Return why a pod's containers wait."""
    status = pod.get("status") or {}
    statuses = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return {s["state"]["waiting"]["reason"] for s in statuses if "waiting" in s["state"]}


Scenario = Callable[[Lab], Awaitable[None]]


@contextlib.asynccontextmanager
async def _lab(directory: Path, of: Fleet) -> AsyncIterator[Lab]:
    store = Store(directory / "store.db")
    registry = Registry(store)
    bootstrap(registry, "")
    api, logs = LocalApi(registry), KeptLogs()
    simulation = build_simulation(api.as_manager("kubelet"), of, logs.append, home=directory / "machines")
    registered = asyncio.Event()
    nodes = asyncio.create_task(run_nodes(simulation, of, registered=registered))
    controllers = asyncio.create_task(run_controllers(api, resources=api.resources))
    await registered.wait()
    try:
        yield Lab(api, dict(simulation.machines), logs)
    finally:
        for task in (nodes, controllers):
            task.cancel()
        await asyncio.gather(nodes, controllers, return_exceptions=True)
        store.close()


@pytest.fixture
def simulate(tmp_path: Path) -> Callable[..., None]:
    """Run a scenario on a cluster; scenarios of one test share its state, as after a restart of the sandbox."""

    def run(scenario: Scenario, of: Fleet | None = None) -> None:
        async def main() -> None:
            async with _lab(tmp_path, of or fleet()) as lab:
                await scenario(lab)

        asyncio.run(main())

    return run
