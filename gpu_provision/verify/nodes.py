"""The nodes that acceptance tests are about, and which GPUs the inventory declares there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpu_provision.cluster.facts import node_facts
from gpu_provision.components.targets import claims
from gpu_provision.model.cluster import ClusterFacts, Manifest
from gpu_provision.model.inventory import HostPrerequisites, Inventory, Node, NodePool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredNode:
    """One machine as the inventory declares it.

    Attributes:
        name: Its name in Kubernetes.
        pool: The pool that it belongs to.
        node: Its entry under ``nodes``; None if a pool's ``node_selector`` selects it.
    """

    name: str
    pool: NodePool
    node: Node | None = None

    @property
    def gpus(self) -> int:
        """The declared number of GPUs; 0 for a node without."""
        return self.pool.gpu.count if self.pool.gpu else 0

    @property
    def prerequisites(self) -> HostPrerequisites:
        """What the host phase makes true on it: the node's own settings, or those of its pool."""
        return (self.node and self.node.host_prerequisites) or self.pool.host_prerequisites


def listed(inventory: Inventory) -> tuple[DeclaredNode, ...]:
    """Return the nodes that the inventory lists."""
    return tuple(DeclaredNode(name=node.name, pool=inventory.pool_of(node), node=node) for node in inventory.nodes)


def selected(inventory: Inventory, live: Iterable[Manifest]) -> tuple[DeclaredNode, ...]:
    """Return the nodes of a cluster that pools select by label, sorted by name.

    Args:
        live: All Node objects of the cluster.
    """
    facts = ClusterFacts(nodes=tuple(map(node_facts, live)))
    names = {node.name for node in inventory.nodes}
    claimed = claims(inventory, facts).items()
    return tuple(DeclaredNode(name=name, pool=pool) for name, pool in sorted(claimed) if name not in names)


def asks_cluster(inventory: Inventory) -> bool:
    """Whether only the cluster knows all nodes of this inventory."""
    return any(pool.node_selector for pool in inventory.pools.values())
