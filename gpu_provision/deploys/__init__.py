"""Deploys for use in any pyinfra deploy file."""

from gpu_provision.deploys.cluster import gpu_stack
from gpu_provision.deploys.destroy import cluster_cleared, gpu_stack_removed
from gpu_provision.deploys.hosts import host_prerequisites, host_teardown, hosts_ready

__all__ = ["cluster_cleared", "gpu_stack", "gpu_stack_removed", "host_prerequisites", "host_teardown", "hosts_ready"]
