"""Which content a validation has to have passed with: the one thing that only our own planning can say."""

from __future__ import annotations

import json
from collections.abc import Iterable

from gpu_provision.cluster.errors import NotFound
from gpu_provision.cluster.facts import node_facts
from gpu_provision.diagnose.pods import node_of
from gpu_provision.model.cluster import ClusterFacts, Manifest
from gpu_provision.model.inventory import Inventory
from gpu_provision.planning.membership import digest_of
from gpu_provision.planning.prepare import prepare
from gpu_provision.verify.cluster import GpuCluster


def declared_digest(inventory: Inventory, nodes: Iterable[Manifest], component: str, node: str) -> str:
    """Return the digest of the validation that the inventory declares for a node; empty for none.

    Args:
        nodes: All Node objects of the cluster.
        component: ``driver_validation`` or ``device_plugin_validation``.
    """
    facts = ClusterFacts(nodes=tuple(map(node_facts, nodes)))
    _, desired = prepare(inventory, facts)
    found = (digest_of(pod) for pod in desired[component] if node_of(pod) == node)
    return next(found, "")


def recorded_digest(inventory: Inventory, cluster: GpuCluster, component: str, node: str) -> str:
    """Return the digest that the stack's record has for a validation; empty for none."""
    path = f"/api/v1/namespaces/{cluster.namespace}/configmaps/{inventory.name}-validations"
    try:
        entry = json.loads((cluster.get(path).get("data") or {}).get(node, "{}"))
    except (NotFound, ValueError):
        return ""
    return str(entry.get(component, "")) if isinstance(entry, dict) else ""
