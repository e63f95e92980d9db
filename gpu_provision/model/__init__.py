"""Frozen values that every other package speaks in.

`Inventory` and its specs (`inventory`, `specs`, `rollout_policy`, `hosts`), whose fields are the settings of an
inventory (`settings`); what a cluster is seen to be (`cluster`, `selectors`); `Plan`, `Status`, `RunResult` and records
of runs (`plan`, `progress`, `history`); `Finding` and the exceptions that carry findings (`findings`).

Imports nothing else of this project.
"""
