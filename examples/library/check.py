"""Check an inventory file, and say what is wrong with it before anything is asked."""

import gpu_provision

found = gpu_provision.check("inventories/sandbox.yaml")
print(f"{len(found.errors)} errors, {len(found.warnings)} warnings", found)
inventory = gpu_provision.load("inventories/sandbox.yaml")
print([node.name for node in inventory.gpu_nodes])
