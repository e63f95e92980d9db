"""What the state machine asks for, and what one node does next, as values.

Each action is idempotent, and right only for the snapshot that it was decided for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf

from gpu_provision.rollout import predicates, states
from gpu_provision.rollout.snapshot import FleetNode
from gpu_provision.rollout.states import UpgradeState


class Cordon(StrEnum):
    """What a move does to ``spec.unschedulable``."""

    KEEP = "keep"
    SET = "set"
    LIFT = "lift"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTransition:
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


Action = StateTransition | Evict | Restart | Validate | RollBack | TakeOff


def move(
    node: FleetNode, to: UpgradeState, now: float, *, reason: str = "", also: Mapping[str, str | None] | None = None
) -> StateTransition:
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
    return write_marks(node, to, {**notes, **(also or {})}, reason=reason)


def _failure(node: FleetNode, reason: str) -> dict[str, str | None]:
    pod = node.driver.uid if node.driver else None
    return {states.REASON: reason, states.FAILED_IN: node.state.value, states.FAILED_WITH: pod}


def release(node: FleetNode, cordon: Cordon, reason: str) -> StateTransition:
    """Return the move that takes everything back that a rollout has written on a node."""
    notes: dict[str, str | None] = dict.fromkeys(states.ALL_ANNOTATIONS)
    return replace(write_marks(node, UpgradeState.UNKNOWN, notes, reason=reason), cordon=cordon)


def write_marks(node: FleetNode, to: UpgradeState, notes: Mapping[str, str | None], *, reason: str) -> StateTransition:
    """Return a move that writes only what is not there already."""
    changed = {key: value for key, value in notes.items() if node.annotations.get(key) != value}
    return StateTransition(
        node=node.name, revision=node.revision, to=to, annotations=tuple(sorted(changed.items())), reason=reason
    )


def apply_transition(node: FleetNode, action: StateTransition) -> FleetNode:
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
class NodeDecision:
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


IDLE = NodeDecision()


def act(*actions: Action) -> NodeDecision:
    """Act."""
    return NodeDecision(actions)


def to(node: FleetNode, state: UpgradeState, now: float, reason: str = "") -> NodeDecision:
    """Go to another state."""
    return act(move(node, state, now, reason=reason))


def fail(node: FleetNode, now: float, reason: str) -> NodeDecision:
    """Stop here, with the reason on the node."""
    return to(node, UpgradeState.FAILED, now, reason)


def cordon_node(node: FleetNode, state: UpgradeState, now: float, reason: str) -> StateTransition:
    """Return the move that cordons a node and marks the cordon as ours."""
    marks = {states.CORDONED: states.MANAGER, states.WAS_CORDONED: None, states.CORDONED_BY: None}
    return replace(move(node, state, now, reason=reason, also=marks), cordon=Cordon.SET)


def give_back(node: FleetNode, reason: str) -> NodeDecision:
    """Take back all that a rollout has written on a node, and its cordon if a rollout set it; else rest."""
    cordon = Cordon.LIFT if predicates.owns_cordon(node) else Cordon.KEEP
    return act(release(node, cordon, reason)) if predicates.is_marked(node) else IDLE


def deadline(node: FleetNode, seconds: int) -> float:
    """Return when the time of a state is over; zero seconds are without end."""
    return (node.since() or 0.0) + seconds if seconds else inf


def validation(node: FleetNode) -> tuple[Action, ...]:
    """Return the validation of the driver pod that is there now."""
    return (Validate(node=node.name, driver=node.driver.uid),) if node.driver else ()
