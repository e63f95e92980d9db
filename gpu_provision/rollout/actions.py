"""What the state machine asks for, and what one node does next, as values.

Each action is idempotent, and right only for the snapshot that it was decided for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf

from gpu_provision.rollout import needs, states
from gpu_provision.rollout.snapshot import Node
from gpu_provision.rollout.states import UpgradeState


class Cordon(StrEnum):
    """What a move does to ``spec.unschedulable``."""

    KEEP = "keep"
    SET = "set"
    LIFT = "lift"


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Write state, memory and cordon of a node in one patch, refused if the node is of another ``revision``.

    Attributes:
        annotations: What to write; None removes.
        reason: Why, for people and for the event on the node.
    """

    node: str
    revision: str
    to: UpgradeState
    cordon: Cordon = Cordon.KEEP
    annotations: tuple[tuple[str, str | None], ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evict:
    """Ask the Eviction API for a pod, by its uid; again later if it refuses."""

    node: str
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Delete the driver pod of a node, by its uid; its DaemonSet makes another."""

    node: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Validate:
    """See to it that a validation runs on the node for this driver pod."""

    node: str
    driver: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RollBack:
    """Make ``to`` the wanted content of the fleet again."""

    to: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeOff:
    """Take the stack's labels off a node, but for its mark; the stack's pods there then end."""

    node: str


Action = Move | Evict | Restart | Validate | RollBack | TakeOff


def move(
    node: Node,
    to: UpgradeState,
    now: float,
    *,
    reason: str = "",
    also: Mapping[str, str | None] | None = None,
) -> Move:
    """Return the move of a node into a state, with all that has to be remembered or forgotten there."""
    notes: dict[str, str | None] = dict.fromkeys(states.PASSING)
    notes |= {states.ENABLED: "true", states.SINCE: str(int(now)), states.TARGET: node.wanted.digest}
    match to:
        case UpgradeState.WAIT_FOR_JOBS_REQUIRED:
            notes[states.JOBS_SINCE] = str(int(now))
        case UpgradeState.VALIDATION_REQUIRED:
            notes[states.VALIDATION_SINCE] = str(int(now))
        case UpgradeState.FAILED:
            notes |= _failure(node, reason)
        case UpgradeState.DONE:
            notes |= dict.fromkeys(states.MEMORY)
        case _:
            pass
    return written(node, to, {**notes, **(also or {})}, reason=reason)


def _failure(node: Node, reason: str) -> dict[str, str | None]:
    pod = node.driver.uid if node.driver else None
    return {states.REASON: reason, states.FAILED_IN: node.state.value, states.FAILED_WITH: pod}


def released(node: Node, cordon: Cordon, reason: str) -> Move:
    """Return the move that takes everything back that a rollout has written on a node."""
    notes: dict[str, str | None] = dict.fromkeys(states.ALL_ANNOTATIONS)
    return replace(written(node, UpgradeState.UNKNOWN, notes, reason=reason), cordon=cordon)


def written(node: Node, to: UpgradeState, notes: Mapping[str, str | None], *, reason: str) -> Move:
    """Return a move that writes only what is not there already."""
    changed = {key: value for key, value in notes.items() if node.annotations.get(key) != value}
    return Move(
        node=node.name,
        revision=node.revision,
        to=to,
        annotations=tuple(sorted(changed.items())),
        reason=reason,
    )


def applied(node: Node, action: Move) -> Node:
    """Return the node as it is once a move has been written: what we wrote ourselves need not be read to be known."""
    labels = {**node.labels, states.STATE: action.to.value}
    if action.to is UpgradeState.UNKNOWN:
        del labels[states.STATE]
    notes = {**node.annotations, **dict(action.annotations)}
    return replace(
        node,
        labels=labels,
        annotations={key: value for key, value in notes.items() if value is not None},
        is_cordoned=(node.is_cordoned or action.cordon is Cordon.SET) and action.cordon is not Cordon.LIFT,
        cordoned_by=states.MANAGER if action.cordon is Cordon.SET else node.cordoned_by,
    )


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
