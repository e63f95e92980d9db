"""Deploys for use in any pyinfra deploy file."""

from gpu_provision.deploys.cluster import gpu_stack
from gpu_provision.deploys.hosts import host_prerequisites, host_teardown, hosts_ready
from gpu_provision.deploys.removal import cluster_cleared, gpu_stack_removed

__all__ = [
    "cluster_cleared",
    "gpu_stack",
    "gpu_stack_removed",
    "host_prerequisites",
    "host_teardown",
    "hosts_ready",
]
