"""Which nodes give their GPUs to virtual machines, for the host phase, which has no other facts of the cluster."""

from __future__ import annotations

from gpu_provision.components.labels import WORKLOAD
from gpu_provision.components.targets import nodes_for_vms, virtual_machine_nodes
from gpu_provision.kube.client import connect
from gpu_provision.kube.config import resolve_context
from gpu_provision.kube.observe import NODE, node_facts
from gpu_provision.kube.retry import FIRST_CONTACT_SECONDS
from gpu_provision.model.cluster import ClusterFacts
from gpu_provision.model.findings import Finding, ProvisionError
from gpu_provision.model.inventory import Inventory


def read_nodes_for_vms(inventory: Inventory) -> frozenset[str] | None:
    """Return the nodes whose GPUs are for virtual machines; None if the cluster does not answer.

    One request, whose answer has only nodes with the label. Raises nothing: the cluster phase reports the error.
    """
    facts = _read_labelled_nodes(inventory)
    return None if facts is None else frozenset(nodes_for_vms(inventory, facts))


def vm_findings(inventory: Inventory) -> tuple[Finding, ...]:
    """Return a warning for each of these nodes, for a run without a cluster phase, which has the same warnings."""
    facts = _read_labelled_nodes(inventory)
    return () if facts is None else tuple(virtual_machine_nodes(inventory, facts))


def _read_labelled_nodes(inventory: Inventory) -> ClusterFacts | None:
    try:
        cluster = connect(*resolve_context(inventory))
        found = cluster.list(NODE, label_selector=WORKLOAD, retry_seconds=FIRST_CONTACT_SECONDS)
    except ProvisionError:
        return None
    return ClusterFacts(nodes=tuple(map(node_facts, found.items)))
