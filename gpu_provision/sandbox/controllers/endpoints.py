"""The endpoints controllers: EndpointSlices and Endpoints of Services; their plan is pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import (
    ENDPOINT_SLICES,
    ENDPOINTS,
    PODS,
    SERVICES,
    ApiError,
    ApiResource,
    Object,
)
from gpu_provision.sandbox.controllers.manager import ControllerManager, QueueController
from gpu_provision.sandbox.informer import Key

SERVICE_LABEL = "kubernetes.io/service-name"
MANAGER_LABEL = "endpointslice.kubernetes.io/managed-by"
MANAGER = "endpointslice-controller.k8s.io"
_PER_SLICE, _PER_ENDPOINTS = 100, 1000

Ports = tuple[tuple[str, str, int | None], ...]
"""(name, protocol, number) of each port of a Service on one pod."""


def select_endpoints(pods: Iterable[Object]) -> list[Object]:
    """Return the pods that have an address and have not finished, by name."""
    found = [pod for pod in pods if objects.status(pod).get("podIP") and not objects.is_finished(pod)]
    return sorted(found, key=objects.name)


def resolve_ports(service: Object, pod: Object) -> Ports:
    """Resolve the Service's target ports on a pod; a name that the pod lacks leaves its port out."""
    result = []
    for port in service["spec"].get("ports") or ():
        target = port.get("targetPort") or port["port"]
        number = target if isinstance(target, int) else _named_port(pod, target)
        if number is not None:
            result.append((port.get("name") or "", port.get("protocol") or "TCP", number))
    return tuple(result)


def _named_port(pod: Object, name: str) -> int | None:
    for container in pod["spec"].get("containers") or ():
        for port in container.get("ports") or ():
            if port.get("name") == name:
                return int(port["containerPort"])
    return int(name) if name.isdigit() else None


def _groups(service: Object, pods: Sequence[Object]) -> dict[Ports, list[Object]]:
    groups: dict[Ports, list[Object]] = {}
    for pod in pods:
        groups.setdefault(resolve_ports(service, pod), []).append(pod)
    return groups


def _is_ready(service: Object, pod: Object) -> bool:
    if service["spec"].get("publishNotReadyAddresses"):
        return True
    return objects.is_ready(pod) and not objects.is_deleting(pod)


def _target(pod: Object) -> dict[str, Any]:
    return {
        "kind": "Pod",
        "namespace": objects.namespace(pod),
        "name": objects.name(pod),
        "uid": objects.uid(pod),
    }


def _endpoint(service: Object, pod: Object) -> dict[str, Any]:
    return {
        "addresses": [objects.status(pod)["podIP"]],
        "conditions": {
            "ready": _is_ready(service, pod),
            "serving": objects.is_ready(pod),
            "terminating": objects.is_deleting(pod),
        },
        **({"nodeName": objects.node_of(pod)} if objects.node_of(pod) else {}),
        "targetRef": _target(pod),
    }


def build_slices(service: Object, pods: Sequence[Object]) -> list[Object]:
    """Return the EndpointSlices, a hundred endpoints in each; one without endpoints if there are none."""
    groups = _groups(service, pods) or {(): []}
    return [
        _slice(service, ports, group[start : start + _PER_SLICE], start)
        for ports, group in sorted(groups.items())
        for start in range(0, max(len(group), 1), _PER_SLICE)
    ]


def _slice(service: Object, ports: Ports, pods: Sequence[Object], start: int) -> Object:
    suffix = objects.stable_hash([list(map(list, ports)), start])[:5]
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"{objects.name(service)}-{suffix}",
            "labels": {
                **objects.labels(service),
                SERVICE_LABEL: objects.name(service),
                MANAGER_LABEL: MANAGER,
            },
            "ownerReferences": [objects.controller_ref(service)],
        },
        "addressType": "IPv4",
        "endpoints": [_endpoint(service, pod) for pod in pods],
        "ports": [{"name": name, "protocol": protocol, "port": number} for name, protocol, number in ports],
    }


def build_endpoints(service: Object, pods: Sequence[Object]) -> Object:
    """Return the Endpoints object of a Service."""
    return {
        "apiVersion": "v1",
        "kind": "Endpoints",
        "metadata": {"name": objects.name(service), "labels": dict(objects.labels(service))},
        "subsets": [
            _subset(service, ports, group[:_PER_ENDPOINTS]) for ports, group in sorted(_groups(service, pods).items())
        ],
    }


