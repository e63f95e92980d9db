"""Several states in one write: a node goes through those in which there is nothing to wait for. Pure.

The states are those of `rollout.machine`, one by one and in its order; what is saved is a write, and a look, for each
that would be left at once. Somebody who watches the label sees every state that lasts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpu_provision.rollout.actions import Action, Cordon, Move, applied
from gpu_provision.rollout.snapshot import Node, Policy, Snapshot
from gpu_provision.rollout.states import UNDER_WAY, UpgradeState
from gpu_provision.rollout.turns import turn


def lengthened(actions: tuple[Action, ...], snapshot: Snapshot, policy: Policy) -> Iterator[Action]:
    """Yield the actions of a decision, with every move as long as the node can go now."""
    nodes = {node.name: node for node in snapshot.nodes}
    for action in actions:
        yield _long(action, nodes[action.node], policy, snapshot.now) if isinstance(action, Move) else action


def _long(move: Move, node: Node, policy: Policy, now: float) -> Move:
    reached = applied(node, move)
    while not _has_to_be_seen(move):
        match turn(reached, policy.domains[node.domain], now).actions:
            case (Move() as following,) if following.to in _PASSABLE and following.to is not reached.state:
                reached = applied(reached, following)
                move = _joined(node, move, following)
            case _:
                break
    return move


_PASSABLE = UNDER_WAY | {UpgradeState.DONE}
"""Who waits or has failed is written down by itself, since others may not start before that is known."""


def _has_to_be_seen(move: Move) -> bool:
    """Whether what comes next depends on what others do about this: pods may have come until the cordon stood."""
    return move.cordon is Cordon.SET or move.to not in UNDER_WAY


def _joined(node: Node, move: Move, following: Move) -> Move:
    notes = dict(move.annotations) | dict(following.annotations)
    return replace(
        following,
        cordon=move.cordon if following.cordon is Cordon.KEEP else following.cordon,
        annotations=tuple(sorted((key, value) for key, value in notes.items() if node.annotations.get(key) != value)),
        reason="; ".join(filter(None, (move.reason, following.reason))),
    )
