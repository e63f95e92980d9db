"""Driver rollouts as a pure state machine: a snapshot of the cluster -> the next actions, no I/O, no memory."""
