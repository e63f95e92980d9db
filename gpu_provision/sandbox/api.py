"""The API of a cluster as the sandbox's controllers and simulated nodes use it.

Two implementations: directly on the embedded API server's store, and over HTTP to any API server.
Objects are plain dicts; every call returns a copy that the caller may change.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple, Protocol

Object = dict[str, Any]


class Resource(NamedTuple):
    """A resource by its REST name: ``Resource("apps", "v1", "daemonsets")``; the core group is empty."""

    group: str
    version: str
    plural: str


class WatchEvent(NamedTuple):
    """``type`` is ADDED, MODIFIED, DELETED or BOOKMARK."""

    type: str
    object: Object


class ApiError(Exception):
    """An API server's refusal: an HTTP status code and the Status object's reason and message."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        """Keep the parts of the Status object."""
        super().__init__(f"{code} {reason}: {message}")
        self.code, self.reason, self.message = code, reason, message


class Api(Protocol):
    """What controllers and nodes may ask of a cluster; an empty ``namespace`` means cluster scope, or all."""

    async def get(self, resource: Resource, name: str, namespace: str = "") -> Object:
        """Return one object. Raises ApiError 404."""
        ...

    async def list(
        self, resource: Resource, namespace: str = "", label_selector: str = "", field_selector: str = ""
    ) -> tuple[list[Object], str]:
        """Return the objects and the resourceVersion to watch from."""
        ...

    def watch(
        self,
        resource: Resource,
        resource_version: str,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
    ) -> AsyncIterator[WatchEvent]:
        """Yield events since ``resource_version`` until cancelled. Raises ApiError 410 if it is too old."""
        ...

    async def create(self, resource: Resource, body: Object, namespace: str = "") -> Object:
        """Create an object; ``metadata.generateName`` works. Raises ApiError 409."""
        ...

    async def update(self, resource: Resource, body: Object, namespace: str = "", subresource: str = "") -> Object:
        """Replace an object, checking its resourceVersion. Raises ApiError 409 on conflict."""
        ...

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: Mapping[str, Any],
        namespace: str = "",
        subresource: str = "",
    ) -> Object:
        """Merge-patch an object; None removes a key."""
        ...

    async def delete(
        self, resource: Resource, name: str, namespace: str = "", grace_seconds: int | None = None
    ) -> None:
        """Delete an object; pods with ``grace_seconds=0`` go at once. Raises ApiError 404."""
        ...

    async def bind(self, pod: str, node: str, namespace: str) -> None:
        """Bind a pod to a node, as the scheduler does."""
        ...
