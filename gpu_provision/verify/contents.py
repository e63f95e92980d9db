"""Which verdict a validation has to have given: the one thing that only our own planning can say."""

from __future__ import annotations

import json

from gpu_provision.cluster.errors import NotFound
from gpu_provision.cluster.facts import node_facts
from gpu_provision.components.labels import COMPONENT, STACK
from gpu_provision.diagnose.pods import node_of
from gpu_provision.model.cluster import ClusterFacts
from gpu_provision.model.inventory import Inventory
from gpu_provision.planning.prepare import prepare
from gpu_provision.planning.verdicts import VALIDATIONS, wanted_verdict
from gpu_provision.verify.cluster import GpuCluster


def declared_verdict(inventory: Inventory, cluster: GpuCluster, component: str, node: str) -> str:
    """Return the verdict that a validation has to have on a node today; empty if none is declared there.

    Args:
        component: ``driver_validation`` or ``device_plugin_validation``.
    """
    facts = ClusterFacts(nodes=tuple(map(node_facts, cluster.nodes())))
    context, desired = prepare(inventory, facts)
    manifest = next((pod for pod in desired[component] if node_of(pod) == node), None)
    if manifest is None:
        return ""
    target = next(each for each in context.targets if each.name == node)
    stack = {
        (name, node): tuple(cluster.pods(node=node, labels={STACK: inventory.name, COMPONENT: name}))
        for name in VALIDATIONS[component]
    }
    return wanted_verdict(component, target, manifest, stack)


def recorded_verdict(inventory: Inventory, cluster: GpuCluster, component: str, node: str) -> str:
    """Return the verdict that the stack's record has for a validation; empty for none."""
    path = f"/api/v1/namespaces/{cluster.namespace}/configmaps/{inventory.name}-validations"
    try:
        entry = json.loads((cluster.get(path).get("data") or {}).get(node, "{}"))
    except (NotFound, ValueError):
        return ""
    return str(entry.get(component, "")) if isinstance(entry, dict) else ""
