"""Which nodes give their GPUs to virtual machines, for the host phase, which has no other facts of the cluster."""

from __future__ import annotations

from gpu_provision.components.labels import WORKLOAD
from gpu_provision.components.targets import nodes_for_vms
from gpu_provision.kube.client import connect
from gpu_provision.kube.config import resolve_context
from gpu_provision.kube.observe import NODE, node_facts
from gpu_provision.kube.retry import FIRST_CONTACT_SECONDS
from gpu_provision.model.cluster import ClusterFacts
from gpu_provision.model.findings import ProvisionError
from gpu_provision.model.inventory import Inventory


def read_nodes_for_vms(inventory: Inventory) -> frozenset[str] | None:
    """Return the nodes whose GPUs are for virtual machines; None if the cluster does not answer.

    One request, whose answer has only nodes with the label. Raises nothing: the cluster phase reports the error.
    """
    try:
        cluster = connect(*resolve_context(inventory))
        found = cluster.list(NODE, label_selector=WORKLOAD, retry_seconds=FIRST_CONTACT_SECONDS)
    except ProvisionError:
        return None
    return frozenset(nodes_for_vms(inventory, ClusterFacts(nodes=tuple(map(node_facts, found.items)))))
