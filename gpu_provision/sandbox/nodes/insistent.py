"""An API that does not give up: what runs on a machine goes on when the API server was away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

from gpu_provision.sandbox.api import Api, ApiError, Object, Resource, WatchEvent

TOO_MANY, SERVER_ERROR = 429, 500
T = TypeVar("T")


class InsistentApi:
    """Implements ``Api`` on another one; tries again while the server is away, throttles or fails.

    A create whose answer was lost is sent again, so an object with a generated name may be there twice.
    """

    def __init__(self, api: Api, *, pause: float = 0.5) -> None:
        """Wait ``pause`` seconds between two tries."""
        self._api, self._pause = api, pause

    async def _insist(self, call: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await call()
            except ApiError as refusal:
                if refusal.code < SERVER_ERROR and refusal.code != TOO_MANY:
                    raise
            except OSError:
                pass  # nobody answers; the informers of the same server say so in the log
            await asyncio.sleep(self._pause)

    async def get(self, resource: Resource, name: str, namespace: str = "") -> Object:
        """Return one object. Raises ApiError 404."""
        return await self._insist(lambda: self._api.get(resource, name, namespace))

    async def list(
        self, resource: Resource, namespace: str = "", label_selector: str = "", field_selector: str = ""
    ) -> tuple[list[Object], str]:
        """Return the objects and the resourceVersion to watch from."""
        return await self._insist(lambda: self._api.list(resource, namespace, label_selector, field_selector))

    def watch(
        self,
        resource: Resource,
        resource_version: str,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
    ) -> AsyncIterator[WatchEvent]:
        """Watch without insisting: whoever watches lists again after a loss."""
        return self._api.watch(resource, resource_version, namespace, label_selector, field_selector)

    async def create(self, resource: Resource, body: Object, namespace: str = "") -> Object:
        """Create an object. Raises ApiError 409."""
        return await self._insist(lambda: self._api.create(resource, body, namespace))

    async def update(self, resource: Resource, body: Object, namespace: str = "", subresource: str = "") -> Object:
        """Replace an object. Raises ApiError 409 on conflict."""
        return await self._insist(lambda: self._api.update(resource, body, namespace, subresource))

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: Mapping[str, Any],
        namespace: str = "",
        subresource: str = "",
    ) -> Object:
        """Merge-patch an object."""
        return await self._insist(lambda: self._api.patch(resource, name, body, namespace, subresource))

    async def delete(
        self, resource: Resource, name: str, namespace: str = "", grace_seconds: int | None = None
    ) -> None:
        """Delete an object. Raises ApiError 404."""
        await self._insist(lambda: self._api.delete(resource, name, namespace, grace_seconds))

    async def bind(self, pod: str, node: str, namespace: str) -> None:
        """Bind a pod to a node."""
        await self._insist(lambda: self._api.bind(pod, node, namespace))
