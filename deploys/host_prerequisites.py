"""The host phase alone: pyinfra inventories/prod.py deploys/host_prerequisites.py."""

from gpu_provision.deploys.hosts import host_prerequisites

host_prerequisites()
