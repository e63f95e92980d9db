"""Canaries: the nodes that go first, how long they have to stay well, and who waits for them meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf

from gpu_provision.model.rollout_policy import Canary
from gpu_provision.rollout import predicates, states
from gpu_provision.rollout.snapshot import FleetNode, Snapshot
from gpu_provision.rollout.states import UpgradeState


class HoldReason(StrEnum):
    """What keeps nodes from starting."""

    NOTHING = "nothing"
    FAILURES = "failures"
    WINDOW = "window"
    CANARIES = "canaries"


@dataclass(frozen=True, slots=True)
class Admission:
    """Who may start."""

    barrier: HoldReason
    waits: str = ""  # why those who may not have to wait
    until: float = inf  # when waiting ends by itself, in unix seconds
    open_to: tuple[FleetNode, ...] = ()  # the candidates that may start, in order; as canaries if these are the barrier


def soaking_canaries(snapshot: Snapshot, canary: Canary | None) -> frozenset[str]:
    """Return the canaries that are done and have to stay well, since not all of them have for long enough."""
    chosen = _canaries(snapshot, canary)
    if canary is None or snapshot.now >= _soaked_at(chosen, canary):
        return frozenset()
    return frozenset(node.name for node in chosen if node.state is UpgradeState.DONE)


def admit_canaries(snapshot: Snapshot, canary: Canary | None, candidates: Sequence[FleetNode]) -> Admission:
    """Return who may start as far as canaries are concerned; ``candidates`` are in order."""
    chosen = _canaries(snapshot, canary)
    if canary is None or snapshot.is_rolling_back:
        return Admission(HoldReason.NOTHING)
    if failed := tuple(node for node in chosen if node.state is UpgradeState.FAILED):
        return Admission(HoldReason.FAILURES, f"canary {_names_of(failed)} failed")
    again = tuple(node for node in candidates if node in chosen)  # the fleet went back meanwhile: they go first again
    fresh = [node for node in candidates if node not in again]
    eligible = [node for node in fresh if canary.node_selector.items() <= node.labels.items()]
    if not (eligible or chosen):
        eligible = fresh[:1]  # the selector has no node that needs the upgrade, so the first one has to do
    left = (canary.nodes or len(eligible) + len(chosen)) - len(chosen)
    first = eligible[: max(left, 0)]
    over = _soaked_at(chosen, canary)
    if again or first or over == inf:
        waits = f"canaries go first: {_names_of((*chosen, *first))}"
        return Admission(HoldReason.CANARIES, waits, open_to=(*again, *first))
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
    return max([node.since() or 0.0 for node in chosen], default=0.0) + canary.soak_seconds


def _names_of(nodes: Sequence[FleetNode]) -> str:
    return ", ".join(node.name for node in nodes)
