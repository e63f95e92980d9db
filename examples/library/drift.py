"""Show what was changed by hand since it was applied, and by whom."""

import gpu_provision

inventory = gpu_provision.load("inventories/sandbox.yaml")
drift = gpu_provision.drift(inventory)
print(drift)
for difference in drift.differences:
    print(difference.origin, difference.ref, [field.writer for field in difference.fields])
