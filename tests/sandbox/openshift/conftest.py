"""A simulated OpenShift cluster in this process: the real store, operators and machines, time lapsed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import CONFIG_MAPS, NODES, PODS, ApiError, ApiResource, Object
from gpu_provision.sandbox.apiserver.local_api import LocalApi
from gpu_provision.sandbox.apiserver.registry import Registry, WriteOptions
from gpu_provision.sandbox.apiserver.resources import RequestInfo
from gpu_provision.sandbox.apiserver.server import bootstrap, ensure
from gpu_provision.sandbox.apiserver.store import Store
from gpu_provision.sandbox.controllers import run_controllers
from gpu_provision.sandbox.fleet import Fleet, OpenShiftSpec, Timings, load_fleet
from gpu_provision.sandbox.kubelet.kubelet import build_simulation, run_nodes
from gpu_provision.sandbox.kubelet.logs import ContainerLogs
from gpu_provision.sandbox.kubelet.machine import Machine
from gpu_provision.sandbox.machine_config import MACHINE_CONFIGS, POOLS, ROLE
from gpu_provision.sandbox.openshift.profile import build_operators, build_profile, wait_until_ready
from gpu_provision.sandbox.openshift_releases import RELEASES

GPU_NODES = ("gpu-0", "gpu-1")
OLD, NEW, NEXT = RELEASES["4.18.13"], RELEASES["4.18.24"], RELEASES["4.19.15"]


class OpenShift:
    """The registry of an OpenShift cluster, without machines."""

    def __init__(self, **spec: Any) -> None:
        self.store = Store(":memory:")
        self.registry = Registry(self.store)
        bootstrap(self.registry, "no certificate")
        build_profile(OpenShiftSpec(release=OLD, **spec))(self.registry)

    def submit(self, manifest: Object) -> None:
        ensure(self.registry, manifest)

    def pod(self, body: Object, *, user: str = "", namespace: str = "default") -> Object:
        info = next(each for each in self.registry.catalog if each.storage == "/pods")
        containers = [{"name": "main", "image": "example.org/app:1", **body.get("container", {})}]
        spec = {"automountServiceAccountToken": False, **body.get("spec", {}), "containers": containers}
        made = {"metadata": {"generateName": "app-", **body.get("metadata", {})}, "spec": spec}
        return self.registry.create(RequestInfo(info, namespace), made, WriteOptions(user=user)).copy()


@pytest.fixture
def openshift() -> Iterator[OpenShift]:
    made = OpenShift()
    yield made
    made.store.close()


def machine_config(name: str, *, role: str = "worker", files: dict[str, str] | None = None, **spec: Any) -> Object:
    """Return a MachineConfig; ``files`` are texts by path."""
    written = [{"path": path, "contents": {"source": f"data:,{text}"}} for path, text in (files or {}).items()]
    config = {"ignition": {"version": "3.2.0"}, **({"storage": {"files": written}} if written else {})}
    metadata = {"name": name, "labels": {ROLE: role}}
    kind = {"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig"}
    return {**kind, "metadata": metadata, "spec": {"config": config, **spec}}


@dataclass
class Lab:
    """A running cluster."""

    api: LocalApi
    registry: Registry
    machines: dict[str, Machine]
    logs: ContainerLogs

    async def create(self, manifest: Object) -> None:
        await asyncio.sleep(0)
        ensure(self.registry, manifest)

    async def pool(self, name: str = "worker") -> Object:
        return await self.api.get(POOLS, name)

    async def node(self, name: str = "gpu-0") -> Object:
        return await self.api.get(NODES, name)

    async def faults(self, *faults: Object) -> None:
        data = {"nodes": yaml.safe_dump(list(faults))}
        try:
            await self.api.patch(CONFIG_MAPS, "sandbox-faults", {"data": data}, "kube-system")
        except ApiError:
            await self.api.create(CONFIG_MAPS, {"metadata": {"name": "sandbox-faults"}, "data": data}, "kube-system")

    async def until(self, found: Callable[[], Awaitable[Any]], what: str) -> Any:
        try:
            async with asyncio.timeout(60):
                while not (value := await found()):  # noqa: ASYNC110 - it asks a cluster, as kubectl would
                    await asyncio.sleep(0.02)
                return value
        except TimeoutError:
            pytest.fail(f"never true: {what}")

    async def condition(self, kind: str, pool: str = "worker") -> Object:
        """Return the pool once this condition of it is True."""

        async def found() -> Object | None:
            live = await self.pool(pool)
            return live if objects.has_condition(live, kind) else None

        return dict(await self.until(found, f"{kind} of pool {pool}"))

    async def rolled(self, source: str, pool: str = "worker", *, present: bool = True) -> Object:
        """Return the pool once all its nodes have a configuration with this MachineConfig, or without it."""

        async def found() -> Object | None:
            live = await self.pool(pool)
            sources = objects.value_at(live, "status", "configuration", "source") or ()
            names = [each["name"] for each in sources]
            return live if (source in names) is present and objects.has_condition(live, "Updated") else None

        return dict(await self.until(found, f"{source} on pool {pool}"))

    async def rendered(self, pool: str = "worker") -> Object:
        name = (await self.pool(pool))["spec"]["configuration"]["name"]
        return await self.api.get(MACHINE_CONFIGS, name)

    async def pods(self, app: str) -> list[Object]:
        return (await self.api.list(PODS, "default", label_selector=f"app={app}"))[0]

    def output(self, pod: Object, container: str) -> str:
        lines = self.logs.lines(objects.namespace(pod), objects.name(pod), container) or ()
        return "".join(f"{line}\n" for _, line in lines)

    async def says(self, app: str, container: str, text: str) -> None:
        async def found() -> bool:
            return any(text in self.output(pod, container) for pod in await self.pods(app))

        await self.until(found, f"{container}: {text}")

    async def delete(self, resource: ApiResource, name: str) -> None:
        await self.api.delete(resource, name)


def fleet(**openshift: Any) -> Fleet:
    """Return the built-in fleet without its custom pool: its three workers are in one."""
    found = load_fleet("openshift")
    assert found.openshift is not None
    of_workers = (replace(each, roles=("worker",)) if each.gpu else each for each in found.machines)
    settings = replace(found.openshift, **{"pools": (), **openshift})
    return replace(found, timings=Timings(speed=50, lease=5), machines=tuple(of_workers), openshift=settings)


@contextlib.asynccontextmanager
async def _lab(directory: Path, of: Fleet) -> AsyncIterator[Lab]:
    store = Store(directory / "store.db")
    registry = Registry(store)
    bootstrap(registry, "")
    assert of.openshift is not None
    build_profile(of.openshift)(registry)
    api, logs = LocalApi(registry), ContainerLogs()
    simulation = build_simulation(api.with_manager("kubelet"), of, logs.append, home=directory / "machines")
    registered = asyncio.Event()
    nodes = asyncio.create_task(run_nodes(simulation, of, registered=registered))
    operators = partial(build_operators, timings=of.timings)
    controllers = asyncio.create_task(run_controllers(api, resources=api.resources, operators=operators))
    await registered.wait()
    await wait_until_ready(api, of)
    try:
        yield Lab(api, registry, dict(simulation.machines), logs)
    finally:
        for task in (nodes, controllers):
            task.cancel()
        await asyncio.gather(nodes, controllers, return_exceptions=True)
        store.close()


@pytest.fixture
def simulate(tmp_path: Path) -> Callable[..., None]:
    """Run a scenario on a cluster; scenarios of one test share its state, as after a restart of the sandbox."""

    def run(scenario: Callable[[Lab], Awaitable[None]], of: Fleet | None = None) -> None:
        async def main() -> None:
            async with _lab(tmp_path, of or fleet()) as lab:
                await scenario(lab)

        asyncio.run(main())

    return run
