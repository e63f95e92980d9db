"""The host phase, for use in any pyinfra deploy file."""

from __future__ import annotations

import atexit
from functools import cache
from pathlib import Path

from pyinfra import host

from gpu_provision.hosts import deploy
from gpu_provision.hosts.deploy import host_teardown
from gpu_provision.inventory import load
from gpu_provision.model.hosts import Reboot
from gpu_provision.nodes.maintenance import NodeMaintenance

__all__ = ["host_prerequisites", "host_teardown", "hosts_ready"]


def host_prerequisites() -> None:
    """Prepare a GPU host for the containers of the stack; see gpu_provision.hosts.deploy.

    With ``host.data.gpu_inventory``, the path of the inventory file, nodes are cordoned and drained around reboots.
    """
    path = host.data.get("gpu_inventory")
    wanted = deploy.declared_prerequisites().get("reboot") == Reboot.IF_REQUIRED
    deploy.host_prerequisites(maintenance_of(Path(path)) if path and wanted else None)


@cache
def maintenance_of(path: Path) -> NodeMaintenance:
    """Return the maintenance that all hosts of an inventory share; to be closed when they are done."""
    maintenance = NodeMaintenance(load(path))
    atexit.register(maintenance.close)
    return maintenance


def hosts_ready() -> None:
    """Block the cluster phase until every host is ready, or if one has failed. Every host calls this deploy."""
    deploy.hosts_ready(name="Hosts are ready")
