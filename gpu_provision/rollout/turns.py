"""What comes next for one node, by its state. Pure; slots are handed out elsewhere."""

from __future__ import annotations

from typing import assert_never

from gpu_provision.rollout import emptying, failing, leaving, needs, pods, replacing, starting, states
from gpu_provision.rollout.actions import move, written
from gpu_provision.rollout.snapshot import NOTHING, Domain, Node
from gpu_provision.rollout.states import EARLY, ELSEWHERE, LATE, UNDER_WAY, UpgradeState
from gpu_provision.rollout.turn import RESTS, Turn, cordoned, do, given_back

_STAYS_CORDONED = (EARLY | LATE) - {UpgradeState.CORDON_REQUIRED, UpgradeState.UNCORDON_REQUIRED}


def turn(  # noqa: PLR0911 - one case after the other
    node: Node, domain: Domain, now: float, *, is_soaking: bool = False
) -> Turn:
    """Return what a node does next. ``is_soaking``: it is a canary that has to stay well."""
    if node.left_out:
        return Turn(waits=node.left_out if needs.why(node) or node.state in UNDER_WAY else "")
    if node.state in ELSEWHERE:
        return Turn(waits=f"{states.STATE} is {node.labels[states.STATE]}, which is in other hands")
    if node.wanted == NOTHING and leaving.is_free(node):
        return given_back(node, needs.why(node) or "has a driver of its own")
    if not domain.policy.auto_upgrade and node.state not in LATE:
        return _kept(node)
    if found := _repaired(node, now):
        return found
    if is_soaking and not needs.is_well(node):
        return failing.soaking(node, now)
    if node.is_leaving and node.state not in EARLY:
        return leaving.turn(node, domain, now)
    return _by_state(node, domain, now)


def _by_state(node: Node, domain: Domain, now: float) -> Turn:  # noqa: C901, PLR0911 - one case a state
    match node.state:
        case UpgradeState.UNKNOWN | UpgradeState.DONE:
            return starting.idle(node, now)
        case UpgradeState.UPGRADE_REQUIRED:
            return starting.required(node, domain, now)
        case UpgradeState.CORDON_REQUIRED:
            return emptying.cordon(node, now)
        case UpgradeState.WAIT_FOR_JOBS_REQUIRED:
            return emptying.wait_for_jobs(node, domain, now)
        case UpgradeState.POD_DELETION_REQUIRED:
            return emptying.delete_pods(node, domain, now)
        case UpgradeState.DRAIN_REQUIRED:
            return emptying.drain(node, domain, now)
        case UpgradeState.POD_RESTART_REQUIRED:
            return replacing.restart(node, domain, now)
        case UpgradeState.VALIDATION_REQUIRED:
            return replacing.validate(node, domain, now)
        case UpgradeState.UNCORDON_REQUIRED:
            return replacing.uncordon(node, now)
        case UpgradeState.FAILED:
            return failing.failed(node, now)
        case UpgradeState.NODE_MAINTENANCE_REQUIRED | UpgradeState.POST_MAINTENANCE_REQUIRED | UpgradeState.FOREIGN:
            return RESTS
        case _:
            assert_never(node.state)


def _kept(node: Node) -> Turn:
    """Leave the driver alone, and take everything back that a rollout wrote; the reference leaves all cordons."""
    if (found := given_back(node, "auto_upgrade is off")).actions:
        return found
    if node.is_leaving:
        return Turn(waits=f"auto_upgrade is off, and pods use its GPUs: {pods.named(leaving.users(node))}")
    reason = needs.why(node)
    return Turn(waits=f"{reason}, but auto_upgrade is off") if reason else RESTS


def _repaired(node: Node, now: float) -> Turn | None:
    """Put right what somebody else has changed under us; the clock of the state goes on."""
    state, since = node.state, node.since()
    if needs.inherits_cordon(node):
        mark = {states.CORDONED: node.cordoned_by or states.MANAGER}
        return do(written(node, state, mark, reason="goes on with what the GPU Operator began"))
    if state in EARLY | LATE and since is None:
        return do(move(node, state, now, reason="goes on from here"))
    if state in _STAYS_CORDONED and not node.is_cordoned:
        return do(cordoned(node, state, since or now, "somebody lifted the cordon"))
    if state not in EARLY | LATE and states.CORDONED in node.annotations and not needs.owns_cordon(node):
        return do(written(node, state, {states.CORDONED: None}, reason="the cordon is not ours any more"))
    return None
