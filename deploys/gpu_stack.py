"""A GPU stack from bare nodes to a validated cluster: pyinfra inventories/prod.py deploys/gpu_stack.py."""

from gpu_provision.deploys.cluster import gpu_stack
from gpu_provision.deploys.hosts import host_prerequisites, hosts_ready

host_prerequisites()
hosts_ready()
gpu_stack()
