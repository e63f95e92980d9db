"""Make hosts and cluster as declared, and print each step."""

import gpu_provision

inventory = gpu_provision.load("inventories/sandbox.yaml")
run = gpu_provision.apply(inventory, listen=print)
print(run)
print(f"{len(run.hosts.changed)} hosts and {run.changed} objects changed, {len(run.evidence)} validations")
