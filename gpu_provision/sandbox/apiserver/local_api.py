"""The `Api` for code in the same process, directly on the registry."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any

from gpu_provision.sandbox.api import PODS, Api, ApiResource, Object, ObjectEvent, ObjectPath, ServedResource
from gpu_provision.sandbox.apiserver.errors import no_such_path
from gpu_provision.sandbox.apiserver.list_watch import Selection, SelectionWatch, list_items, parse_resource_version
from gpu_provision.sandbox.apiserver.pods import bind_to_node, evict_pod
from gpu_provision.sandbox.apiserver.registry import Registry, WriteOptions
from gpu_provision.sandbox.apiserver.resources import RequestInfo, ResourceInfo
from gpu_provision.sandbox.apiserver.rest import merge_patch
from gpu_provision.sandbox.apiserver.strategy import parse_delete_options
from gpu_provision.sandbox.objects import deep_copy

_WRITES_PER_TURN = 4
"""Calls in one turn of the event loop: some 10 ms of work."""


class FairQueue:
    """Limits the writes in each turn of the event loop, in FIFO order.

    Thousands of simulated pods can be ready at the same time. All their writes in one turn would take seconds, and
    HTTPS requests, which need several turns, would time out.
    """

    def __init__(self) -> None:
        """Start with an empty queue."""
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait_turn(self) -> None:
        """Wait for the caller's turn."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            loop.call_soon(self._next, loop)
        await turn

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        for _ in range(min(_WRITES_PER_TURN, len(self._waiting))):
            turn = self._waiting.popleft()
            if not turn.done():  # else the caller was cancelled
                turn.set_result(None)
        if self._waiting:
            loop.call_soon(self._next, loop)


class LocalApi(Api):
    """Implements `Api` without HTTP: request log and faults of the API server do not apply."""

    def __init__(
        self, registry: Registry, manager: str = "kube-controller-manager", queue: FairQueue | None = None
    ) -> None:
        """``manager`` is the field manager of all writes; callers on one event loop share the ``queue``."""
        self._registry, self._options = registry, WriteOptions(manager=manager)
        self._queue = queue or FairQueue()

    def with_manager(self, manager: str) -> LocalApi:
        """Return an `Api` of the same cluster for another field manager, such as ``kubelet``."""
        return LocalApi(self._registry, manager, self._queue)

    def _find_info(self, resource: ApiResource) -> ResourceInfo:
        info = self._registry.catalog.find(*resource)
        if info is None:
            raise no_such_path()
        return info

    async def request(  # noqa: PLR0911 - one for each kind of request
        self, method: str, path: ObjectPath, body: Object | None = None, **selectors: str
    ) -> Any:
        """Return the answer to a request; a PATCH is a merge patch. Raises ApiError."""
        if method != "GET":
            await self._queue.wait_turn()
        registry, target = self._registry, RequestInfo(self._find_info(path.resource), *path[1:])
        content = deep_copy(body or {})
        match method:
            case "GET" if path.name:
                return registry.get(target).copy()
            case "GET":
                items = list_items(registry.store, target.info, _selection(path.namespace, selectors))
                metadata = {"resourceVersion": str(registry.store.version)}
                return {"items": [item.copy() for item in items], "metadata": metadata}
            case "DELETE":
                registry.delete(target, parse_delete_options(content))
                return {}
            case "PUT":
                return registry.update(target, content, self._options).copy()
            case "POST" if not path.name:
                return registry.create(target, content, self._options).copy()
            case "POST" if path.subresource == "eviction":
                evict_pod(registry, target, parse_delete_options(content.get("deleteOptions")))
                return {}
        change: Callable[[Object], Object] = partial(merge_patch, patch=content)
        if path.subresource == "binding":
            change = partial(bind_to_node, node=content["target"]["name"], info=target.info)
        return registry.patch(target, change, self._options).copy()

    async def watch(
        self, resource: ApiResource, version: str, namespace: str = "", **selectors: str
    ) -> AsyncIterator[ObjectEvent]:
        """Yield events since a resourceVersion until cancelled. Raises ApiError 410 for an expired version."""
        info, selection = self._find_info(resource), _selection(namespace, selectors)
        watch = SelectionWatch(self._registry.store, info, selection, parse_resource_version(version))
        async for events in watch.batches():
            for event in events:
                obj = event.item.copy() if event.item else {"metadata": {"resourceVersion": str(event.version)}}
                yield ObjectEvent(event.type, {"kind": info.kind, "apiVersion": info.api_version, **obj})

    def resources(self) -> tuple[ServedResource, ...]:
        """Return every stored resource, including custom ones, each in one served version."""
        chosen: dict[str, ServedResource] = {}
        for info in self._registry.catalog:
            if "list" in info.verbs:
                resource = ApiResource(info.group, info.version, info.plural)
                chosen.setdefault(info.storage, ServedResource(resource, info.kind, info.namespaced))
        return tuple(chosen.values())

    def append_log(  # noqa: PLR0913 - what identifies a log
        self, namespace: str, pod: str, uid: str, container: str, text: str, *, restart: int = 0
    ) -> None:
        """Append to the log of a container's run; without ``uid`` that of the present pod with this name."""
        uid = uid or self._registry.get(RequestInfo(self._find_info(PODS), namespace, pod)).object["metadata"]["uid"]
        self._registry.store.logs.append(uid, container, text, restart=restart)


def _selection(namespace: str, selectors: Mapping[str, str]) -> Selection:
    return Selection(namespace, selectors.get("label_selector", ""), selectors.get("field_selector", ""))
