"""Whether any further node may start: failures, the maintenance window, canaries. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf

from gpu_provision.rollout import canary, states, window
from gpu_provision.rollout.snapshot import Node, Policy, Snapshot
from gpu_provision.rollout.states import UpgradeState


class Barrier(StrEnum):
    """What keeps nodes from starting."""

    NOTHING = "nothing"
    FAILURES = "failures"
    WINDOW = "window"
    CANARIES = "canaries"


@dataclass(frozen=True, slots=True)
class Gate:
    """Who may start.

    Attributes:
        waits: Why those who may not have to wait.
        until: When waiting ends by itself, in unix seconds.
        open_to: The candidates that may start, in order.
        as_canaries: Whether they go as canaries.
    """

    barrier: Barrier
    waits: str = ""
    until: float = inf
    open_to: tuple[Node, ...] = ()
    as_canaries: bool = False


def gate(snapshot: Snapshot, policy: Policy, candidates: Sequence[Node]) -> Gate:
    """Return who of the candidates, which are in order, may start. A node that leaves shows nothing as a canary."""
    fleet, leaving = policy.fleet, tuple(node for node in candidates if node.is_leaving)
    stage = canary.stage(snapshot, fleet.canary, [node for node in candidates if not node.is_leaving])
    broken = failed(snapshot)
    if stage.failed or len(broken) >= fleet.stop_after_failures:
        return Gate(Barrier.FAILURES, stage.waits or f"the rollout stopped: {', '.join(broken)} failed")
    if fleet.maintenance_window is not None and not window.is_open(fleet.maintenance_window, snapshot.now):
        opening = window.next_opening(fleet.maintenance_window, snapshot.now)
        return Gate(Barrier.WINDOW, "the maintenance window is closed", opening)
    if stage.waits:
        return Gate(Barrier.CANARIES, stage.waits, stage.until, (*leaving, *stage.canaries), as_canaries=True)
    return Gate(Barrier.NOTHING, open_to=tuple(candidates))


def failed(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the nodes that failed on the way to what is wanted now; earlier failures are no verdict on that."""
    return tuple(
        node.name
        for node in snapshot.nodes
        if node.state is UpgradeState.FAILED and not node.left_out  # a new run is a new chance
        if not node.is_leaving  # which says nothing about a driver
        if node.annotations.get(states.TARGET, node.wanted.digest) == node.wanted.digest
    )
