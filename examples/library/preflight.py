"""Say what would go wrong on a node and in the cluster; nothing is changed."""

import gpu_provision

inventory = gpu_provision.load("inventories/sandbox.yaml")
found = gpu_provision.preflight(inventory, limit="t4-1")
print(found)
print("blocked" if found.failed else "ready to apply")
