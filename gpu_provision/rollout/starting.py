"""From being outdated to a slot: nodes at rest, and those that wait for their turn."""

from __future__ import annotations

from gpu_provision.rollout import needs, pods, states
from gpu_provision.rollout.actions import Move, move
from gpu_provision.rollout.snapshot import Domain, Node
from gpu_provision.rollout.states import UpgradeState
from gpu_provision.rollout.turn import RESTS, Turn, do, fail, to, validation


def idle(node: Node, now: float) -> Turn:
    """Compare the driver with what is wanted."""
    if needs.owns_cordon(node):
        return _resumed(node, now)
    if missing := _not_comparable(node):
        return Turn(waits=missing)
    if reason := needs.why(node):
        return do(required_by(node, now, reason))
    if node.state is UpgradeState.DONE:
        return RESTS
    is_ready = node.driver is not None and node.driver.is_ready
    return to(node, UpgradeState.DONE, now) if is_ready else Turn(waits="the driver is not ready yet")


def _not_comparable(node: Node) -> str:
    if node.driver is None:
        return "has no driver pod"
    if node.driver.is_terminating:
        return "the driver pod is terminating"
    if not node.driver.has_owner and not needs.is_forced(node):
        return f"nothing would start its driver pod again; {states.REQUESTED}=true deletes it all the same"
    return ""


def _resumed(node: Node, now: float) -> Turn:
    """Go on with a node whose label somebody removed in the middle of its upgrade."""
    if reason := needs.why(node):
        return do(required_by(node, now, reason))
    return to(node, UpgradeState.POD_RESTART_REQUIRED, now, "the label went, the cordon stayed")


def required_by(node: Node, now: float, reason: str) -> Move:
    """Return the move with which a node joins those that wait for a slot."""
    began_with = {states.BEGAN_WITH: node.driver.uid if node.driver else None}
    return move(node, UpgradeState.UPGRADE_REQUIRED, now, reason=reason, also=began_with)


def required(node: Node, domain: Domain, now: float) -> Turn:
    """Say whether a node may start, were there a slot."""
    if node.driver is None:
        return Turn(waits="has no driver pod")
    if node.annotations.get(states.TARGET) != node.wanted.digest or states.BEGAN_WITH not in node.annotations:
        return do(_adopted(node, now, node.driver.uid))
    if not needs.why(node):
        return _not_required(node, now)
    obstacle = held(node, domain)
    return Turn(waits=obstacle, is_candidate=not obstacle)


def held(node: Node, domain: Domain) -> str:
    """Say why a node cannot start whatever slots there are; better to leave it at work than to fail half way."""
    if node.labels.get(states.SKIP) == "true":
        return f"is left out by the label {states.SKIP}"
    if not node.is_ready:
        return "the node is NotReady"
    if node.driver is not None and node.driver.is_terminating:
        return "the driver pod is terminating"
    return "; ".join(pods.obstacles(node, domain.policy))


def _adopted(node: Node, now: float, driver: str) -> Move:
    """Take over a label that somebody else wrote. On a node whose driver is as wanted it can only mean: once more."""
    by_hand = states.TARGET not in node.annotations and not needs.why(node)
    forced = "true" if by_hand or needs.is_forced(node) else None
    also = {states.BEGAN_WITH: node.annotations.get(states.BEGAN_WITH) or driver, states.FORCED: forced}
    return move(node, UpgradeState.UPGRADE_REQUIRED, now, reason="asked for by label" if by_hand else "", also=also)


def _not_required(node: Node, now: float) -> Turn:
    """Somebody restarted the driver, or the wanted content has changed back."""
    if needs.owns_cordon(node):
        return to(node, UpgradeState.POD_RESTART_REQUIRED, now, "the driver is as wanted already")
    if needs.is_untouched(node) or needs.is_proven(node):
        return to(node, UpgradeState.DONE, now, "the driver is as wanted already")
    if trouble := needs.disproof(node):
        return fail(node, now, trouble)
    return Turn(validation(node), "the driver was started by somebody else and has to prove itself")


def started(node: Node, now: float, canary: str | None) -> Move:
    """Return the move that gives a node its slot; ``canary`` names the content for which it goes first."""
    also = {
        states.BEGAN_WITH: node.driver.uid if node.driver else None,
        states.REQUESTED: None,
        states.FORCED: "true" if needs.is_forced(node) else None,
    }
    marks = {states.CANARY: canary} if canary is not None else {}
    return move(node, UpgradeState.CORDON_REQUIRED, now, reason=needs.why(node), also=also | marks)
