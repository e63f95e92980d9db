"""Taking the stack off a node that left the inventory: the way of a driver's replacement, with nothing in its place.

A node on which no pod uses a GPU is not cordoned, takes no slot and depends on no policy: its labels go at once.
"""

from __future__ import annotations

from gpu_provision.rollout import needs, pods, steps
from gpu_provision.rollout.actions import (
    RESTS,
    TakeOff,
    Turn,
    deadline,
    do,
    fail,
    given_back,
    move,
    to,
)
from gpu_provision.rollout.snapshot import Domain, Node, Pod, Stack
from gpu_provision.rollout.states import EARLY, LATE, UpgradeState


def users(node: Node) -> tuple[Pod, ...]:
    """Return the pods that would lose a GPU. On a NotReady node those that are being deleted have lost it already."""
    return tuple(pod for pod in pods.holders(node) if node.is_ready or not pod.is_terminating)


def is_free(node: Node) -> bool:
    """Whether a node that is to have no driver of the stack needs no emptying, so that its labels may be written.

    One that left has no pod that would lose a GPU, and is not being emptied. One that is in the inventory has a driver
    of its own.
    """
    if not node.is_leaving:
        return True
    is_begun = node.state in EARLY | LATE or needs.owns_cordon(node)
    return not is_begun and (node.stack is not Stack.LABELLED or not users(node))


def turn(node: Node, domain: Domain, now: float) -> Turn:
    """Return what a node does next that left and is not free, before it is emptied and after."""
    match node.state:
        case UpgradeState.UNKNOWN | UpgradeState.DONE:
            return _begun(node, domain, now)
        case UpgradeState.UPGRADE_REQUIRED:
            held = steps.held(node, domain)
            return Turn(waits=held, is_candidate=not held)
        case UpgradeState.POD_RESTART_REQUIRED:
            return _taken_off(node, domain, now)
        case UpgradeState.VALIDATION_REQUIRED | UpgradeState.UNCORDON_REQUIRED:
            return to(node, UpgradeState.POD_DELETION_REQUIRED, now, needs.why(node))
        case UpgradeState.FAILED:
            return _failed(node, now)
        case _:
            return RESTS


def _begun(node: Node, domain: Domain, now: float) -> Turn:
    """Join those that wait for a slot. A node that could not start is not written to."""
    held = steps.held(node, domain)
    return Turn(waits=held) if held else do(steps.required_by(node, now, needs.why(node)))


def _taken_off(node: Node, domain: Domain, now: float) -> Turn:
    """Take the labels off an empty node, wait until the stack's pods have ended there, and give the node back."""
    until = deadline(node, domain.restart_seconds)
    waits = "pods of the stack to end"
    match node.stack:
        case Stack.LABELLED if users(node):
            since = node.since() or now
            return do(move(node, UpgradeState.POD_DELETION_REQUIRED, since, reason="GPU pods have come to the node"))
        case Stack.LABELLED:
            return Turn((TakeOff(node=node.name),), waits, until)
        case Stack.ENDING if now >= until:
            return fail(node, now, f"pods of the stack have not ended after {domain.restart_seconds} s")
        case Stack.ENDING:
            return Turn(waits=waits, until=until)
        case _:
            return given_back(node, "the stack is off the node")


def _failed(node: Node, now: float) -> Turn:
    """Go on where what was in the way is gone."""
    is_free = not users(node) if node.stack is Stack.LABELLED else node.stack is Stack.BARE
    return to(node, UpgradeState.POD_RESTART_REQUIRED, now, "nothing is in the way any more") if is_free else RESTS
