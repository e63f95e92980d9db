"""What a Service's EndpointSlices and Endpoints should say (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.controllers import objects
from gpu_provision.sandbox.controllers.resources import SERVICES

SERVICE_LABEL = "kubernetes.io/service-name"
MANAGER_LABEL = "endpointslice.kubernetes.io/managed-by"
MANAGER = "endpointslice-controller.k8s.io"
_PER_SLICE, _PER_ENDPOINTS = 100, 1000

Ports = tuple[tuple[str, str, int | None], ...]
"""(name, protocol, number) of each port of a Service on one pod."""


def serving(pods: Iterable[Object]) -> list[Object]:
    """Return the pods that have an address and have not finished, by name."""
    found = [pod for pod in pods if objects.status(pod).get("podIP") and not objects.is_finished(pod)]
    return sorted(found, key=objects.name)


def ports_on(service: Object, pod: Object) -> Ports:
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
        groups.setdefault(ports_on(service, pod), []).append(pod)
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


def slices(service: Object, pods: Sequence[Object]) -> list[Object]:
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
            "ownerReferences": [objects.controller_ref(SERVICES, service)],
        },
        "addressType": "IPv4",
        "endpoints": [_endpoint(service, pod) for pod in pods],
        "ports": [{"name": name, "protocol": protocol, "port": number} for name, protocol, number in ports],
    }


def endpoints(service: Object, pods: Sequence[Object]) -> Object:
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