def _subset(service: Object, ports: Ports, pods: Sequence[Object]) -> dict[str, Any]:
    ready = [_address(pod) for pod in pods if _is_ready(service, pod)]
    waiting = [_address(pod) for pod in pods if not _is_ready(service, pod)]
    rows = [
        {**({"name": name} if name else {}), "port": number, "protocol": protocol} for name, protocol, number in ports
    ]
    return {
        **({"addresses": ready} if ready else {}),
        **({"notReadyAddresses": waiting} if waiting else {}),
        **({"ports": rows} if rows else {}),
    }


def _address(pod: Object) -> dict[str, Any]:
    node = objects.node_of(pod)
    return {
        "ip": objects.status(pod)["podIP"],
        **({"nodeName": node} if node else {}),
        "targetRef": _target(pod),
    }


def differs(present: Object, wanted: Object, fields: Sequence[str]) -> bool:
    """Whether the present object lacks what is wanted in these fields or in the labels."""
    labels: Mapping[str, str] = objects.labels(present)
    return any((present.get(field) or []) != (wanted.get(field) or []) for field in fields) or (
        not objects.labels(wanted).items() <= labels.items()
    )


_CONFLICT = 409


class EndpointsController(QueueController[Key]):
    """Keeps the addresses behind every Service."""

    name = "endpoints"
    watches = (SERVICES, PODS, ENDPOINTS, ENDPOINT_SLICES)

    def __init__(self, cluster: ControllerManager) -> None:
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
        if old is not None and new is not None and _endpoint_fields(old) == _endpoint_fields(new):
            return
        present = [obj for obj in (old, new) if obj is not None]
        for service in self._services.by("namespace", objects.namespace(present[0])):
            selector = service["spec"].get("selector")
            if selector and any(objects.includes_labels(selector, objects.labels(obj)) for obj in present):
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
        pods = select_endpoints(self._selected(service))
        await self._write_slices(service, build_slices(service, pods))
        await self._write(ENDPOINTS, build_endpoints(service, pods), key[0], ["subsets"])

    async def _forget(self, endpoints: Object) -> None:
        if endpoints["metadata"].get("annotations", {}).get("endpoints.kubernetes.io/managed-by") != "user":
            await self.cluster.delete(ENDPOINTS, endpoints)

    def _selected(self, service: Object) -> list[Object]:
        selector: dict[str, str] = service["spec"]["selector"]
        namespace = objects.namespace(service)
        key, value = next(iter(selector.items()))
        found = self._pods.by("label", (namespace, key, value))
        return [pod for pod in found if objects.includes_labels(selector, objects.labels(pod))]

    async def _write_slices(self, service: Object, wanted: list[Object]) -> None:
        key = objects.key_of(service)
        names = {objects.name(one) for one in wanted}
        for present in self._slices.by("service", key):
            managed = objects.labels(present).get(MANAGER_LABEL) == MANAGER
            if managed and objects.name(present) not in names:
                await self.cluster.delete(ENDPOINT_SLICES, present)
        for one in wanted:
            await self._write(ENDPOINT_SLICES, one, key[0], ["endpoints", "ports"])

    async def _write(self, resource: ApiResource, wanted: Object, namespace: str, fields: list[str]) -> None:
        present = self.cluster.informer(resource).objects.get((namespace, objects.name(wanted)))
        if present is None:
            await self._create(resource, wanted, namespace)
        elif differs(present, wanted, fields):
            change: dict[str, Any] = {field: wanted[field] for field in fields}
            change["metadata"] = {"labels": objects.labels(wanted)}
            await self.cluster.patch(resource, present, change)

    async def _create(self, resource: ApiResource, wanted: Object, namespace: str) -> None:
        try:
            await self.cluster.create(resource, wanted, namespace)
        except ApiError as refusal:
            if refusal.code != _CONFLICT:
                raise


def _label_keys(obj: Object) -> list[tuple[str, str, str]]:
    namespace = objects.namespace(obj)
    return [(namespace, key, value) for key, value in objects.labels(obj).items()]


def _service_keys(obj: Object) -> list[Key]:
    service = objects.labels(obj).get(SERVICE_LABEL)
    return [(objects.namespace(obj), service)] if service else []


def _endpoint_fields(pod: Object) -> tuple[Any, ...]:
    """Return what of a pod its Services show."""
    return (
        objects.labels(pod),
        objects.status(pod).get("podIP"),
        objects.node_of(pod),
        objects.is_ready(pod),
        objects.is_deleting(pod),
        objects.is_finished(pod),
    )
