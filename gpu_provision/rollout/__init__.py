"""Driver rollouts as a pure state machine: no I/O, no memory; the snapshot has the clock.

`observe.observe` builds a `snapshot.Snapshot` of the fleet from live objects; `state_machine.decide` returns the next
actions of each node. The state of a node is a label on it (`states`), so that any process can resume the rollout.

    snapshot, observe   the fleet and actions as values; a snapshot from live objects
    predicates, gpu_use facts about one node; the pods that use its GPUs
    node_steps          the actions of a node in each state; geometry_steps: those for other MIG devices
    node_decision       the decision about one node
    budgets, canary     which nodes may start: limits, order, maintenance window; canaries
    preview             the waves of a rollout before it begins

It imports the layers below it; `reconcile` executes its actions.
"""
