"""Desired and observed state -> plan and states. Pure: everything that it looks at is an argument.

    prepare             an inventory and facts about a cluster -> marked manifests (`Desired`)
    observed, states    what was seen (`ObservedState`), and where each component stands on each node (`ClusterState`)
    plan, diff          what a run would change (`model.plan.Plan`), field by field
    upgrades            where a driver stands between two contents; `rollout_changes` what a rollout brings about
    validation          what a vectorAdd has shown
    drift               who wrote a field last
    node_validation     labels of nodes, and their startup taint; `pod_metadata` labels of driver pods
    applyset, drain, managed_fields

It imports `rollout`, `diagnostics`, `components`, `inventory` and `model`; `kube` and `reconcile` import it.
"""
