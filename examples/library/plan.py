"""Show what an apply would change, and stop where it would delete something."""

import gpu_provision

inventory = gpu_provision.load("inventories/sandbox.yaml")
plan = gpu_provision.plan(inventory)
print(plan)
doomed = [change.ref for change in plan.changes if change.action is gpu_provision.Action.DELETE]
print(f"to change: {len(plan.hosts.changed)} hosts, {len(plan.changes)} objects; to delete: {doomed}")
