"""Go back to the versions of an earlier run."""

import gpu_provision

inventory = gpu_provision.load("inventories/sandbox.yaml")
run = gpu_provision.rollback(inventory, 1, cluster_only=True)
print(run)
