"""The loop from a plan to settled states: reads a cluster, applies, and follows it until every node has settled.

    session, run_thread   the work of one process on one stack; its run in a thread, and why it failed
    plan                  what was wanted and seen, and the plan with the API server's dry run (`ClusterPlan`)
    run                   one run: `apply` objects, then look, decide and act until all is settled
    observer, states      live copies -> state of the cluster, for runs and between them; deadlines, and reports
    actions, steps        what to do next, and its execution in threads
    rollout               the rollout of the driver within a run
    status, preflight     what people see: rows and drift, what would go wrong

It imports everything but `verify`, `operator`, `output`, `api` and `cli`.
"""
