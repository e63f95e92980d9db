"""A simulated cluster in this process: the real store, controllers and machines, time lapsed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest
import yaml

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import CONFIG_MAPS, PODS, ApiError, Object
from gpu_provision.sandbox.apiserver.local_api import LocalApi
from gpu_provision.sandbox.apiserver.registry import Registry
from gpu_provision.sandbox.apiserver.server import bootstrap, ensure
from gpu_provision.sandbox.apiserver.store import Store
from gpu_provision.sandbox.controllers import run_controllers
from gpu_provision.sandbox.fleet import Fleet
from gpu_provision.sandbox.kubelet.kubelet import build_simulation, run_nodes
from gpu_provision.sandbox.kubelet.logs import ContainerLogs
from gpu_provision.sandbox.kubelet.machine import Machine
from gpu_provision.sandbox.openshift.profile import build_operators, build_profile, wait_until_ready

Simulate = Callable[..., None]


@dataclass
class Lab:
    """A running cluster; its pods are in ``namespace`` if a test names no other one."""

    api: LocalApi
    registry: Registry
    machines: Mapping[str, Machine]
    logs: ContainerLogs
    namespace: ClassVar[str] = "default"

    async def create(self, *manifests: Object) -> None:
        await asyncio.sleep(0)
        for manifest in manifests:
            ensure(self.registry, manifest)

    async def faults(self, *faults: Object) -> None:
        data = {"nodes": yaml.safe_dump(list(faults))}
        try:
            await self.api.patch(CONFIG_MAPS, "sandbox-faults", {"data": data}, "kube-system")
        except ApiError:
            await self.api.create(CONFIG_MAPS, {"metadata": {"name": "sandbox-faults"}, "data": data}, "kube-system")

    async def until(self, found: Callable[[], Awaitable[Any]], what: str = "") -> Any:
        try:
            async with asyncio.timeout(60):
                while not (value := await found()):  # noqa: ASYNC110 - it asks a cluster, as kubectl would
                    await asyncio.sleep(0.02)
                return value
        except TimeoutError:
            pytest.fail(f"never true: {what}")

    async def pods(self, app: str, namespace: str = "") -> list[Object]:
        return (await self.api.list(PODS, namespace or self.namespace, label_selector=f"app={app}"))[0]

    async def pod(self, app: str, holds: Callable[[Object], Any] = lambda _: True, namespace: str = "") -> Object:
        """Return a pod with a label ``app`` that stays, once something holds of it."""

        async def found() -> Object | None:
            pods = await self.pods(app, namespace)
            return next((pod for pod in pods if not objects.is_deleting(pod) and holds(pod)), None)

        return dict(await self.until(found, app))

    def output(self, pod: Object, container: str) -> str:
        lines = self.logs.lines(objects.namespace(pod), objects.name(pod), container) or ()
        return "".join(f"{line}\n" for _, line in lines)

    async def says(self, app: str, container: str, text: str) -> None:
        await self.pod(app, lambda pod: text in self.output(pod, container))


_L = TypeVar("_L", bound=Lab)


@contextlib.asynccontextmanager
async def _running(lab: type[_L], directory: Path, fleet: Fleet) -> AsyncIterator[_L]:
    store = Store(directory / "store.db")
    registry = Registry(store)
    bootstrap(registry, "")
    if fleet.openshift:
        build_profile(fleet.openshift)(registry)
    api, logs = LocalApi(registry), ContainerLogs()
    simulation = build_simulation(api.with_manager("kubelet"), fleet, logs.append, home=directory / "machines")
    registered = asyncio.Event()
    nodes = asyncio.create_task(run_nodes(simulation, fleet, registered=registered))
    operators = partial(build_operators, timings=fleet.timings) if fleet.openshift else lambda _: ()
    controllers = asyncio.create_task(run_controllers(api, resources=api.resources, operators=operators))
    await registered.wait()
    if fleet.openshift:
        await wait_until_ready(api, fleet)
    try:
        yield lab(api, registry, simulation.machines, logs)
    finally:
        for task in (nodes, controllers):
            task.cancel()
        await asyncio.gather(nodes, controllers, return_exceptions=True)
        store.close()


def simulator(lab: type[_L], directory: Path, default: Fleet) -> Simulate:
    """Return what runs a scenario on a cluster; its scenarios share the state, as after a restart of the sandbox."""

    def run(scenario: Callable[[_L], Awaitable[None]], of: Fleet = default) -> None:
        async def main() -> None:
            async with _running(lab, directory, of) as running:
                await scenario(running)

        asyncio.run(main())

    return run
