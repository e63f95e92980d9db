"""Give an account the permissions that a plan needs, and no more."""

import json

import gpu_provision

inventory = gpu_provision.load("inventories/sandbox.yaml")
account = gpu_provision.RbacSubject(kind="ServiceAccount", name="planner", namespace="ci")
manifests = gpu_provision.rbac(inventory, [account], read_only=True)
print(json.dumps([f"{each['kind']}/{each['metadata']['name']}" for each in manifests], indent=2))
