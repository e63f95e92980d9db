"""Several states in one write: a node goes through those in which there is nothing to wait for. Pure.

The states are those of `rollout.machine`, one by one and in its order; what is saved is a write, and a look, for each
that would be left at once. Somebody who watches the label sees every state that lasts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpu_provision.rollout.actions import Action, Cordon, Move, applied
from gpu_provision.rollout.snapshot import Domain, Node, Policy, Snapshot
from gpu_provision.rollout.states import UNDER_WAY, UpgradeState
from gpu_provision.rollout.turns import turn


def lengthened(actions: tuple[Action, ...], snapshot: Snapshot, policy: Policy) -> Iterator[Action]:
    """Yield the actions of a decision, with every move as long as the node can go now."""
    nodes = {node.name: node for node in snapshot.nodes}
    for action in actions:
        if isinstance(action, Move):
            node = nodes[action.node]
            yield _long(action, node, policy.domains[node.domain], snapshot.now)
        else:
            yield action


def _long(move: Move, node: Node, domain: Domain, now: float) -> Move:
    reached = applied(node, move)
    while not _has_to_be_seen(move, domain):
        match turn(reached, domain, now).actions:
            case (Move() as following,) if following.to in _PASSABLE and following.to is not reached.state:
                reached = applied(reached, following)
                move = _joined(node, move, following)
            case _:
                break
    return move


_PASSABLE = UNDER_WAY | {UpgradeState.DONE}
"""Who waits or has failed is written down by itself, since others may not start before that is known."""


def _has_to_be_seen(move: Move, domain: Domain) -> bool:
    """Whether what comes next depends on what others do about this.

    A job may have come until the cordon stood, and is waited for then. Other pods need no look of their own: the one
    that restarts the driver, or that evicts, sees the node cordoned.
    """
    waits_for_jobs = bool(domain.policy.wait_for_completion.pod_selector)
    return (move.cordon is Cordon.SET and waits_for_jobs) or move.to not in UNDER_WAY


def _joined(node: Node, move: Move, following: Move) -> Move:
    notes = dict(move.annotations) | dict(following.annotations)
    return replace(
        following,
        cordon=move.cordon if following.cordon is Cordon.KEEP else following.cordon,
        annotations=tuple(sorted((key, value) for key, value in notes.items() if node.annotations.get(key) != value)),
        reason="; ".join(filter(None, (move.reason, following.reason))),
    )
