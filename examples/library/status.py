"""Show how components and nodes stand."""

import gpu_provision

inventory = gpu_provision.load("inventories/sandbox.yaml")
status = gpu_provision.status(inventory)
print(status)
print([node.node for node in status.nodes if node.gpus], "ready" if status.is_ready else "not ready")
