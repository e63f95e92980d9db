"""Adopt a cluster that the GPU Operator manages: `gpu-provision adopt`.

`discovery` reads the operator's objects, `inventory` derives an inventory from them, `plan` decides about each object
and each running driver, `checks` finds obstacles, `runner` executes the plan.

Imports `reconcile`, whose apply completes an adoption. All but `discovery` and `runner` are pure.
"""
