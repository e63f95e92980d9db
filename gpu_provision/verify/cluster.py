"""A cluster as acceptance tests read it: plain GET requests, the declared nodes, and whether a validation holds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gpu_provision.components.labels import COMPONENT, STACK
from gpu_provision.components.targets import node_pools
from gpu_provision.kube.client import KubeClient, connect
from gpu_provision.kube.config import resolve_context
from gpu_provision.kube.errors import NotFoundError
from gpu_provision.kube.observe import node_facts, validations_of
from gpu_provision.kube.retry import FIRST_CONTACT_SECONDS
from gpu_provision.model.cluster import ClusterFacts, Manifest, ObservedState, ref_of
from gpu_provision.model.hosts import HostPrerequisites
from gpu_provision.model.inventory import Inventory, Node, NodePool
from gpu_provision.planning.prepare import prepare
from gpu_provision.planning.states import cluster_state, evaluate_node
from gpu_provision.planning.verdicts import RUNS_IN, VALIDATIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredNode:
    """One machine as the inventory declares it."""

    name: str  # its name in Kubernetes
    pool: NodePool  # the pool that it belongs to
    node: Node | None = None  # its entry under ``nodes``; None if a pool claims it

    @property
    def gpus(self) -> int:
        """The declared number of GPUs; 0 for a node without, or with any number."""
        return self.pool.gpu.count if self.pool.gpu else 0

    def has_as_declared(self, gpus: int) -> bool:
        """Whether this number of GPUs is as declared."""
        return gpus > 0 if self.pool.takes_any_gpu else gpus == self.gpus

    @property
    def prerequisites(self) -> HostPrerequisites:
        """What the host phase makes true on it: the node's own settings, or those of its pool."""
        return (self.node and self.node.host_prerequisites) or self.pool.host_prerequisites


def listed_nodes(inventory: Inventory) -> tuple[DeclaredNode, ...]:
    """Return the nodes that the inventory lists."""
    return tuple(DeclaredNode(name=node.name, pool=inventory.pool_of(node), node=node) for node in inventory.nodes)


def selected_nodes(inventory: Inventory, live: Iterable[Manifest]) -> tuple[DeclaredNode, ...]:
    """Return the nodes, of all Node objects of a cluster, that pools claim by their labels, sorted by name."""
    facts = ClusterFacts(nodes=tuple(map(node_facts, live)))
    names = {node.name for node in inventory.nodes}
    claimed = node_pools(inventory, facts).items()
    return tuple(DeclaredNode(name=name, pool=pool) for name, pool in sorted(claimed) if name not in names)


def needs_cluster(inventory: Inventory) -> bool:
    """Whether only the cluster knows all nodes of this inventory."""
    return any(pool.node_selector or pool.takes_any_gpu for pool in inventory.pools.values())


def validation_problem(inventory: Inventory, cluster: GpuCluster, component: str, node: str) -> str | None:
    """Say why ``driver_validation`` or ``device_plugin_validation`` does not hold on a node today.

    Empty if it does, None if none is declared there.
    """
    facts = ClusterFacts(nodes=tuple(map(node_facts, cluster.nodes())))
    context, desired = prepare(inventory, facts)
    names = {*VALIDATIONS[component], RUNS_IN[component]}
    found = [pod for name in names for pod in cluster.pods(node=node, labels={STACK: inventory.name, COMPONENT: name})]
    whole: list[Manifest] = [{"apiVersion": "v1", "kind": "Pod", **pod} for pod in found]  # items of a list say neither
    pods = {ref_of(pod): pod for pod in whole}
    record = {}
    with suppress(NotFoundError):
        record = cluster.get(f"/api/v1/namespaces/{cluster.namespace}/configmaps/{inventory.name}-validations")
    observed = ObservedState(cluster="", facts=facts, pods=pods, verdicts=validations_of(record.get("data") or {}))
    target = next(each for each in context.targets if each.name == node)
    state = evaluate_node(target, cluster_state(context, desired, observed)).get(component)
    return state.reason if state else None


class GpuCluster:
    """The cluster of an inventory. Objects are plain dicts, as ``kubectl get -o json`` prints them.

    Attributes:
        api: The ``kubernetes.client.ApiClient``, for the package's own APIs: ``CoreV1Api(gpu_cluster.api)``.
        namespace: The operands' namespace.
    """

    def __init__(self, cluster: KubeClient, *, namespace: str) -> None:
        """Keep a client; `open_cluster` makes one."""
        self._cluster, self.api, self.namespace = cluster, cluster.api, namespace

    def get(self, path: str, **query: str) -> Any:
        """Return the JSON at a path. Raises UnreachableError, ForbiddenError, InvalidError."""
        return json.loads(self._cluster.get_raw(path, [*query.items()], accept="application/json"))

    def text(self, path: str, **query: str) -> str:
        """Return the text at a path, such as a pod's log. Raises like `get`."""
        found = self._cluster.get_raw(path, [*query.items()], accept="*/*", retry_seconds=FIRST_CONTACT_SECONDS)
        return found.decode(errors="replace")

    def nodes(self) -> list[Manifest]:
        """Return all nodes."""
        return list(self.get("/api/v1/nodes")["items"])

    def node(self, name: str) -> Manifest:
        """Return one node. Raises NotFoundError."""
        return dict(self.get(f"/api/v1/nodes/{name}"))

    def daemonsets(self, *, labels: Mapping[str, str]) -> list[Manifest]:
        """Return the DaemonSets of all namespaces that carry the labels."""
        return list(self.get("/apis/apps/v1/daemonsets", labelSelector=_selector(labels))["items"])

    def pods(self, *, node: str, labels: Mapping[str, str]) -> list[Manifest]:
        """Return the operands' pods on a node that carry the labels."""
        path, where = f"/api/v1/namespaces/{self.namespace}/pods", f"spec.nodeName={node}"
        return list(self.get(path, labelSelector=_selector(labels), fieldSelector=where)["items"])


def open_cluster(inventory: Inventory) -> GpuCluster:
    """Return the inventory's cluster, which answers. Raises UnreachableError, ForbiddenError, UsageError."""
    cluster = connect(*resolve_context(inventory))
    cluster.version()
    return GpuCluster(cluster, namespace=inventory.cluster.namespace)


def _selector(labels: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in labels.items())
