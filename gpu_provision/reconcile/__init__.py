"""The loop from a plan to settled states: reads a cluster, applies, and follows it until every node has settled.

    session             the work of one process on one stack; its run in a thread, and the rollback
    plan                what was wanted and seen, and the plan with the API server's dry run (`ClusterPlan`)
    run                 one run: apply and prune objects, then look, decide and act until all is settled
    observer, states    live copies -> state of the cluster, for runs and between them; deadlines, and reports
    steps, evidence     what to do next, and its execution in threads; what pods said, and why a run failed
    rollout             the rollout of the driver within a run
    status, drift       what people see: rows, and what is not as declared; `preflight` what would go wrong

It imports everything but `verify`, `operator`, `output`, `api` and `cli`.
"""
