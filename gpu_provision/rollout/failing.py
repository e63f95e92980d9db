"""Failures that come late, and what makes a failed node try again."""

from __future__ import annotations

from gpu_provision.rollout import needs, states
from gpu_provision.rollout.actions import Move, move
from gpu_provision.rollout.snapshot import NOTHING, Node
from gpu_provision.rollout.states import UpgradeState
from gpu_provision.rollout.turn import RESTS, Turn, cordoned, do, fail, to


def soaking(node: Node, now: float) -> Turn:
    """Fail a canary that did not stay well."""
    trouble = needs.disproof(node) or ("the driver is not ready" if node.is_ready else "the node is NotReady")
    return fail(node, now, f"did not stay well as a canary: {trouble}")


def failed(node: Node, now: float) -> Turn:
    """Try again where something has changed; the way back leads through the validation, unlike in the reference."""
    driver = node.driver
    if driver is None or driver.is_terminating:
        return RESTS
    if node.says(states.REQUESTED) or _other_content_is_wanted(node):
        return do(again(node, now))
    if needs.why(node) or not needs.is_well(node) or not _has_news(node):
        return RESTS
    if node.is_cordoned:
        return to(node, UpgradeState.VALIDATION_REQUIRED, now, "the driver has become ready")
    return do(cordoned(node, UpgradeState.VALIDATION_REQUIRED, now, "the driver has become ready"))


def _other_content_is_wanted(node: Node) -> bool:
    tried = node.annotations.get(states.TARGET)
    return tried is not None and tried != node.wanted.digest and not needs.is_current(node)


def _has_news(node: Node) -> bool:
    """Whether there is anything new to prove: a driver that failed its validation gets no second one for nothing."""
    same = node.driver is not None and node.annotations.get(states.FAILED_WITH) == node.driver.uid
    failed_to_prove = same and node.annotations.get(states.FAILED_IN) == UpgradeState.VALIDATION_REQUIRED
    return not failed_to_prove or (needs.is_proven(node) and node.offers_gpus)


def again(node: Node, now: float) -> Move:
    """Return the move that has a failed node tried once more, from the beginning.

    One that could not leave, and is in the inventory again, has the driver that it has always had. A pod that has
    crashed is replaced: its restarts would count against this try, and the kubelet delays the next one for minutes.
    """
    if node.annotations.get(states.TARGET) == NOTHING.digest and needs.is_untouched(node) and not needs.why(node):
        return move(node, UpgradeState.UNCORDON_REQUIRED, now, reason="is in the inventory again")
    also = {states.BEGAN_WITH: node.driver.uid if node.driver else None}
    if needs.has_crashed(node):
        also[states.FORCED] = "true"
    return move(node, UpgradeState.UPGRADE_REQUIRED, now, reason="once more", also=also)
