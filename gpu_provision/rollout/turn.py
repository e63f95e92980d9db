"""What one node does next, as a value."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from gpu_provision.rollout import needs, states
from gpu_provision.rollout.actions import Action, Cordon, Move, Validate, move, released
from gpu_provision.rollout.snapshot import Node
from gpu_provision.rollout.states import UpgradeState


@dataclass(frozen=True, slots=True)
class Turn:
    """What one node does next.

    Attributes:
        actions: What to do now.
        waits: What it waits for, in words; empty if it acts, or rests.
        until: When waiting ends by itself, in unix seconds.
        is_candidate: Whether it is ready to start and needs a slot.
    """

    actions: tuple[Action, ...] = ()
    waits: str = ""
    until: float = inf
    is_candidate: bool = False


RESTS = Turn()


def do(*actions: Action) -> Turn:
    """Act."""
    return Turn(actions)


def to(node: Node, state: UpgradeState, now: float, reason: str = "") -> Turn:
    """Go to another state."""
    return do(move(node, state, now, reason=reason))


def fail(node: Node, now: float, reason: str) -> Turn:
    """Stop here, with the reason on the node."""
    return to(node, UpgradeState.FAILED, now, reason)


def cordoned(node: Node, state: UpgradeState, now: float, reason: str) -> Move:
    """Return the move that cordons a node and marks the cordon as ours."""
    marks = {states.CORDONED: states.MANAGER, states.WAS_CORDONED: None, states.CORDONED_BY: None}
    return replace(move(node, state, now, reason=reason, also=marks), cordon=Cordon.SET)


def given_back(node: Node, reason: str) -> Turn:
    """Take back all that a rollout has written on a node, and its cordon if a rollout set it; else rest."""
    cordon = Cordon.LIFT if needs.owns_cordon(node) else Cordon.KEEP
    return do(released(node, cordon, reason)) if needs.is_marked(node) else RESTS


def deadline(node: Node, seconds: int) -> float:
    """Return when the time of a state is over; zero seconds are without end."""
    return (node.since() or 0.0) + seconds if seconds else inf


def validation(node: Node) -> tuple[Action, ...]:
    """Return the validation of the driver pod that is there now."""
    return (Validate(node=node.name, driver=node.driver.uid),) if node.driver else ()
