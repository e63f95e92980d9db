"""Remove a stack: `gpu-provision destroy`.

`discovery` reads the stack's objects, `nodes` finds its labels and cordons, `plan` sets the stages and explains what
stays, `runner` executes the plan and audits.

Imports `reconcile` and the layers below it. All but `discovery` and `runner` are pure.
"""
