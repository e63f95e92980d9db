"""Taking a cluster over from the GPU Operator: `gpu-provision adopt`.

`discovery` reads what is there, `cluster_policy` and `inventory` turn it into an inventory, `drivers` compares running
drivers, `plan` says what becomes of each object, `checks` what stands against it, `runner` carries it out.

Stands above `reconcile`, whose apply completes an adoption. All but `discovery` and `runner` are pure.
"""
