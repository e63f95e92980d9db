"""A laboratory: the embedded API server's store, all controllers, and a kubelet that pretends."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.sandbox.api import ApiError, Object, Resource
from gpu_provision.sandbox.apiserver.local_api import LocalApi
from gpu_provision.sandbox.apiserver.registry import Registry
from gpu_provision.sandbox.apiserver.server import bootstrap
from gpu_provision.sandbox.apiserver.store import Store
from gpu_provision.sandbox.controllers import run_controllers
from gpu_provision.sandbox.controllers.resources import NODES, PODS
from gpu_provision.sandbox.informer import Informer

_DEADLINE = 60.0


class Kubelet:
    """Runs bound pods of all nodes: Running at once, and Ready but for broken images."""

    def __init__(self, api: LocalApi) -> None:
        """Follow the pods."""
        self._api = api
        self._changes: asyncio.Queue[Object] = asyncio.Queue()
        self.broken_images: set[str] = set()
        self._addresses = 0
        self.pods = Informer(api, PODS)
        self.pods.on_event(self._changed)

    def _changed(self, change: str, pod: Object) -> None:
        if change != "DELETED" and pod["spec"].get("nodeName"):
            self._changes.put_nowait(pod)

    async def run(self) -> None:
        """Run pods until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.pods.run())
            group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            pod = await self._changes.get()
            with contextlib.suppress(ApiError):
                await self._advance(pod)

    async def _advance(self, pod: Object) -> None:
        metadata = pod["metadata"]
        if metadata.get("deletionTimestamp"):
            await self._api.delete(PODS, metadata["name"], metadata["namespace"], 0)
            return
        if pod["status"].get("phase", "Pending") != "Pending":
            return
        self._addresses += 1
        image = pod["spec"]["containers"][0]["image"]
        ready = image not in self.broken_images
        others = [one for one in pod["status"].get("conditions") or () if one["type"] != "Ready"]
        condition = {
            "type": "Ready",
            "status": str(ready),
            "lastTransitionTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        status = {
            "phase": "Running",
            "podIP": f"10.0.{self._addresses // 250}.{self._addresses % 250 + 1}",
            "conditions": [*others, condition],
        }
        await self._api.patch(PODS, metadata["name"], {"status": status}, metadata["namespace"], "status")


class Lab:
    """What a story does with the cluster."""

    def __init__(self, api: LocalApi, kubelet: Kubelet) -> None:
        """Keep what stories use."""
        self.api, self.kubelet = api, kubelet

    async def node(self, name: str, *, gpus: int = 0, **spec: Any) -> Object:
        """Register a node with 110 pods, 8 cores and its GPUs."""
        labels = {"kubernetes.io/hostname": name, **spec.pop("labels", {})}
        body = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "spec": spec,
        }
        amounts = {"cpu": "8", "memory": "32Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
        status = {"allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
        await self.api.create(NODES, body | {"status": status})

        async def settled() -> Object | None:
            node = await self.api.get(NODES, name)
            new = any(taint["key"] == "node.kubernetes.io/not-ready" for taint in node["spec"].get("taints") or ())
            return None if new else node

        found: Object = await self.until(settled)
        return found

    async def create(self, resource: Resource, kind: str, name: str, **body: Any) -> Object:
        """Create an object in the namespace default."""
        version = f"{resource.group}/{resource.version}" if resource.group else resource.version
        metadata = {"name": name, **body.pop("metadata", {})}
        return await self.api.create(
            resource, {"apiVersion": version, "kind": kind, "metadata": metadata, **body}, "default"
        )

    async def pods(self, selector: str = "", namespace: str = "default") -> list[Object]:
        """List pods by name."""
        found, _ = await self.api.list(PODS, namespace, selector)
        return sorted(found, key=lambda pod: pod["metadata"]["name"])

    async def running(self, selector: str = "") -> list[Object]:
        """List pods that are ready and not being deleted."""
        return [pod for pod in await self.pods(selector) if is_ready(pod)]

    async def until(self, truth: Callable[[], Awaitable[Any]], deadline: float = _DEADLINE) -> Any:
        """Wait until ``truth`` returns something true, and return that."""
        end = time.monotonic() + deadline
        while True:
            try:
                result = await truth()
            except ApiError as refusal:
                result = refusal.code if refusal.code != 404 else None
            if result:
                return result
            if time.monotonic() > end:
                pytest.fail(f"still not true after {deadline} s: {truth.__qualname__}")
            await asyncio.sleep(0.01)

    async def status_of(self, resource: Resource, name: str, **wanted: Any) -> Object:
        """Wait until the status has these values, and return it."""

        async def reached() -> Object | None:
            status = (await self.api.get(resource, name, "default")).get("status") or {}
            last.append(status)
            return status if all(status.get(key, 0) == value for key, value in wanted.items()) else None

        last: list[Object] = []
        try:
            return await self.until(reached)
        except pytest.fail.Exception:
            pytest.fail(f"{resource.plural} {name}: wanted {wanted}, the last status was {last[-1:]}")

    async def gone(self, resource: Resource, name: str, namespace: str = "default") -> None:
        """Wait until an object is gone."""

        async def is_gone() -> bool:
            try:
                await self.api.get(resource, name, namespace)
            except ApiError as refusal:
                return refusal.code == 404
            return False

        await self.until(is_gone)

    async def condition(self, resource: Resource, name: str, kind: str, state: str = "True") -> Object:
        """Wait until a condition has this status, and return it."""

        async def reached() -> Object | None:
            status = (await self.api.get(resource, name, "default")).get("status") or {}
            found = [one for one in status.get("conditions") or () if one["type"] == kind]
            return found[0] if found and found[0]["status"] == state else None

        return await self.until(reached)


def is_ready(pod: Object) -> bool:
    """Whether a pod is ready and not being deleted."""
    ready = [one["status"] for one in pod["status"].get("conditions") or () if one["type"] == "Ready"]
    return ready == ["True"] and not pod["metadata"].get("deletionTimestamp")


Story = Callable[[Lab], Awaitable[None]]


@pytest.fixture
def lab(tmp_path: Path) -> Callable[[Story], None]:
    """Return a function that runs a story in a fresh cluster."""

    async def play(story: Story) -> None:
        registry = Registry(Store(tmp_path / "store.db"))
        bootstrap(registry, "")
        api = LocalApi(registry)
        kubelet = Kubelet(api.as_manager("kubelet"))
        tasks = [asyncio.create_task(run_controllers(api)), asyncio.create_task(kubelet.run())]
        try:
            await asyncio.wait_for(story(Lab(api, kubelet)), 60)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            registry.store.close()

    def run(story: Story) -> None:
        asyncio.run(play(story))

    return run


@pytest.fixture
def template() -> Callable[..., dict[str, Any]]:
    """Return a function that makes a pod template of one container."""

    def make(labels: dict[str, str], *, image: str = "one", **spec: Any) -> dict[str, Any]:
        container = {"name": "main", "image": image, **spec.pop("container", {})}
        return {
            "metadata": {"labels": labels},
            "spec": {"containers": [container], **spec},
        }

    return make
