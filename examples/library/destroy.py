"""Show what would go from the cluster, then remove the stack from cluster and hosts."""

import gpu_provision

inventory = gpu_provision.load("inventories/sandbox.yaml")
print(gpu_provision.destroy(inventory, dry_run=True, cluster_only=True))
print(gpu_provision.destroy(inventory, listen=print))
