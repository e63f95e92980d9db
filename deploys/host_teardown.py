"""Every host as it was before the host phase: pyinfra inventories/prod.py deploys/host_teardown.py."""

from gpu_provision.deploys.hosts import host_teardown

host_teardown()
