"""The loop from a plan to settled states: reads a cluster, applies, and follows it until every node has settled.

    session, run_thread   the work of one process on one stack, and its run in a thread of its own
    plan                  what was wanted and seen, and the plan with the API server's dry run (`ClusterPlan`)
    run                   one run: `apply` objects, then look, decide and act until all is settled
    situation, states     live copies -> states of components, with deadlines; worked out whole at each look
    actions, steps        what to do next, and its execution in threads
    rollout               the rollout of the driver within a run
    observer              a stack between two runs, for the controller
    status, explain, drift, preflight, progress   what people see

It imports everything but `verify`, `operator`, `output`, `api` and `cli`.
"""
