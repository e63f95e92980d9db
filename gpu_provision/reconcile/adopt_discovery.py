"""Read what of the GPU Operator is in a cluster, and which rights an adoption needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from gpu_provision.adopt.discovery import (
    CLUSTER_POLICY,
    NODE_FEATURE,
    NVIDIA_DRIVER,
    REVISION,
    Found,
    by_ref,
    is_operator,
)
from gpu_provision.components import prerequisites
from gpu_provision.kube.client import Cluster
from gpu_provision.kube.observe import MEMBER_KINDS, NODE, POD, node_facts
from gpu_provision.kube.resources import KINDS
from gpu_provision.kube.transport import RequestPool
from gpu_provision.model.cluster import ClusterFacts, Kind, Manifest, Permission
from gpu_provision.model.inventory import Inventory
from gpu_provision.reconcile import permissions

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


_OF_CLUSTER = frozenset({"ClusterRole", "ClusterRoleBinding", "RuntimeClass"})
_BY_NAME = frozenset({"CustomResourceDefinition", "Namespace"})  # an apply has what an adoption needs of these
_CHANGED = ("get", "patch", "delete")


def everything(inventory: Inventory) -> frozenset[Permission]:
    """Return what an account needs to take a cluster over: all that an apply needs, and `beyond` it."""
    return permissions.everything(inventory) | frozenset(beyond(inventory))


def beyond(inventory: Inventory) -> Iterator[Permission]:
    """Yield what an adoption needs besides: objects of others, of every kind that a stack has, change hands or go.

    They are not named, for the chart's release has names in them. In the namespace of the operands, which is that of
    the chart, and of what is in no namespace.
    """
    home = inventory.cluster.namespace
    yield from _of(CLUSTER_POLICY, "list", *_CHANGED)
    yield from _of(NVIDIA_DRIVER, "list")
    yield from (one for name in ("DaemonSet", "Deployment") for one in _of(Kind("apps/v1", name), "list"))
    yield from _of(NODE_FEATURE, "list", "watch", space=inventory.specs.nfd.namespace)
    yield from _of(POD, "patch", "delete", space=home)
    yield from _of(REVISION, "list", "delete", space=home)
    for kind in sorted(each for each in MEMBER_KINDS if each.kind not in _BY_NAME):
        yield from _of(kind, *_CHANGED, space="" if kind.kind in _OF_CLUSTER else home)


def _of(kind: Kind, *verbs: str, space: str = "") -> Iterator[Permission]:
    group = kind.api_version.rpartition("/")[0]
    yield from (Permission(verb, group, KINDS[kind], space) for verb in verbs)
