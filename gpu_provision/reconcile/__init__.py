"""The reconcile loop: reads a cluster, plans, applies, and watches until every node has settled.

    session             the work of one process on one stack
    run_thread          its run in a thread, and the rollback
    plan                desired and observed state, and the plan after the API server's dry run (`ClusterPlan`)
    run                 one run: apply and prune objects, then evaluate, decide and act until all is settled
    observer, states    informer cache -> state of the cluster, for runs and between them; deadlines, progress
    steps, evidence     the next steps and their execution in threads; logs of pods, and why a run failed
    rollout             the rollout of the driver within a run, and in a plan
    desired_drivers     the driver that each node gets; rollout_states: states of nodes in a rollout
    status, drift       rows of components and nodes; differences from the declared state
    preflight           checks of hosts, cluster and registry before any change

It imports the layers below it: `rbac`, `history`, `nodes`, `kube`, `hosts` and the pure packages.
"""
