"""The endpoints controller: EndpointSlices and Endpoints of Services with a selector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import (
    CONFLICT,
    ENDPOINT_SLICES,
    ENDPOINTS,
    PODS,
    SERVICES,
    ApiError,
    ApiResource,
    Object,
)
from gpu_provision.sandbox.controllers.manager import ControllerManager, QueueController
from gpu_provision.sandbox.objects import Key

SERVICE_LABEL = "kubernetes.io/service-name"
MANAGER_LABEL = "endpointslice.kubernetes.io/managed-by"
MANAGER = "endpointslice-controller.k8s.io"
_MAX_ENDPOINTS = 1000

Ports = tuple[tuple[str, str, int], ...]
"""(name, protocol, number) of each port of a Service on one pod."""


def _resolve_ports(service: Object, pod: Object) -> Ports:
    """Return the Service's target ports on a pod; a name that the pod lacks leaves its port out."""
    named = {
        port.get("name"): int(port["containerPort"])
        for container in pod["spec"].get("containers") or ()
        for port in container.get("ports") or ()
    }
    result = []
    for port in service["spec"].get("ports") or ():
        target = port.get("targetPort") or port["port"]
        number = target if isinstance(target, int) else named.get(target)
        if number is not None:
            result.append((port.get("name") or "", port.get("protocol") or "TCP", number))
    return tuple(result)


def _group_by_ports(service: Object, pods: Sequence[Object]) -> list[tuple[Ports, list[Object]]]:
    groups: dict[Ports, list[Object]] = {}
    for pod in pods:
        groups.setdefault(_resolve_ports(service, pod), []).append(pod)
    return sorted(groups.items(), key=lambda group: group[0])


def _is_ready(service: Object, pod: Object) -> bool:
    return bool(service["spec"].get("publishNotReadyAddresses")) or (
        objects.is_ready(pod) and not objects.is_deleting(pod)
    )


def _target(pod: Object) -> dict[str, Any]:
    reference = {"kind": "Pod", "namespace": objects.namespace(pod), "name": objects.name(pod), "uid": objects.uid(pod)}
    return {"targetRef": reference, **({"nodeName": objects.node_of(pod)} if objects.node_of(pod) else {})}


def build_slices(service: Object, pods: Sequence[Object]) -> list[Object]:
    """Return the EndpointSlices, one for each set of ports; one without endpoints if there are none."""
    return [_build_slice(service, ports, group) for ports, group in _group_by_ports(service, pods) or [((), [])]]


def _build_slice(service: Object, ports: Ports, pods: Sequence[Object]) -> Object:
    labels = {**objects.labels(service), SERVICE_LABEL: objects.name(service), MANAGER_LABEL: MANAGER}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"{objects.name(service)}-{objects.stable_hash(list(map(list, ports)))[:5]}",
            "labels": labels,
            "ownerReferences": [objects.controller_ref(service)],
        },
        "addressType": "IPv4",
        "endpoints": [
            {
                "addresses": [objects.status(pod)["podIP"]],
                "conditions": {
                    "ready": _is_ready(service, pod),
                    "serving": objects.is_ready(pod),
                    "terminating": objects.is_deleting(pod),
                },
                **_target(pod),
            }
            for pod in pods[:_MAX_ENDPOINTS]
        ],
        "ports": [{"name": name, "protocol": protocol, "port": number} for name, protocol, number in ports],
    }


def build_endpoints(service: Object, pods: Sequence[Object]) -> Object:
    """Return the Endpoints object of a Service."""
    return {
        "apiVersion": "v1",
        "kind": "Endpoints",
        "metadata": {"name": objects.name(service), "labels": dict(objects.labels(service))},
        "subsets": [_build_subset(service, *group) for group in _group_by_ports(service, pods)],
    }


def _build_subset(service: Object, ports: Ports, pods: Sequence[Object]) -> dict[str, Any]:
    addresses: dict[bool, list[Object]] = {True: [], False: []}
    for pod in pods[:_MAX_ENDPOINTS]:
        addresses[_is_ready(service, pod)].append({"ip": objects.status(pod)["podIP"], **_target(pod)})
    rows = [
        {**({"name": name} if name else {}), "port": number, "protocol": protocol} for name, protocol, number in ports
    ]
    subset = {"addresses": addresses[True], "notReadyAddresses": addresses[False], "ports": rows}
    return {key: value for key, value in subset.items() if value}


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
        self._pods.index("label", lambda obj: [(objects.namespace(obj), *pair) for pair in objects.labels(obj).items()])
        self._slices.index("service", _service_keys)
        self._services.on_event(lambda _, obj: self.queue.add(objects.key_of(obj)))
        self._endpoints.on_event(lambda _, obj: self.queue.add(objects.key_of(obj)))
        self._slices.on_event(self._slice_changed)
        self._pods.on_change(self._pod_changed)

    def _slice_changed(self, _: str, obj: Object) -> None:
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
        if service is None and key in self._endpoints.objects:
            await self.cluster.delete(ENDPOINTS, self._endpoints.objects[key])
        if service is None or objects.is_deleting(service) or not service["spec"].get("selector"):
            return
        pods = self._select_pods(service)
        slices = build_slices(service, pods)
        names = {objects.name(one) for one in slices}
        for present in self._slices.by("service", key):
            if objects.labels(present).get(MANAGER_LABEL) == MANAGER and objects.name(present) not in names:
                await self.cluster.delete(ENDPOINT_SLICES, present)
        for one in slices:
            await self._write(ENDPOINT_SLICES, one, key[0], ("endpoints", "ports"))
        await self._write(ENDPOINTS, build_endpoints(service, pods), key[0], ("subsets",))

    def _select_pods(self, service: Object) -> list[Object]:
        """Return the pods of a Service that have an address and have not finished, by name."""
        selector: dict[str, str] = service["spec"]["selector"]
        found = self._pods.by("label", (objects.namespace(service), *next(iter(selector.items()))))
        serving = (pod for pod in found if objects.status(pod).get("podIP") and not objects.is_finished(pod))
        return sorted((p for p in serving if objects.includes_labels(selector, objects.labels(p))), key=objects.name)

    async def _write(self, resource: ApiResource, wanted: Object, namespace: str, fields: tuple[str, ...]) -> None:
        present = self.cluster.informer(resource).objects.get((namespace, objects.name(wanted)))
        if present is None:
            try:
                await self.cluster.create(resource, wanted, namespace)
            except ApiError as refusal:
                if refusal.code != CONFLICT:
                    raise
            return
        labels = objects.labels(wanted)
        same = all((present.get(field) or []) == wanted[field] for field in fields)
        if not same or not labels.items() <= objects.labels(present).items():
            change = {"metadata": {"labels": labels}, **{field: wanted[field] for field in fields}}
            await self.cluster.patch(resource, present, change)


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
