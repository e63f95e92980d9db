"""Deploys for use in any pyinfra deploy file."""

from gpu_provision.deploys.cluster import gpu_stack
from gpu_provision.deploys.hosts import host_prerequisites, host_teardown, hosts_ready

__all__ = ["gpu_stack", "host_prerequisites", "host_teardown", "hosts_ready"]
