"""The rollout: a snapshot of the fleet -> what to do next, and what every node waits for. Pure and stateless."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain
from math import inf
from types import MappingProxyType
from typing import Protocol, assert_never

from gpu_provision.model.upgrade import OnFailure
from gpu_provision.rollout import canary, failing, order, slots, starting, states
from gpu_provision.rollout.actions import Action, Move, RollBack, applied
from gpu_provision.rollout.gate import Barrier, Gate, failed, gate
from gpu_provision.rollout.snapshot import Domain, Node, Policy, Snapshot
from gpu_provision.rollout.states import UpgradeState
from gpu_provision.rollout.turn import RESTS, Turn
from gpu_provision.rollout.turns import turn

_NOTHING: Mapping[str, Move] = MappingProxyType({})
_BOOKS = frozenset({UpgradeState.UPGRADE_REQUIRED, UpgradeState.FAILED})
"""Where a node goes when who waits, or who failed, is written down."""


class AsksNode(Protocol):
    """Says what a node does next, as `rollout.turns.turn`."""

    def __call__(self, node: Node, domain: Domain, now: float, *, is_soaking: bool = False) -> Turn:
        """Return what a node does next."""


class Phase(StrEnum):
    """Where the fleet stands as a whole. Each says when it is told."""

    ROLLING = "rolling"  # nodes are under way, or there is something to do
    SOAKING = "soaking"  # nodes wait for canaries to stay well for a while
    CLOSED = "closed"  # nodes wait for the maintenance window
    PAUSED = "paused"  # nodes wait, since too many have failed
    HELD = "held"  # nodes wait for what only somebody else can change
    FAILED = "failed"  # no node waits, and some have failed
    DONE = "done"  # every node is as wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do next.

    Attributes:
        actions: Each may be left undone, in any order; the next look asks for it again.
        waits: Node -> what it waits for; nodes that only act or rest are absent.
        until: When to look again although nothing has happened, in unix seconds; inf for never.
        failures: Node -> why it failed.
        queue: The nodes with nothing but slots in their way, in order, those that start now among them.
    """

    phase: Phase
    actions: tuple[Action, ...] = ()
    waits: Mapping[str, str] = field(default_factory=dict)
    until: float = inf
    failures: Mapping[str, str] = field(default_factory=dict)
    queue: tuple[Node, ...] = ()


def decide(
    snapshot: Snapshot, policy: Policy, writing: Mapping[str, Move] = _NOTHING, turn: AsksNode = turn
) -> Decision:
    """Return what to do next. The same snapshot has the same answer, whoever asks, and however often.

    Args:
        snapshot: The fleet.
        policy: What the inventory says about it.
        writing: Node -> the move that is on its way to the API server, of which nobody knows yet how it will end. Such
            a node does nothing else meanwhile, and the others go on.
        turn: Answers as `rollout.turns.turn` does.
    """
    snapshot = _taken(snapshot, writing)
    soaking = canary.soaking(snapshot, policy.fleet.canary)
    turns = {
        node.name: turn(node, policy.domains[node.domain], snapshot.now, is_soaking=node.name in soaking)
        if node.name not in writing
        else RESTS
        for node in snapshot.nodes
    }
    acting = tuple(action for found in turns.values() if found.actions for action in found.actions)
    moves = (action for action in chain(writing.values(), acting) if isinstance(action, Move))
    candidates = () if _opens_books(moves) else _candidates(snapshot, policy, turns)
    opened = gate(snapshot, policy, candidates)
    granted = slots.granted(snapshot, policy, candidates, opened)
    mark = snapshot.target if opened.as_canaries else None
    actions = (
        *acting,
        *(starting.started(node, snapshot.now, None if node.is_leaving else mark) for node in granted.nodes),
        *(() if writing else _roll_back(snapshot, policy, opened)),  # it ends the run: what is on its way arrives first
    )
    waits = {name: found.waits for name, found in turns.items() if found.waits} | dict(granted.waits)
    return Decision(
        phase=_phase(snapshot, (*actions, *writing), waits, opened if candidates else None),
        actions=actions,
        waits=waits,
        until=min([*(found.until for found in turns.values()), opened.until if candidates else inf]),
        failures=_failures(snapshot.nodes),
        queue=candidates if opened.barrier is Barrier.NOTHING else (),
    )


def again(snapshot: Snapshot) -> tuple[Move, ...]:
    """Return the moves with which a new run gives every failed node another chance."""
    failed_here = (node for node in snapshot.nodes if node.state is UpgradeState.FAILED and not node.left_out)
    return tuple(failing.again(node, snapshot.now) for node in failed_here)


def _taken(snapshot: Snapshot, writing: Mapping[str, Move]) -> Snapshot:
    """Return the fleet as limits have to see it: a slot is taken before that is written, and given back only after."""
    if not writing:
        return snapshot
    nodes = (
        applied(node, writing[node.name]) if node.name in writing and not node.is_under_way else node
        for node in snapshot.nodes
    )
    return replace(snapshot, nodes=tuple(nodes))


def _opens_books(moves: Iterable[Move]) -> bool:
    """Whether a node joins those that wait, or fails, in this very moment: then nobody starts before that is written.

    Otherwise who goes first, and whether anybody still may, would depend on which of several writes came first.
    """
    return any(move.to in _BOOKS for move in moves)


def _candidates(snapshot: Snapshot, policy: Policy, turns: Mapping[str, Turn]) -> tuple[Node, ...]:
    ready = (node for node in snapshot.nodes if turns[node.name].is_candidate)
    return tuple(sorted(ready, key=lambda node: order.rank(node, policy.fleet.order)))


def _roll_back(snapshot: Snapshot, policy: Policy, opened: Gate) -> Iterator[RollBack]:
    """A rollback that fails is not rolled back in its turn."""
    wanted = policy.fleet.on_failure is OnFailure.ROLLBACK and opened.barrier is Barrier.FAILURES
    if wanted and snapshot.previous and not snapshot.is_rolling_back:
        yield RollBack(to=snapshot.previous, reason=f"failed: {', '.join(failed(snapshot))}")


def _phase(snapshot: Snapshot, actions: Collection[object], waits: Collection[str], opened: Gate | None) -> Phase:
    if actions or any(node.is_under_way for node in snapshot.nodes):
        return Phase.ROLLING
    if opened is not None:
        return _phase_before(opened)
    if waits:
        return Phase.HELD
    return Phase.FAILED if _failures(snapshot.nodes) else Phase.DONE


def _phase_before(opened: Gate) -> Phase:
    match opened.barrier:
        case Barrier.FAILURES:
            return Phase.PAUSED
        case Barrier.WINDOW:
            return Phase.CLOSED
        case Barrier.CANARIES:
            return Phase.HELD if opened.until == inf else Phase.SOAKING
        case Barrier.NOTHING:
            return Phase.HELD
        case _:
            assert_never(opened.barrier)


def _failures(nodes: Collection[Node]) -> dict[str, str]:
    broken = (node for node in nodes if node.state is UpgradeState.FAILED)
    return {node.name: node.annotations.get(states.REASON, "the reason is not on record") for node in broken}
