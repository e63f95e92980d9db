"""A cluster with simulated nodes in this process: the real store and controllers, time lapsed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import CONFIG_MAPS, DAEMON_SETS, EVENTS, NODES, PODS, ApiError, ApiResource, Object
from gpu_provision.sandbox.apiserver.local_api import LocalApi
from gpu_provision.sandbox.apiserver.registry import Registry
from gpu_provision.sandbox.apiserver.server import bootstrap
from gpu_provision.sandbox.apiserver.store import Store
from gpu_provision.sandbox.controllers import run_controllers
from gpu_provision.sandbox.fleet import Fleet, MachineSpec, Timings, models
from gpu_provision.sandbox.kubelet.kubelet import build_simulation, run_nodes
from gpu_provision.sandbox.kubelet.logs import ContainerLogs
from gpu_provision.sandbox.kubelet.machine import Machine
from tests import data_file

STACK = (Path(__file__).parent / "manifests" / "stack.yaml").read_text()
OPERANDS = (
    "driver",
    "container-toolkit",
    "operator-validator",
    "device-plugin",
    "gpu-feature-discovery",
    "dcgm-exporter",
)


def stack() -> list[Object]:
    """Return the operands' manifests, which a test may spoil."""
    return list(data_file.documents(STACK))


def fleet(*, gpus: int = 1, model: str = "Tesla T4", **more: Any) -> Fleet:
    machine = MachineSpec(name="gpu-1", kernel="5.15.0-122-generic", gpu=models()[model], gpus=gpus, **more)
    return Fleet(name="test", machines=(machine,), timings=Timings(speed=40, lease=5))


@dataclass
class _Lab:
    """A running cluster with one simulated node."""

    api: LocalApi
    machine: Machine
    logs: ContainerLogs

    async def create(self, *manifests: Object) -> None:
        for manifest in manifests:
            group, _, version = manifest["apiVersion"].rpartition("/")
            kind = manifest["kind"].lower()
            resource = ApiResource(group, version, f"{kind}{'es' if kind.endswith('s') else 's'}")
            await self.api.create(resource, manifest, manifest["metadata"].get("namespace", ""))

    async def label(self, **operands: str) -> None:
        wanted = operands or dict.fromkeys(OPERANDS, "true")
        labels = {f"nvidia.com/gpu.deploy.{name}": value for name, value in wanted.items()}
        await self.api.patch(NODES, "gpu-1", {"metadata": {"labels": labels}})

    async def stack(self, *manifests: Object) -> None:
        await self.create(*(manifests or stack()))
        await self.label()

    async def faults(self, *faults: Object) -> None:
        data = {"nodes": yaml.safe_dump(list(faults))}
        try:
            await self.api.patch(CONFIG_MAPS, "sandbox-faults", {"data": data}, "kube-system")
        except ApiError:
            body = {"metadata": {"name": "sandbox-faults"}, "data": data}
            await self.api.create(CONFIG_MAPS, body, "kube-system")

    async def node(self) -> Object:
        return await self.api.get(NODES, "gpu-1")

    async def until(self, found: Callable[[], Awaitable[Any]], what: str = "") -> Any:
        try:
            async with asyncio.timeout(60):
                while not (value := await found()):  # noqa: ASYNC110 - it asks a cluster, as kubectl would
                    await asyncio.sleep(0.02)
                return value
        except TimeoutError:
            pytest.fail(f"never true: {what}")

    async def pod(self, app: str, holds: Callable[[Object], Any] = lambda _: True, namespace: str = "gpu") -> Object:
        """Return a pod with a label ``app`` that stays, once something holds of it."""

        async def found() -> Object | None:
            pods = (await self.api.list(PODS, namespace, label_selector=f"app={app}"))[0]
            return next((pod for pod in pods if not objects.is_deleting(pod) and holds(pod)), None)

        return await self.until(found, app)

    async def ready(self, app: str, namespace: str = "gpu") -> Object:
        return await self.pod(app, objects.is_ready, namespace)

    async def ended(self, app: str) -> Object:
        return await self.pod(app, objects.is_finished)

    async def everything(self) -> None:
        """Bring up all operands and wait until each is ready and the node has a GPU to give."""
        await self.stack()
        for daemon_set in (await self.api.list(DAEMON_SETS, "gpu"))[0]:
            await self.ready(objects.name(daemon_set))
        await self.allocatable(1)

    async def event(self, reason: str, text: str = "", namespace: str = "gpu") -> Object:
        async def found() -> Object | None:
            events = (await self.api.list(EVENTS, namespace))[0]
            return next((e for e in events if e["reason"] == reason and text in e["message"]), None)

        return await self.until(found, f"event {reason}")

    async def says(self, app: str, container: str, text: str) -> None:
        await self.pod(app, lambda pod: text in self.output(pod, container))

    def output(self, pod: Object, container: str) -> str:
        lines = self.logs.lines(objects.namespace(pod), objects.name(pod), container) or ()
        return "".join(f"{line}\n" for _, line in lines)

    async def allocatable(self, count: int) -> None:
        async def given() -> bool:
            return (await self.node())["status"]["allocatable"].get("nvidia.com/gpu") == str(count)

        await self.until(given, f"{count} GPUs")

    async def labelled(self, **wanted: str | None) -> None:
        """Return once the node has labels of GPU Feature Discovery with these values, or with any for None."""

        async def found() -> bool:
            labels = objects.labels(await self.node())
            values = {key: labels.get(f"nvidia.com/{key.replace('_', '.')}") for key in wanted}
            return all(values[key] == value if value else values[key] for key, value in wanted.items())

        await self.until(found, f"labels {wanted}")


@contextlib.asynccontextmanager
async def _lab(directory: Path, of: Fleet) -> AsyncIterator[_Lab]:
    store = Store(directory / "store.db")
    registry = Registry(store)
    bootstrap(registry, "")
    api, logs = LocalApi(registry), ContainerLogs()
    simulation = build_simulation(api.with_manager("kubelet"), of, logs.append, home=directory / "machines")
    registered = asyncio.Event()
    nodes = asyncio.create_task(run_nodes(simulation, of, registered=registered))
    controllers = asyncio.create_task(run_controllers(api, resources=api.resources))
    await registered.wait()
    try:
        yield _Lab(api, simulation.machines["gpu-1"], logs)
    finally:
        for task in (nodes, controllers):
            task.cancel()
        await asyncio.gather(nodes, controllers, return_exceptions=True)
        store.close()


@pytest.fixture
def simulate(tmp_path: Path) -> Callable[..., None]:
    """Run a scenario on a cluster; scenarios of one test share its state, as after a restart of the sandbox."""

    def run(scenario: Callable[[_Lab], Awaitable[None]], of: Fleet | None = None) -> None:
        async def main() -> None:
            async with _lab(tmp_path, of or fleet()) as lab:
                await scenario(lab)

        asyncio.run(main())

    return run
