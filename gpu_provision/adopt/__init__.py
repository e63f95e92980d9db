"""Import the GPU Operator's settings, and adopt a cluster that it manages: `gpu-provision import` and `adopt`.

`reference` knows every field of the GPU Operator and the setting that carries it. `sources` reads files, `discovery`
the operator's objects in a cluster; both become `OperatorSettings` (`settings`), from which `inventory` derives an
inventory with `pools`, and `unsupported` reports what is not carried over. `plan` decides about each object and each
running driver, `checks` finds obstacles, `runner` executes the plan.

Imports `reconcile`, whose apply completes an adoption. All but `discovery`, `runner` and `sources` are pure.
"""
