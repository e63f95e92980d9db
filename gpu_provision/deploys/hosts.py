"""The host phase, for use in any pyinfra deploy file."""

from __future__ import annotations

import atexit
import threading
from functools import cache
from pathlib import Path

from pyinfra import host, state

from gpu_provision.hosts import deploy
from gpu_provision.hosts.deploy import host_teardown
from gpu_provision.inventory import load
from gpu_provision.model.findings import ProvisionError
from gpu_provision.model.hosts import Reboot
from gpu_provision.nodes.maintenance import NodeMaintenance
from gpu_provision.nodes.workloads import read_nodes_for_vms

__all__ = ["host_prerequisites", "host_teardown", "hosts_ready"]


def host_prerequisites() -> None:
    """Prepare a GPU host for the containers of the stack; see gpu_provision.hosts.deploy.

    With ``host.data.gpu_inventory``, the path of the inventory file, nodes are cordoned and drained around reboots.
    If the run has a cluster host, too, hosts whose GPUs are for virtual machines are left alone.
    """
    path = host.data.get("gpu_inventory")
    wanted = deploy.declared_prerequisites().get("reboot") == Reboot.IF_REQUIRED
    for_vms = _nodes_for_vms(Path(path)) if path and _runs_with_cluster() else None
    if for_vms and host.data.get("gpu_node") in for_vms:
        host.log("is left alone: the GPUs of its node are for virtual machines")
        return
    guard = maintenance_of(Path(path)) if path and wanted else None
    deploy.host_prerequisites(guard, workload_known=for_vms is not None)


def _runs_with_cluster() -> bool:
    """Whether pyinfra works on the cluster, too."""
    return any(deploy.GROUP in other.groups for other in state.inventory.get_active_hosts())


_asking = threading.Lock()  # hosts are prepared at the same time


def _nodes_for_vms(path: Path) -> frozenset[str] | None:
    with _asking:
        return _read_nodes_for_vms(path)


@cache
def _read_nodes_for_vms(path: Path) -> frozenset[str] | None:
    try:
        return read_nodes_for_vms(load(path))
    except ProvisionError:  # the cluster phase reports it
        return None


@cache
def maintenance_of(path: Path) -> NodeMaintenance:
    """Return the maintenance that all hosts of an inventory share; to be closed when they are done."""
    maintenance = NodeMaintenance(load(path))
    atexit.register(maintenance.close)
    return maintenance


def hosts_ready() -> None:
    """Block the cluster phase until every host is ready, or if one has failed. Every host calls this deploy."""
    deploy.hosts_ready(name="Hosts are ready")
