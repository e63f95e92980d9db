"""Desired and observed state -> plan and states. Pure: everything that it looks at is an argument.

    prepare             an inventory and facts about a cluster -> marked manifests (`Desired`)
    states              where each component stands on each node (`ClusterState`), read off what was seen
    plan, diff, prune   what a run would change (`model.plan.Plan`), field by field, and what it deletes
    upgrades            where a driver stands between two contents; `rollout_changes` what a rollout brings about
    validation          what a vectorAdd has shown, and what a node says of it: its label and its startup taint
    applyset, drain, managed_fields

It imports `rollout`, `diagnostics`, `components`, `inventory` and `model`; `kube` and `reconcile` import it.
"""
