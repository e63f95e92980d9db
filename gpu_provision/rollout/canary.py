"""Canaries: the first nodes of a rollout, their soak time, and the nodes that wait for them."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from gpu_provision.model.rollout_policy import Canary
from gpu_provision.rollout import predicates, states
from gpu_provision.rollout.snapshot import Admission, FleetNode, HoldReason, Snapshot
from gpu_provision.rollout.states import UpgradeState


def soaking_canaries(snapshot: Snapshot, canary: Canary | None) -> frozenset[str]:
    """Return the canaries that are done and still in their soak time."""
    chosen = _canaries(snapshot, canary)
    if canary is None or snapshot.now >= _soaked_at(chosen, canary):
        return frozenset()
    return frozenset(node.name for node in chosen if node.state is UpgradeState.DONE)


def admit_canaries(snapshot: Snapshot, canary: Canary | None, candidates: Sequence[FleetNode]) -> Admission:
    """Return which of the ordered candidates may start under the canary policy."""
    chosen = _canaries(snapshot, canary)
    if canary is None or snapshot.is_rolling_back:
        return Admission(HoldReason.NOTHING)
    if failed := tuple(node for node in chosen if node.state is UpgradeState.FAILED):
        return Admission(HoldReason.FAILURES, f"canary {_names_of(failed)} failed")
    again = tuple(node for node in candidates if node in chosen)  # after a rollback the same canaries go first
    fresh = [node for node in candidates if node not in again]
    eligible = [node for node in fresh if canary.node_selector.items() <= node.labels.items()]
    if not (eligible or chosen):
        eligible = fresh[:1]  # no candidate matches the selector
    left = (canary.nodes or len(eligible) + len(chosen)) - len(chosen)
    first = eligible[: max(left, 0)]
    over = _soaked_at(chosen, canary)
    if again or first or over == inf:
        waits = f"canaries go first: {_names_of((*chosen, *first))}"
        return Admission(HoldReason.CANARIES, waits, admitted=(*again, *first))
    if snapshot.now < over:
        waits = f"canaries have to stay well for {over - snapshot.now:.0f} s more: {_names_of(chosen)}"
        return Admission(HoldReason.CANARIES, waits, over)
    if unwell := [node for node in chosen if not predicates.is_healthy(node)]:
        return Admission(HoldReason.CANARIES, f"canaries are not well: {_names_of(unwell)}")
    return Admission(HoldReason.NOTHING)


def _canaries(snapshot: Snapshot, canary: Canary | None) -> tuple[FleetNode, ...]:
    if canary is None or snapshot.is_rolling_back:
        return ()
    marked = (node for node in snapshot.nodes if node.annotations.get(states.CANARY) == snapshot.target)
    return tuple(node for node in marked if not node.is_leaving)


def _soaked_at(chosen: Sequence[FleetNode], canary: Canary) -> float:
    if any(node.state is not UpgradeState.DONE for node in chosen):
        return inf
    return max([node.state_since() or 0.0 for node in chosen], default=0.0) + canary.soak_seconds


def _names_of(nodes: Sequence[FleetNode]) -> str:
    return ", ".join(node.name for node in nodes)
