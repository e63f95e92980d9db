"""Frozen value types of the inventory, the cluster, plans, runs and findings.

`Inventory` and its specs (`inventory`, `specs`, `rollout_policy`, `hosts`), whose fields are the settings of an
inventory (`settings`); the observed cluster (`cluster`, `label_selectors`); `Plan`, `Status`, `RunResult` and records
of runs (`plan`, `progress`, `history`); `Finding` and the exceptions that carry findings (`findings`).

Imports nothing else of this project.
"""
