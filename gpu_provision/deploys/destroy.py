"""The removal of a stack as pyinfra operations: first from the cluster, then from hosts."""

from __future__ import annotations

from pyinfra import host, logger, state
from pyinfra.api import FunctionCommand, operation
from pyinfra.api.host import Host
from pyinfra.api.state import State

import gpu_provision
from gpu_provision.connectors.cluster import GROUP
from gpu_provision.deploys.cluster import inventory_path, is_cluster_host, is_set
from gpu_provision.destroy.plan import hosts_skipped_finding
from gpu_provision.hosts.deploy import block_cluster_phase, has_failed
from gpu_provision.hosts.operations import Commands, host_operation, report_findings
from gpu_provision.inventory import load
from gpu_provision.model.findings import ProvisionError, one_line
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.progress import Event

CRDS, EVICT = "gpu_remove_crds", "gpu_evict"
"""Keys of host data for ``--crds`` and ``--evict`` of gpu-provision destroy; pyinfra's --data sets them."""


def gpu_stack_removed() -> None:
    """Remove the stack of the inventory from the cluster host; does nothing on other hosts.

    The cluster host's data must hold ``gpu_inventory``, the path of the inventory file, as
    `gpu_provision.inventory.groups` sets it. Raises DeployError if pyinfra's inventory has no cluster host.
    """
    if is_cluster_host("gpu_stack_removed"):
        remove_stack(name="GPU stack removed from the cluster")


def cluster_cleared() -> None:
    """Fail hosts if the cluster still has objects of the stack. Every host calls this deploy."""
    require_cluster_host(name="Nothing in the cluster needs the hosts")


@host_operation
def remove_stack() -> Commands:
    """Remove the stack's objects, and report remaining ones."""
    inventory = load(inventory_path())
    plan = gpu_provision.destroy(inventory, cluster_only=True, crds=is_set(CRDS), evict=is_set(EVICT), dry_run=True)
    if not plan.changes:
        host.noop("nothing of the stack is in the cluster")
        return
    if not state.is_executing:
        for line in (*(f"Will remove {change.ref}" for change in plan.changes), *map(str, plan.findings)):
            host.log(line)
    yield FunctionCommand(_remove, (inventory, is_set(CRDS), is_set(EVICT)), {})


def _remove(state: State, host: Host, inventory: Inventory, crds: bool, evict: bool) -> bool:  # noqa: FBT001 (pyinfra's way to call)
    def log(event: Event) -> None:
        host.log(one_line(event.message), log_func=logger.info)

    try:
        findings = gpu_provision.destroy(inventory, cluster_only=True, crds=crds, evict=evict, listen=log).findings
    except ProvisionError as error:
        return report_findings(state, host, *error.findings)
    for finding in findings:
        host.log(str(finding), log_func=logger.warning)
    return True


@operation()
def require_cluster_host() -> Commands:
    """Fail a host while the cluster host has failed."""
    if GROUP in host.groups or not state.is_executing:
        return
    if any(GROUP in other.groups and has_failed(state, other) for other in state.inventory):
        yield FunctionCommand(block_cluster_phase, (hosts_skipped_finding(),), {})
