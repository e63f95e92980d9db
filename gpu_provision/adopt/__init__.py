"""Taking a cluster over from the GPU Operator: `gpu-provision adopt`.

`discovery` reads what is there, `inventory` turns it into an inventory, `plan` says what becomes of each object and
each running driver, `checks` what stands against it, `runner` carries it out.

Stands above `reconcile`, whose apply completes an adoption. All but `discovery` and `runner` are pure.
"""
