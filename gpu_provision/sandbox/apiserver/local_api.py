"""The cluster for code in the same process: the protocol of ``sandbox/api.py`` directly on the registry."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from gpu_provision.sandbox.api import ApiResource, Object, ObjectEvent, ServedResource
from gpu_provision.sandbox.apiserver.deletion import DeleteOptions
from gpu_provision.sandbox.apiserver.objects import copied
from gpu_provision.sandbox.apiserver.patches import merged
from gpu_provision.sandbox.apiserver.pods import bound
from gpu_provision.sandbox.apiserver.reading import Selection, Watch, listed, parsed_version
from gpu_provision.sandbox.apiserver.registry import Registry, WriteOptions
from gpu_provision.sandbox.apiserver.resources import ResourceInfo
from gpu_provision.sandbox.apiserver.status import no_such_path
from gpu_provision.sandbox.apiserver.targets import Target
from gpu_provision.sandbox.apiserver.turns import Turns

_PODS = ApiResource("", "v1", "pods")


class LocalApi:
    """Implements ``Api``. Not HTTP: it stands in no request log and no fault of the API server touches it."""

    def __init__(
        self, registry: Registry, manager: str = "kube-controller-manager", turns: Turns | None = None
    ) -> None:
        """``manager`` is the field manager of everything written through this object, ``turns`` those of the loop."""
        self._registry, self._options = registry, WriteOptions(manager=manager)
        self._turns = turns or Turns()

    def as_manager(self, manager: str) -> LocalApi:
        """Return the same cluster for another field manager, such as ``kubelet``."""
        return LocalApi(self._registry, manager, self._turns)

    def _info(self, resource: ApiResource) -> ResourceInfo:
        info = self._registry.catalog.find(*resource)
        if info is None:
            raise no_such_path()
        return info

    def _target(self, resource: ApiResource, namespace: str, name: str = "", subresource: str = "") -> Target:
        return Target(self._info(resource), namespace, name, subresource)

    async def get(self, resource: ApiResource, name: str, namespace: str = "") -> Object:
        """Return one object. Raises ApiError 404."""
        return self._registry.item(self._target(resource, namespace, name)).copy()

    async def list(
        self, resource: ApiResource, namespace: str = "", label_selector: str = "", field_selector: str = ""
    ) -> tuple[list[Object], str]:
        """Return the objects and the resourceVersion to watch from."""
        selection = Selection(namespace, label_selector, field_selector)
        items = listed(self._registry.store, self._info(resource), selection)
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
        info = self._info(resource)
        selection = Selection(namespace, label_selector, field_selector)
        watch = Watch(self._registry.store, info, selection, parsed_version(resource_version))
        async for events in watch.batches():
            for event in events:
                if event.item is None:
                    yield ObjectEvent("BOOKMARK", _bookmark(info, event.version))
                else:
                    yield ObjectEvent(event.type, event.item.copy())

    async def create(self, resource: ApiResource, body: Object, namespace: str = "") -> Object:
        """Create an object; ``metadata.generateName`` works. Raises ApiError 409."""
        await self._turns.take()
        item = self._registry.create(self._target(resource, namespace), copied(body), self._options)
        return item.copy()

    async def update(self, resource: ApiResource, body: Object, namespace: str = "", subresource: str = "") -> Object:
        """Replace an object, checking its resourceVersion. Raises ApiError 409 on conflict."""
        await self._turns.take()
        name = str(body["metadata"]["name"])
        item = self._registry.update(self._target(resource, namespace, name, subresource), copied(body), self._options)
        return item.copy()

    async def patch(
        self,
        resource: ApiResource,
        name: str,
        body: Mapping[str, Any],
        namespace: str = "",
        subresource: str = "",
    ) -> Object:
        """Merge-patch an object; None removes a key."""
        await self._turns.take()
        patch = copied(dict(body))
        item = self._registry.change(
            self._target(resource, namespace, name, subresource), lambda obj: merged(obj, patch), self._options
        )
        return item.copy()

    async def delete(
        self, resource: ApiResource, name: str, namespace: str = "", grace_seconds: int | None = None
    ) -> None:
        """Delete an object; pods with ``grace_seconds=0`` go at once. Raises ApiError 404."""
        await self._turns.take()
        options = DeleteOptions(grace_seconds=grace_seconds, policy="Background")
        self._registry.delete(self._target(resource, namespace, name), options)

    async def bind(self, pod: str, node: str, namespace: str) -> None:
        """Bind a pod to a node, as the scheduler does."""
        await self._turns.take()
        target = self._target(_PODS, namespace, pod, "binding")
        self._registry.change(target, lambda obj: bound(obj, node, target.info), self._options)

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
        if not uid:
            uid = self._registry.item(self._target(_PODS, namespace, pod)).object["metadata"]["uid"]
        self._registry.store.logs.append(uid, container, text, restart=restart)


def _bookmark(info: ResourceInfo, version: int) -> Object:
    return {"kind": info.kind, "apiVersion": info.api_version, "metadata": {"resourceVersion": str(version)}}
