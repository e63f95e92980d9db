"""Everything off the cluster, then hosts as they were: pyinfra inventories/prod.py deploys/teardown.py."""

from gpu_provision.deploys.destroy import cluster_cleared, gpu_stack_removed
from gpu_provision.deploys.hosts import host_teardown

gpu_stack_removed()
cluster_cleared()
host_teardown()
