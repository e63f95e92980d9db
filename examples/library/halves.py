"""Change a half of a stack, or a part of it: hosts or cluster, some nodes, some components."""

import gpu_provision

inventory = gpu_provision.load("inventories/sandbox.yaml")
on_hosts = gpu_provision.apply(inventory, hosts_only=True, limit="t4-1")
print(on_hosts)
in_cluster = gpu_provision.apply(inventory, cluster_only=True, targets=["dcgm_exporter"])
print(f"{in_cluster.changed} objects written")
