"""Desired and observed state -> plan and states. Pure: every input is an argument.

    prepare             an inventory and facts about a cluster -> labelled manifests (`Desired`)
    states              the state of each component on each node, from an observation (`ClusterState`)
    plan, diff, prune   the changes of a run (`model.plan.Plan`), field by field, and its deletions
    upgrades            states of drivers between two contents; `rollout_changes` the changes that a rollout causes
    validation          verdicts of vectorAdds, their expiry, and the label and startup taint of a node
    applyset, drain, managed_fields

It imports `rollout`, `diagnostics`, `components`, `inventory` and `model`; `kube` and `reconcile` import it.
"""
