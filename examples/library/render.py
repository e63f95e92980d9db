"""Render the manifests; no cluster is asked."""

import gpu_provision

inventory = gpu_provision.load("inventories/sandbox.yaml")
for component, manifests in gpu_provision.render(inventory).items():
    print(component, len(manifests))
