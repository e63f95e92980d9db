"""Removing a stack: `gpu-provision destroy`.

`discovery` reads what is left, `nodes` judges labels and cordons, `plan` sets the stages and says what stays and why,
`runner` carries it out and audits.

Stands above `kube` and `planning`. All but `discovery` and `runner` are pure.
"""
