"""The host phase, for use in any pyinfra deploy file."""

from __future__ import annotations

from gpu_provision.hosts import barrier
from gpu_provision.hosts.phase import host_prerequisites, host_teardown

__all__ = ["host_prerequisites", "host_teardown", "hosts_ready"]


def hosts_ready() -> None:
    """Hold the cluster phase back until every host is ready, for good if one failed. Every host calls it."""
    barrier.hosts_ready(name="Hosts are ready")
