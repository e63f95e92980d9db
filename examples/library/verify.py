"""Run the acceptance tests of one node; they need pip install 'gpu-provision[verify]'."""

import gpu_provision

inventory = gpu_provision.load("inventories/sandbox.yaml")
found = gpu_provision.verify(inventory, limit=["t4-1"])
print(found)
print(found.passed)
