"""How far the Machine Config Operator is with the stack's MachineConfigs: on each node, and in each pool."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from gpu_provision.components import machine_config, targets
from gpu_provision.components.labels import NFD_GPU, has_nfd_labels
from gpu_provision.components.machine_config import NAME, identity_of, reached_pools
from gpu_provision.model.cluster import Manifest, NodeFacts, RenderContext, Target
from gpu_provision.model.openshift import (
    CONFIG_REASON,
    CONFIG_STATE,
    CURRENT_CONFIG,
    DESIRED_CONFIG,
    ConfigIdentity,
    MachinePool,
    OpenShiftFacts,
)
from gpu_provision.model.progress import NodeState, State

_DONE, _FAILED = "Done", frozenset({"Degraded", "Unreconcilable"})
"""Values of the annotation `CONFIG_STATE`: pkg/daemon/constants of openshift/machine-config-operator."""


def node_state(target: Target, configs: Sequence[Manifest], openshift: OpenShiftFacts | None) -> NodeState | None:
    """Return how far a node is with the MachineConfigs of its pool; None if the stack has none for it."""
    pool = openshift.pool_of(target.name) if openshift else None
    if target.facts is None or openshift is None or pool is None:
        return None
    wanted = [identity_of(each) for each in configs if pool in reached_pools(each, openshift)]
    return _state(target.name, *_progress_of_node(target.facts, pool, wanted, openshift)) if wanted else None


def _progress_of_node(
    node: NodeFacts, pool: MachinePool, wanted: Sequence[ConfigIdentity], openshift: OpenShiftFacts
) -> tuple[State, str]:
    notes, name = node.annotations, f"MachineConfigPool {pool.name}"
    current, desired, state = (notes.get(each, "") for each in (CURRENT_CONFIG, DESIRED_CONFIG, CONFIG_STATE))
    if state in _FAILED:
        reason = " ".join(notes.get(CONFIG_REASON, "").split()) or "no reason"
        return State.FAILED, f"{name} could not configure the node: {reason}"
    if current != desired or state != _DONE:
        return State.PROGRESSING, f"{name} drains and reboots the node"
    if all(openshift.holds(pool, current, each) for each in wanted):
        return State.READY, ""
    if pool.stuck_reason:
        return State.FAILED, f"{name} {pool.stuck_reason}"
    return State.PROGRESSING, f"waits for its turn: {_progress(pool, wanted, openshift)}"


def rollout_state(configs: Sequence[Manifest], openshift: OpenShiftFacts) -> NodeState:
    """Return how far all pools are; failed once none of the unfinished ones goes on."""
    unfinished = [
        (pool, wanted)
        for pool, wanted in _configs_by_pool(configs, openshift)
        if not all(openshift.holds(pool, pool.rendered, each) for each in wanted)
    ]
    stuck = [f"MachineConfigPool {pool.name} {pool.stuck_reason}" for pool, _ in unfinished if pool.stuck_reason]
    rolling = [_progress(pool, wanted, openshift) for pool, wanted in unfinished if not pool.stuck_reason]
    state = State.PROGRESSING if rolling else State.FAILED if stuck else State.READY
    # Each step of a state is a line of the progress.
    steps = ", ".join(f"{pool.updated}/{pool.machines}" for pool, _ in unfinished) if rolling else ""
    return replace(_state("", state, "; ".join((*stuck, *rolling))), step=steps)


def possible_configs(context: RenderContext) -> list[Manifest]:
    """Return the MachineConfigs that a stack gets if every node that has no labels of discovery yet has a GPU."""
    facts, settings = context.facts, machine_config.spec(context.inventory)
    if settings is None or context.openshift is None:
        return []
    supposed = tuple(
        node if has_nfd_labels(node.labels) else replace(node, labels={**node.labels, NFD_GPU[0]: "true"})
        for node in facts.nodes
    )
    return machine_config.manifests(settings, targets.context(context.inventory, replace(facts, nodes=supposed)))


def _configs_by_pool(
    configs: Sequence[Manifest], openshift: OpenShiftFacts
) -> Iterator[tuple[MachinePool, list[ConfigIdentity]]]:
    for pool in openshift.pools:
        if own := [identity_of(each) for each in configs if pool in reached_pools(each, openshift)]:
            yield pool, own


def _progress(pool: MachinePool, wanted: Iterable[ConfigIdentity], openshift: OpenShiftFacts) -> str:
    if not all(openshift.holds(pool, pool.wanted, each) for each in wanted):
        return f"MachineConfigPool {pool.name} has not rendered it yet"
    if pool.updated >= pool.machines:  # the counts are of the configuration before
        return f"MachineConfigPool {pool.name} is about to update {pool.machines} nodes"
    return f"MachineConfigPool {pool.name} has updated {pool.updated} of {pool.machines} nodes"


def _state(node: str, state: State, reason: str = "") -> NodeState:
    return NodeState(component=NAME, node=node, state=state, reason=reason)
