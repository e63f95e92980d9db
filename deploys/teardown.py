"""Every host as it was before the host phase: pyinfra inventories/prod.py deploys/teardown.py; --dry shows what."""

from gpu_provision.deploys.hosts import host_teardown

host_teardown()
