"""Driver rollouts as a pure state machine: no I/O, no memory, no clock but the one of the snapshot.

`observe.observe` builds a `snapshot.Snapshot` of the fleet from live objects; `state_machine.decide` says what each
node does next. The state of a node is a label on it (`states`), so that any process can go on.

    snapshot, observe   the fleet and actions as values, and how the fleet is read off live objects
    predicates          what can be read off one node
    steps               what a node does in each state
    budgets, canary     which nodes may start: limits, order, maintenance window; those that go first
    preview             the waves of a rollout before it begins

It imports `components`, `diagnostics`, `model` and what is below them; `reconcile` carries its actions out.
"""
