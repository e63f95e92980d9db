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
    """Make true on a GPU host what must be true before any container runs; see gpu_provision.hosts.deploy.

    With ``host.data.gpu_inventory``, the path of the inventory file, nodes are cordoned and drained around reboots.
    """
    path = host.data.get("gpu_inventory")
    wanted = deploy.declared().get("reboot") == Reboot.IF_REQUIRED
    deploy.host_prerequisites(maintenance_of(Path(path)) if path and wanted else None)


@cache
def maintenance_of(path: Path) -> NodeMaintenance:
    """Return the one guard that all hosts of an inventory share; close it when they are done."""
    guard = NodeMaintenance(load(path))
    atexit.register(guard.close)
    return guard


def hosts_ready() -> None:
    """Hold the cluster phase back until every host is ready, for good if one failed. Every host calls it."""
    deploy.hosts_ready(name="Hosts are ready")
