"""The decision about one node: its next actions, or what it waits for."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from gpu_provision.rollout import predicates, snapshot
from gpu_provision.rollout.snapshot import FleetNode, transition_to
from gpu_provision.rollout.states import UpgradeState


@dataclass(frozen=True, slots=True)
class NodeDecision:
    """The next actions of one node."""

    actions: tuple[snapshot.Action, ...] = ()
    wait_reason: str = ""  # why the node waits; empty if it does not
    until: float = inf  # deadline of the wait, in unix seconds
    is_candidate: bool = False  # whether the node waits only for a slot


IDLE = NodeDecision()


def act(*actions: snapshot.Action) -> NodeDecision:
    """Return the decision for these actions."""
    return NodeDecision(actions)


def enter_state(node: FleetNode, state: UpgradeState, now: float, reason: str = "") -> NodeDecision:
    """Return the decision to enter another state."""
    return act(transition_to(node, state, now, reason=reason))


def fail(node: FleetNode, now: float, reason: str) -> NodeDecision:
    """Return the decision to fail, with the reason on the node."""
    return enter_state(node, UpgradeState.FAILED, now, reason)


def remove_rollout_state(node: FleetNode, reason: str) -> NodeDecision:
    """Remove everything that a rollout has written on a node, and the rollout's cordon."""
    cordon = snapshot.Cordon.LIFT if predicates.owns_cordon(node) else snapshot.Cordon.KEEP
    return act(snapshot.release_node(node, cordon, reason)) if predicates.has_rollout_metadata(node) else IDLE


def deadline(node: FleetNode, seconds: int) -> float:
    """Return the deadline of a state; zero seconds are without limit."""
    return (node.state_since() or 0.0) + seconds if seconds else inf


def wait_until(node: FleetNode, waits: str, until: float, now: float) -> NodeDecision:
    """Return the decision to wait, and to fail at the deadline."""
    if now < until:
        return NodeDecision(wait_reason=waits, until=until)
    return fail(node, now, f"{waits}, {now - (node.state_since() or now):.0f} s after {node.state.value}")


def evict_newcomers(node: FleetNode, now: float) -> NodeDecision:
    """Return the decision to evict again; the clock continues."""
    since, reason = node.state_since() or now, "GPU pods have come to the node"
    return act(transition_to(node, UpgradeState.POD_DELETION_REQUIRED, since, reason=reason))
