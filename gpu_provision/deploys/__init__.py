"""Deploys for use in any pyinfra deploy file."""

from gpu_provision.deploys.hosts import host_prerequisites, hosts_ready

__all__ = ["host_prerequisites", "hosts_ready"]
