"""Upgrade a component: name another version, look at the plan, and apply it."""

from pathlib import Path

import gpu_provision

text = Path("inventories/sandbox.yaml").read_text()
Path("inventories/newer.yaml").write_text(text.replace("version: v0.20.0", "version: v0.19.3"))
inventory = gpu_provision.load("inventories/newer.yaml")
print(gpu_provision.plan(inventory, cluster_only=True))
print(gpu_provision.apply(inventory, cluster_only=True).changed, "objects written")
