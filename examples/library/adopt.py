"""Take a cluster over from the GPU Operator, if it has one; drivers that are as declared keep running."""

import gpu_provision

inventory = gpu_provision.load("inventories/sandbox.yaml")
adoption = gpu_provision.adoption(inventory)
if adoption.is_complete:
    print("no GPU Operator is left in", adoption.cluster)
else:
    print(adoption)
    print(gpu_provision.adopt(inventory, listen=print))
