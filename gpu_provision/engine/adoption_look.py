"""Reads what of the GPU Operator is in a cluster: one LIST per kind and namespace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from gpu_provision.adoption.found import CLUSTER_POLICY, NVIDIA_DRIVER, Found, by_ref, is_operator
from gpu_provision.cluster.client import Cluster
from gpu_provision.cluster.facts import node_facts
from gpu_provision.cluster.observe import MEMBER_KINDS, NODE, POD
from gpu_provision.cluster.pool import RequestPool
from gpu_provision.components import prerequisites
from gpu_provision.model.cluster import ClusterFacts, Kind, Manifest
from gpu_provision.model.inventory import Inventory

_PARALLEL = 12
_DEPLOYMENT = Kind("apps/v1", "Deployment")
_DAEMON_SET = Kind("apps/v1", "DaemonSet")
_EVERYWHERE = frozenset({"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "Namespace", "RuntimeClass"})


def look(cluster: Cluster, inventory: Inventory | None = None) -> Found:
    """Return what is there, seen for an inventory, or for making one.

    Raises:
        Unreachable, Refused: The cluster cannot be asked.
    """
    version = cluster.version()
    policies = sorted(cluster.list(CLUSTER_POLICY).items, key=_age)
    nodes = tuple(sorted(cluster.list(NODE).items, key=lambda node: str(node["metadata"]["name"])))
    homes = sorted(_homes(cluster, policies) | _own(inventory))
    asked = [*_kinds(homes), *((POD, home) for home in homes)]
    with RequestPool(cluster, _PARALLEL) as pool:
        drivers = pool.submit(cluster.list, NVIDIA_DRIVER)
        lists = list(pool.map(lambda each: cluster.list(each[0], namespace=each[1]).items, asked))
    found = list(chain.from_iterable(lists))
    return Found(
        cluster=f"{cluster.name} ({version})",
        policies=tuple(policies),
        drivers=tuple(drivers.result().items),
        objects=by_ref(item for item in found if item["kind"] != "Pod"),
        pods=tuple(item for item in found if item["kind"] == "Pod"),
        nodes=nodes,
        facts=ClusterFacts(version=version, nodes=tuple(map(node_facts, nodes))),
    )


def _age(item: Manifest) -> tuple[str, str]:
    return item["metadata"].get("creationTimestamp", ""), item["metadata"]["name"]


def _homes(cluster: Cluster, policies: Iterable[Manifest]) -> set[str]:
    """Return the namespaces of the operator and of what it made."""
    uids = {policy["metadata"]["uid"] for policy in policies}
    found = {item["metadata"]["namespace"] for item in cluster.list(_DEPLOYMENT).items if is_operator(item)}
    owned = (
        item["metadata"]["namespace"]
        for item in cluster.list(_DAEMON_SET).items
        if any(owner["uid"] in uids for owner in item["metadata"].get("ownerReferences") or ())
    )
    return {*found, *owned}


def _own(inventory: Inventory | None) -> set[str]:
    return set(prerequisites.spec(inventory).namespaces) if inventory else set()


def _kinds(homes: Iterable[str]) -> Iterator[tuple[Kind, str]]:
    namespaces = tuple(homes)
    for kind in sorted(MEMBER_KINDS):
        if kind.kind in _EVERYWHERE:
            yield kind, ""
        else:
            yield from ((kind, namespace) for namespace in namespaces)
