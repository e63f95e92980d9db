"""Whether a validation holds: the one thing that only our own planning can say."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_provision.cluster.errors import NotFound
from gpu_provision.cluster.facts import node_facts
from gpu_provision.cluster.records import entries
from gpu_provision.components.labels import COMPONENT, STACK
from gpu_provision.model.cluster import ClusterFacts, Manifest, ref_of
from gpu_provision.model.inventory import Inventory
from gpu_provision.planning.observed import Observed
from gpu_provision.planning.prepare import prepare
from gpu_provision.planning.states import situation, states_of
from gpu_provision.planning.verdicts import RUNS_IN, VALIDATIONS
from gpu_provision.verify.cluster import GpuCluster


def why_not_validated(inventory: Inventory, cluster: GpuCluster, component: str, node: str) -> str | None:
    """Say why a validation does not hold on a node today; empty if it does, None if none is declared there.

    Args:
        component: ``driver_validation`` or ``device_plugin_validation``.
    """
    facts = ClusterFacts(nodes=tuple(map(node_facts, cluster.nodes())))
    context, desired = prepare(inventory, facts)
    names = {*VALIDATIONS[component], RUNS_IN[component]}
    found = [pod for name in names for pod in cluster.pods(node=node, labels={STACK: inventory.name, COMPONENT: name})]
    whole: list[Manifest] = [{"apiVersion": "v1", "kind": "Pod", **pod} for pod in found]  # items of a list say neither
    pods = {ref_of(pod): pod for pod in whole}
    observed = Observed(cluster="", facts=facts, pods=pods, passed=_record(inventory, cluster))
    target = next(each for each in context.targets if each.name == node)
    state = states_of(target, situation(context, desired, observed)).get(component)
    return state.reason if state else None


def _record(inventory: Inventory, cluster: GpuCluster) -> Mapping[tuple[str, str], str]:
    path = f"/api/v1/namespaces/{cluster.namespace}/configmaps/{inventory.name}-validations"
    try:
        return entries(cluster.get(path).get("data") or {})
    except NotFound:
        return {}
