"""Desired and observed state -> plan and states. Pure: every input is an argument.

    prepare             an inventory and facts about a cluster -> labelled manifests (`Desired`)
    states              the state of each component on each node, from an observation (`ClusterState`)
    plan, diff, prune   the changes of a run (`model.plan.Plan`), field by field, and its deletions
    upgrades            states of drivers during an upgrade; `rollout_changes` the changes that a rollout causes
    verdicts            results of vectorAdds, their expiry, and the label and startup taint of a node
    applyset            labels of a stack's objects (KEP-3659)
    drain_rules         pods that block or survive a drain
    managed_fields      which field manager wrote a field

It imports `rollout` and the layers below it; the layers above import it.
"""
