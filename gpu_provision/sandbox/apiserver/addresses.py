"""Addresses of Services: cluster IPs from 10.96.0.0/12, node ports from 30000 to 32767."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.objects import at
from gpu_provision.sandbox.apiserver.resources import ResourceInfo
from gpu_provision.sandbox.apiserver.status import Cause, invalid
from gpu_provision.sandbox.apiserver.store import Store

_NETWORK = ipaddress.ip_network("10.96.0.0/12")
_FIRST_NODE_PORT, _LAST_NODE_PORT = 30000, 32767
_FIRST_DYNAMIC = 10
SERVICES = "/services"


def assign_addresses(store: Store, info: ResourceInfo, service: Object) -> None:
    """Give a Service the addresses that its type needs and refuse those that are taken (422)."""
    spec = service["spec"]
    own = (service["metadata"]["namespace"], service["metadata"]["name"])
    others = [item.object for item in store.select(SERVICES) if _key(item.object) != own]
    if spec.get("type") != "ExternalName":
        _assign_cluster_ip(spec, others)
    if spec.get("type") in ("NodePort", "LoadBalancer"):
        _assign_node_ports(info, service, others)


def _key(service: Object) -> tuple[str, str]:
    return service["metadata"]["namespace"], service["metadata"]["name"]


def _assign_cluster_ip(spec: Object, others: Iterable[Object]) -> None:
    if not spec.get("clusterIP"):
        taken = {at(other, "spec", "clusterIP") for other in others}
        first = int(_NETWORK.network_address) + _FIRST_DYNAMIC
        spec["clusterIP"] = next(
            address
            for number in range(first, int(_NETWORK.broadcast_address))
            if (address := str(ipaddress.ip_address(number))) not in taken
        )
    if not spec.get("clusterIPs"):
        spec["clusterIPs"] = [spec["clusterIP"]]


def _node_ports(services: Iterable[Object]) -> Iterator[int]:
    for service in services:
        for port in at(service, "spec", "ports") or ():
            if port.get("nodePort"):
                yield port["nodePort"]


def _assign_node_ports(info: ResourceInfo, service: Object, others: Iterable[Object]) -> None:
    taken = set(_node_ports(others))
    for index, port in enumerate(service["spec"].get("ports") or ()):
        given = port.get("nodePort")
        if given in taken:
            message = f"Invalid value: {given}: provided port is already allocated"
            cause = Cause("FieldValueInvalid", message, f"spec.ports[{index}].nodePort")
            raise invalid(info, service["metadata"]["name"], [cause])
        free = (number for number in range(_FIRST_NODE_PORT, _LAST_NODE_PORT + 1) if number not in taken)
        port["nodePort"] = given or next(free)
        taken.add(port["nodePort"])
