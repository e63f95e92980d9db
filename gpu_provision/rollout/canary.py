"""Canaries: who they are, whether they stay well, and whether the others may follow. Pure.

Which nodes are canaries is written on them when they start, so that every later look has the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from gpu_provision.model.rollout_policy import Canary
from gpu_provision.rollout import needs, states
from gpu_provision.rollout.snapshot import Node, Snapshot
from gpu_provision.rollout.states import UpgradeState


@dataclass(frozen=True, slots=True)
class Stage:
    """Who may start as far as canaries are concerned.

    Attributes:
        waits: Why nobody else may start; empty once everybody may.
        until: When waiting ends by itself, in unix seconds.
        canaries: The candidates that may start now, as canaries.
        failed: The canaries that failed.
    """

    waits: str = ""
    until: float = inf
    canaries: tuple[Node, ...] = ()
    failed: tuple[str, ...] = ()


OPEN = Stage()


def soaking(snapshot: Snapshot, canary: Canary | None) -> frozenset[str]:
    """Return the canaries that are done and have to stay well, since not all of them have for long enough."""
    chosen = _chosen(snapshot, canary)
    if canary is None or snapshot.now >= _soaked_at(chosen, canary):
        return frozenset()
    return frozenset(node.name for node in chosen if node.state is UpgradeState.DONE)


def stage(snapshot: Snapshot, canary: Canary | None, candidates: Sequence[Node]) -> Stage:
    """Return who may start; ``candidates`` are in order."""
    chosen = _chosen(snapshot, canary)
    if canary is None or snapshot.is_rolling_back:
        return OPEN
    if failed := tuple(node.name for node in chosen if node.state is UpgradeState.FAILED):
        return Stage(waits=f"canary {', '.join(failed)} failed", failed=failed)
    again = tuple(node for node in candidates if node in chosen)  # the fleet went back meanwhile: they go first anew
    eligible = _eligible(canary, [node for node in candidates if node not in again], is_first=not chosen)
    left = (canary.nodes or len(eligible) + len(chosen)) - len(chosen)
    first = eligible[: max(left, 0)]
    if again or first:
        return Stage(waits=f"canaries go first: {_names((*chosen, *first))}", canaries=(*again, *first))
    return _after(chosen, canary, snapshot.now)


def _after(chosen: Sequence[Node], canary: Canary, now: float) -> Stage:
    over = _soaked_at(chosen, canary)
    if any(node.state is not UpgradeState.DONE for node in chosen):
        return Stage(waits=f"canaries go first: {_names(chosen)}")
    if now < over:
        return Stage(waits=f"canaries have to stay well for {over - now:.0f} s more: {_names(chosen)}", until=over)
    if unwell := [node for node in chosen if not needs.is_well(node)]:
        return Stage(waits=f"canaries are not well: {_names(unwell)}")
    return OPEN


def _chosen(snapshot: Snapshot, canary: Canary | None) -> tuple[Node, ...]:
    if canary is None or snapshot.is_rolling_back:
        return ()
    staying = (node for node in snapshot.nodes if not node.is_leaving)
    return tuple(node for node in staying if node.annotations.get(states.CANARY) == snapshot.target)


def _soaked_at(chosen: Sequence[Node], canary: Canary) -> float:
    """Return when all canaries have been done for long enough; inf while one of them is not."""
    if any(node.state is not UpgradeState.DONE for node in chosen):
        return inf
    return max([node.since() or 0.0 for node in chosen], default=0.0) + canary.soak_seconds


def _eligible(canary: Canary, candidates: Sequence[Node], *, is_first: bool) -> tuple[Node, ...]:
    """Return who may become a canary. If the selector has no node that needs the upgrade, the first node has to do."""
    selected = tuple(node for node in candidates if canary.node_selector.items() <= node.labels.items())
    return selected or (tuple(candidates[:1]) if is_first else ())


def _names(nodes: Sequence[Node]) -> str:
    return ", ".join(node.name for node in nodes)
