"""The endpoints controllers: EndpointSlices and Endpoints of Services that have a selector."""

from __future__ import annotations

from typing import Any

from gpu_provision.sandbox.api import ApiError, Object, Resource
from gpu_provision.sandbox.controllers import endpoints_plan as plan
from gpu_provision.sandbox.controllers import objects, selectors
from gpu_provision.sandbox.controllers.cluster import Cluster, Controller
from gpu_provision.sandbox.controllers.resources import ENDPOINT_SLICES, ENDPOINTS, PODS, SERVICES
from gpu_provision.sandbox.informer import Key

_CONFLICT = 409


class EndpointSets(Controller[Key]):
    """Keeps the addresses behind every Service."""

    name = "endpoints"
    watches = (SERVICES, PODS, ENDPOINTS, ENDPOINT_SLICES)

    def __init__(self, cluster: Cluster) -> None:
        """Follow Services, pods, and what this controller writes."""
        super().__init__(cluster)
        self._services, self._pods = cluster.informer(SERVICES), cluster.informer(PODS)
        self._endpoints, self._slices = cluster.informer(ENDPOINTS), cluster.informer(ENDPOINT_SLICES)
        self._services.index("namespace", lambda obj: [objects.namespace(obj)])
        self._pods.index("label", _label_keys)
        self._slices.index("service", _service_keys)
        self._services.on_event(lambda _, obj: self.queue.add(objects.key_of(obj)))
        self._endpoints.on_event(lambda _, obj: self.queue.add(objects.key_of(obj)))
        self._slices.on_event(self._slice_changed)
        self._pods.on_change(self._pod_changed)

    def _slice_changed(self, _change: str, obj: Object) -> None:
        for key in _service_keys(obj):
            self.queue.add(key)

    def _pod_changed(self, old: Object | None, new: Object | None) -> None:
        if old is not None and new is not None and _face(old) == _face(new):
            return
        present = [obj for obj in (old, new) if obj is not None]
        for service in self._services.by("namespace", objects.namespace(present[0])):
            selector = service["spec"].get("selector")
            if selector and any(selectors.equals(selector, objects.labels(obj)) for obj in present):
                self.queue.add(objects.key_of(service))

    async def sync(self, key: Key) -> None:
        """Write what differs."""
        service = self._services.objects.get(key)
        if service is None or objects.is_deleting(service):
            if service is None and key in self._endpoints.objects:
                await self._forget(self._endpoints.objects[key])
            return
        if not service["spec"].get("selector") or service["spec"].get("type") == "ExternalName":
            return
        pods = plan.serving(self._selected(service))
        await self._write_slices(service, plan.slices(service, pods))
        await self._write(ENDPOINTS, plan.endpoints(service, pods), key[0], ["subsets"])

    async def _forget(self, endpoints: Object) -> None:
        if endpoints["metadata"].get("annotations", {}).get("endpoints.kubernetes.io/managed-by") != "user":
            await self.cluster.delete(ENDPOINTS, endpoints)

    def _selected(self, service: Object) -> list[Object]:
        selector: dict[str, str] = service["spec"]["selector"]
        namespace = objects.namespace(service)
        key, value = next(iter(selector.items()))
        found = self._pods.by("label", (namespace, key, value))
        return [pod for pod in found if selectors.equals(selector, objects.labels(pod))]

    async def _write_slices(self, service: Object, wanted: list[Object]) -> None:
        key = objects.key_of(service)
        names = {objects.name(one) for one in wanted}
        for present in self._slices.by("service", key):
            managed = objects.labels(present).get(plan.MANAGER_LABEL) == plan.MANAGER
            if managed and objects.name(present) not in names:
                await self.cluster.delete(ENDPOINT_SLICES, present)
        for one in wanted:
            await self._write(ENDPOINT_SLICES, one, key[0], ["endpoints", "ports"])

    async def _write(self, resource: Resource, wanted: Object, namespace: str, fields: list[str]) -> None:
        present = self.cluster.informer(resource).objects.get((namespace, objects.name(wanted)))
        if present is None:
            await self._create(resource, wanted, namespace)
        elif plan.differs(present, wanted, fields):
            change: dict[str, Any] = {field: wanted[field] for field in fields}
            change["metadata"] = {"labels": objects.labels(wanted)}
            await self.cluster.patch(resource, present, change)

    async def _create(self, resource: Resource, wanted: Object, namespace: str) -> None:
        try:
            await self.cluster.create(resource, wanted, namespace)
        except ApiError as refusal:
            if refusal.code != _CONFLICT:
                raise


def _label_keys(obj: Object) -> list[tuple[str, str, str]]:
    namespace = objects.namespace(obj)
    return [(namespace, key, value) for key, value in objects.labels(obj).items()]


def _service_keys(obj: Object) -> list[Key]:
    service = objects.labels(obj).get(plan.SERVICE_LABEL)
    return [(objects.namespace(obj), service)] if service else []


def _face(pod: Object) -> tuple[Any, ...]:
    """Return what of a pod its Services show."""
    return (
        objects.labels(pod),
        objects.status(pod).get("podIP"),
        objects.node_of(pod),
        objects.is_ready(pod),
        objects.is_deleting(pod),
        objects.is_finished(pod),
    )
