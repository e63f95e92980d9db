"""The cluster for code in the same process: the protocol of ``sandbox/api.py`` directly on the registry."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Any

from gpu_provision.sandbox.api import ApiResource, Object, ObjectEvent, ServedResource
from gpu_provision.sandbox.apiserver.errors import no_such_path
from gpu_provision.sandbox.apiserver.list_watch import Selection, SelectionWatch, list_items, parse_resource_version
from gpu_provision.sandbox.apiserver.pods import bind_to_node
from gpu_provision.sandbox.apiserver.registry import Registry, WriteOptions
from gpu_provision.sandbox.apiserver.resources import RequestInfo, ResourceInfo
from gpu_provision.sandbox.apiserver.rest import merge_patch
from gpu_provision.sandbox.apiserver.strategy import DeleteOptions
from gpu_provision.sandbox.objects import deep_copy

_PODS = ApiResource("", "v1", "pods")
_WRITES_PER_TURN = 4
"""Calls in process between two looks at the network: some 10 ms of work."""


class FairQueue:
    """Lets a few writes go on in each turn of the event loop, in the order in which they came.

    Thousands of simulated pods are ready to go on at the same moment. Were they all to go on in one turn of the loop,
    that turn would take seconds, and a request over HTTPS, which needs several turns, longer than any client waits.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait_turn(self) -> None:
        """Return when the caller may go on."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            loop.call_soon(self._next, loop)
        await turn

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        for _ in range(min(_WRITES_PER_TURN, len(self._waiting))):
            turn = self._waiting.popleft()
            if not turn.done():  # a caller that is cancelled waits no more
                turn.set_result(None)
        if self._waiting:
            loop.call_soon(self._next, loop)


class LocalApi:
    """Implements ``Api``. Not HTTP: it stands in no request log and no fault of the API server touches it."""

    def __init__(
        self, registry: Registry, manager: str = "kube-controller-manager", queue: FairQueue | None = None
    ) -> None:
        """``manager`` is the field manager of everything written here; callers on one loop share the ``queue``."""
        self._registry, self._options = registry, WriteOptions(manager=manager)
        self._queue = queue or FairQueue()

    def as_manager(self, manager: str) -> LocalApi:
        """Return the same cluster for another field manager, such as ``kubelet``."""
        return LocalApi(self._registry, manager, self._queue)

    def _find_info(self, resource: ApiResource) -> ResourceInfo:
        info = self._registry.catalog.find(*resource)
        if info is None:
            raise no_such_path()
        return info

    def _target(self, resource: ApiResource, namespace: str, name: str = "", subresource: str = "") -> RequestInfo:
        return RequestInfo(self._find_info(resource), namespace, name, subresource)

    async def get(self, resource: ApiResource, name: str, namespace: str = "") -> Object:
        """Return one object. Raises ApiError 404."""
        return self._registry.get(self._target(resource, namespace, name)).copy()

    async def list(
        self, resource: ApiResource, namespace: str = "", label_selector: str = "", field_selector: str = ""
    ) -> tuple[list[Object], str]:
        """Return the objects and the resourceVersion to watch from."""
        selection = Selection(namespace, label_selector, field_selector)
        items = list_items(self._registry.store, self._find_info(resource), selection)
        return [item.copy() for item in items], str(self._registry.store.version)

    async def watch(
        self,
        resource: ApiResource,
        resource_version: str,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
    ) -> AsyncIterator[ObjectEvent]:
        """Yield events since ``resource_version`` until cancelled. Raises ApiError 410 if it is too old."""
        info, selection = self._find_info(resource), Selection(namespace, label_selector, field_selector)
        watch = SelectionWatch(self._registry.store, info, selection, parse_resource_version(resource_version))
        async for events in watch.batches():
            for event in events:
                obj = event.item.copy() if event.item else _bookmark(info, event.version)
                yield ObjectEvent(event.type, obj)

    async def create(self, resource: ApiResource, body: Object, namespace: str = "") -> Object:
        """Create an object; ``metadata.generateName`` works. Raises ApiError 409."""
        await self._queue.wait_turn()
        return self._registry.create(self._target(resource, namespace), deep_copy(body), self._options).copy()

    async def update(self, resource: ApiResource, body: Object, namespace: str = "", subresource: str = "") -> Object:
        """Replace an object, checking its resourceVersion. Raises ApiError 409 on conflict."""
        await self._queue.wait_turn()
        target = self._target(resource, namespace, str(body["metadata"]["name"]), subresource)
        return self._registry.update(target, deep_copy(body), self._options).copy()

    async def patch(
        self, resource: ApiResource, name: str, body: Mapping[str, Any], namespace: str = "", subresource: str = ""
    ) -> Object:
        """Merge-patch an object; None removes a key."""
        await self._queue.wait_turn()
        target, patch = self._target(resource, namespace, name, subresource), deep_copy(dict(body))
        return self._registry.patch(target, lambda obj: merge_patch(obj, patch), self._options).copy()

    async def delete(
        self, resource: ApiResource, name: str, namespace: str = "", grace_seconds: int | None = None
    ) -> None:
        """Delete an object; pods with ``grace_seconds=0`` go at once. Raises ApiError 404."""
        await self._queue.wait_turn()
        options = DeleteOptions(grace_seconds=grace_seconds, policy="Background")
        self._registry.delete(self._target(resource, namespace, name), options)

    async def bind(self, pod: str, node: str, namespace: str) -> None:
        """Bind a pod to a node, as the scheduler does."""
        await self._queue.wait_turn()
        target = self._target(_PODS, namespace, pod, "binding")
        self._registry.patch(target, lambda obj: bind_to_node(obj, node, target.info), self._options)

    def resources(self) -> tuple[ServedResource, ...]:
        """Return every resource that holds objects, custom ones included, each in one served version."""
        chosen: dict[str, ServedResource] = {}
        for info in self._registry.catalog:
            if "list" in info.verbs:
                resource = ApiResource(info.group, info.version, info.plural)
                chosen.setdefault(info.storage, ServedResource(resource, info.kind, info.namespaced))
        return tuple(chosen.values())

    def append_log(  # noqa: PLR0913 - what identifies a log
        self, namespace: str, pod: str, uid: str, container: str, text: str, *, restart: int = 0
    ) -> None:
        """Add to the log of a container's run; without ``uid`` that of the pod of this name now."""
        uid = uid or self._registry.get(self._target(_PODS, namespace, pod)).object["metadata"]["uid"]
        self._registry.store.logs.append(uid, container, text, restart=restart)


def _bookmark(info: ResourceInfo, version: int) -> Object:
    return {"kind": info.kind, "apiVersion": info.api_version, "metadata": {"resourceVersion": str(version)}}
