"""The Kubernetes API for the sandbox's controllers and simulated nodes.

Two implementations: directly on the embedded API server's registry, and over HTTP to any API server.
Objects are plain dicts; every call returns a copy that the caller may change.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

Object = dict[str, Any]


class ApiResource(NamedTuple):
    """A resource by its REST name: ``ApiResource("apps", "v1", "daemonsets")``; the core group is empty."""

    group: str
    version: str
    plural: str


class ObjectPath(NamedTuple):
    """Path of a collection, of an object, or of a subresource."""

    resource: ApiResource
    namespace: str = ""
    name: str = ""
    subresource: str = ""


class ServedResource(NamedTuple):
    """A resource of an API server, with the kind of its objects."""

    resource: ApiResource
    kind: str
    namespaced: bool


class ObjectEvent(NamedTuple):
    """``type`` is ADDED, MODIFIED, DELETED or BOOKMARK."""

    type: str
    object: Object


class ApiError(Exception):
    """An error of the API server: an HTTP status code, and the Status object's reason and message."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        """Store the parts of the Status object."""
        super().__init__(f"{code} {reason}: {message}")
        self.code, self.reason, self.message = code, reason, message


@contextmanager
def ignoring(*codes: int) -> Iterator[None]:
    """Ignore errors of the API server with these codes."""
    try:
        yield
    except ApiError as refusal:
        if refusal.code not in codes:
            raise


class Api(ABC):
    """Requests of controllers and nodes; an empty ``namespace`` means cluster scope, or all namespaces.

    ``selectors`` are ``label_selector`` and ``field_selector``.
    """

    @abstractmethod
    async def request(self, method: str, path: ObjectPath, body: Object | None = None, **selectors: str) -> Any:
        """Return the answer to a request; a PATCH is a merge patch. Raises ApiError."""

    @abstractmethod
    def watch(
        self, resource: ApiResource, version: str, namespace: str = "", **selectors: str
    ) -> AsyncIterator[ObjectEvent]:
        """Yield events since a resourceVersion until cancelled. Raises ApiError 410 for an expired version."""

    async def get(self, resource: ApiResource, name: str, namespace: str = "") -> Object:
        """Return one object. Raises ApiError 404."""
        return dict(await self.request("GET", ObjectPath(resource, namespace, name)))

    async def find(self, resource: ApiResource, name: str, namespace: str = "") -> Object | None:
        """Return one object; None if there is none."""
        with ignoring(NOT_FOUND):
            return await self.get(resource, name, namespace)
        return None

    async def list(self, resource: ApiResource, namespace: str = "", **selectors: str) -> tuple[list[Object], str]:
        """Return the objects and the resourceVersion to watch from."""
        answer = await self.request("GET", ObjectPath(resource, namespace), None, **selectors)
        return answer.get("items") or [], answer["metadata"]["resourceVersion"]

    async def create(self, resource: ApiResource, body: Object, namespace: str = "") -> Object:
        """Create an object; ``metadata.generateName`` works. Raises ApiError 409."""
        return dict(await self.request("POST", ObjectPath(resource, namespace), body))

    async def update(self, resource: ApiResource, body: Object, namespace: str = "", subresource: str = "") -> Object:
        """Replace an object, checking its resourceVersion. Raises ApiError 409 on conflict."""
        path = ObjectPath(resource, namespace, body["metadata"]["name"], subresource)
        return dict(await self.request("PUT", path, body))

    async def patch(
        self, resource: ApiResource, name: str, body: Mapping[str, Any], namespace: str = "", subresource: str = ""
    ) -> Object:
        """Merge-patch an object; None removes a key."""
        return dict(await self.request("PATCH", ObjectPath(resource, namespace, name, subresource), dict(body)))

    async def delete(
        self, resource: ApiResource, name: str, namespace: str = "", grace_seconds: int | None = None
    ) -> None:
        """Delete an object; pods with ``grace_seconds=0`` are removed at once. Raises ApiError 404."""
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        grace = {} if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}
        await self.request("DELETE", ObjectPath(resource, namespace, name), options | grace)

    async def bind(self, pod: str, node: str, namespace: str) -> None:
        """Bind a pod to a node."""
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": target}
        await self.request("POST", ObjectPath(PODS, namespace, pod, "binding"), body)

    async def evict(self, pod: str, namespace: str) -> None:
        """Evict a pod. Raises ApiError 429 if a PodDisruptionBudget forbids it."""
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": namespace}}
        await self.request("POST", ObjectPath(PODS, namespace, pod, "eviction"), body)


PODS = ApiResource("", "v1", "pods")
NODES = ApiResource("", "v1", "nodes")
NAMESPACES = ApiResource("", "v1", "namespaces")
EVENTS = ApiResource("", "v1", "events")
CONFIG_MAPS = ApiResource("", "v1", "configmaps")
DAEMON_SETS = ApiResource("apps", "v1", "daemonsets")
DEPLOYMENTS = ApiResource("apps", "v1", "deployments")
REPLICA_SETS = ApiResource("apps", "v1", "replicasets")
CONTROLLER_REVISIONS = ApiResource("apps", "v1", "controllerrevisions")
JOBS = ApiResource("batch", "v1", "jobs")
LEASES = ApiResource("coordination.k8s.io", "v1", "leases")
DISRUPTION_BUDGETS = ApiResource("policy", "v1", "poddisruptionbudgets")
DEFINITIONS = ApiResource("apiextensions.k8s.io", "v1", "customresourcedefinitions")
RUNTIME_CLASSES = ApiResource("node.k8s.io", "v1", "runtimeclasses")
NODE_FEATURES = ApiResource("nfd.k8s-sigs.io", "v1alpha1", "nodefeatures")
NOT_FOUND, CONFLICT, TOO_MANY_REQUESTS = 404, 409, 429
