"""List the runs that wrote something."""

import gpu_provision

inventory = gpu_provision.load("inventories/sandbox.yaml")
history = gpu_provision.history(inventory)
print(history)
for record in history:
    print(record.number, record.ending, record.changed)
