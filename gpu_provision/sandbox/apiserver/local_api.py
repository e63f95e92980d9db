"""The cluster for code in the same process: the protocol of ``sandbox/api.py`` directly on the registry."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any

from gpu_provision.sandbox.api import PODS, Api, ApiResource, Object, ObjectEvent, ObjectPath, ServedResource
from gpu_provision.sandbox.apiserver.errors import no_such_path
from gpu_provision.sandbox.apiserver.list_watch import Selection, SelectionWatch, list_items, parse_resource_version
from gpu_provision.sandbox.apiserver.pods import bind_to_node
from gpu_provision.sandbox.apiserver.registry import Registry, WriteOptions
from gpu_provision.sandbox.apiserver.resources import RequestInfo, ResourceInfo
from gpu_provision.sandbox.apiserver.rest import merge_patch
from gpu_provision.sandbox.apiserver.strategy import parse_delete_options
from gpu_provision.sandbox.objects import deep_copy

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


class LocalApi(Api):
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

    async def request(self, method: str, path: ObjectPath, body: Object | None = None, **selectors: str) -> Any:
        """Return the answer to a request; a PATCH is a merge patch. Raises ApiError."""
        if method != "GET":
            await self._queue.wait_turn()
        registry, target = self._registry, RequestInfo(self._find_info(path.resource), *path[1:])
        given = deep_copy(body or {})
        match method:
            case "GET" if path.name:
                return registry.get(target).copy()
            case "GET":
                items = list_items(registry.store, target.info, _selection(path.namespace, selectors))
                metadata = {"resourceVersion": str(registry.store.version)}
                return {"items": [item.copy() for item in items], "metadata": metadata}
            case "DELETE":
                registry.delete(target, parse_delete_options(given))
                return {}
            case "PUT":
                return registry.update(target, given, self._options).copy()
            case "POST" if not path.name:
                return registry.create(target, given, self._options).copy()
        change: Callable[[Object], Object] = partial(merge_patch, patch=given)
        if path.subresource == "binding":
            change = partial(bind_to_node, node=given["target"]["name"], info=target.info)
        return registry.patch(target, change, self._options).copy()

    async def watch(
        self, resource: ApiResource, version: str, namespace: str = "", **selectors: str
    ) -> AsyncIterator[ObjectEvent]:
        """Yield events since a resourceVersion until cancelled. Raises ApiError 410 if that is too old."""
        info, selection = self._find_info(resource), _selection(namespace, selectors)
        watch = SelectionWatch(self._registry.store, info, selection, parse_resource_version(version))
        async for events in watch.batches():
            for event in events:
                obj = event.item.copy() if event.item else {"metadata": {"resourceVersion": str(event.version)}}
                yield ObjectEvent(event.type, {"kind": info.kind, "apiVersion": info.api_version, **obj})

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
        uid = uid or self._registry.get(RequestInfo(self._find_info(PODS), namespace, pod)).object["metadata"]["uid"]
        self._registry.store.logs.append(uid, container, text, restart=restart)


def _selection(namespace: str, selectors: Mapping[str, str]) -> Selection:
    return Selection(namespace, selectors.get("label_selector", ""), selectors.get("field_selector", ""))
