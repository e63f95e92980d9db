"""What a node does in each state: start, cordon, empty, restart the driver, validate, uncordon, fail."""

from __future__ import annotations

from dataclasses import replace

from gpu_provision.model.rollout_policy import PodDeletion, UpgradeDrain
from gpu_provision.rollout import needs, pods, states
from gpu_provision.rollout.actions import (
    RESTS,
    Cordon,
    Move,
    Restart,
    Turn,
    cordoned,
    deadline,
    do,
    fail,
    move,
    to,
    validation,
)
from gpu_provision.rollout.snapshot import NOTHING, Domain, DriverPod, Node, Pod
from gpu_provision.rollout.states import UpgradeState


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


def cordon(node: Node, now: float) -> Turn:
    """Cordon the node, or remember that somebody else already has."""
    if found := _nothing_left_to_do(node, now):
        return found
    following = UpgradeState.WAIT_FOR_JOBS_REQUIRED
    if not node.is_cordoned or needs.owns_cordon(node):
        return do(cordoned(node, following, now, "cordoned"))
    whose = node.cordoned_by or "somebody"
    also = {states.WAS_CORDONED: "true", states.CORDONED_BY: whose, states.CORDONED: None}
    return do(move(node, following, now, reason=f"was cordoned by {whose} and stays so", also=also))


def wait_for_jobs(node: Node, domain: Domain, now: float) -> Turn:
    """Let jobs end by themselves; when their time is over they are evicted like anything else."""
    if found := _nothing_left_to_do(node, now):
        return found
    running = pods.jobs(node, domain.policy)
    until = deadline(node, domain.policy.wait_for_completion.timeout_seconds)
    if not running or now >= until:
        return to(node, UpgradeState.POD_DELETION_REQUIRED, now)
    return Turn(waits=f"jobs: {pods.named(running)}", until=until)


def delete_pods(node: Node, domain: Domain, now: float) -> Turn:
    """Evict the pods that use GPUs."""
    if found := _nothing_left_to_do(node, now):
        return found
    holding, rules = pods.holders(node), domain.policy.pod_deletion
    if not holding:
        return to(node, UpgradeState.POD_RESTART_REQUIRED, now)
    until = deadline(node, rules.timeout_seconds)
    trouble = _trouble(holding, rules, "pod_deletion", is_over=now >= until)
    if not trouble:
        return _evict(node, holding, until)
    if domain.policy.drain.enable:
        return to(node, UpgradeState.DRAIN_REQUIRED, now, trouble)
    return fail(node, now, trouble)


def drain(node: Node, domain: Domain, now: float) -> Turn:
    """Evict all pods that the drain selects. With the drain off meanwhile, GPU pods still keep the driver."""
    if found := _nothing_left_to_do(node, now):
        return found
    rules, holding = domain.policy.drain, pods.holders(node)
    leaving = pods.drained(node, rules) if rules.enable else ()
    if not (leaving or holding):
        return to(node, UpgradeState.POD_RESTART_REQUIRED, now)
    if not leaving:
        return fail(node, now, f"the drain leaves {pods.named(holding)}")
    until = deadline(node, rules.timeout_seconds)
    trouble = _trouble(leaving, rules, "drain", is_over=now >= until)
    return fail(node, now, trouble) if trouble else _evict(node, leaving, until)


def _nothing_left_to_do(node: Node, now: float) -> Turn | None:
    """Go back where the driver has become as wanted; one that was never touched has nothing to prove."""
    if node.driver is None or needs.why(node):
        return None
    if needs.is_untouched(node) and node.driver.is_ready:
        return to(node, UpgradeState.UNCORDON_REQUIRED, now, "the driver is as wanted again")
    return to(node, UpgradeState.POD_RESTART_REQUIRED, now, "somebody has restarted the driver")


def _trouble(leaving: tuple[Pod, ...], rules: PodDeletion | UpgradeDrain, key: str, *, is_over: bool) -> str:
    """Say why evicting these pods cannot succeed; empty if it still may."""
    if found := [text for pod in leaving if (text := pods.obstacle(pod, rules, key))]:
        return "; ".join(found)
    late = f"not gone after {rules.timeout_seconds} s ({key}.timeout_seconds)"
    return f"{late}: {pods.named(leaving, pods.with_refusal)}" if is_over else ""


def _evict(node: Node, leaving: tuple[Pod, ...], until: float) -> Turn:
    return Turn(tuple(pods.evictions(node, leaving)), f"pods to go: {pods.named(leaving, pods.with_refusal)}", until)


NOT_READY = "the driver is not ready"
"""Beginning of what a node waits for, or failed of, whose new driver pod does not get ready."""

_MOST_RESTARTS = 10  # the reference's limit


def restart(node: Node, domain: Domain, now: float) -> Turn:
    """Delete the driver pod once, and wait until its successor is ready."""
    until, driver = deadline(node, domain.restart_seconds), node.driver
    if driver is None or driver.is_terminating:
        waits = "the previous driver pod is terminating" if driver else "has no driver pod"
        return _overdue(node, waits, until, now)
    if needs.must_restart(node):
        return _delete_driver(node, driver.uid, until, now)
    if node.annotations.get(states.SAFE_LOAD):
        return do(move(node, node.state, node.since() or now, reason="is empty", also={states.SAFE_LOAD: None}))
    return _bring_up(node, driver, until, now)


def _bring_up(node: Node, driver: DriverPod, until: float, now: float) -> Turn:
    if driver.is_ready:
        return to(node, UpgradeState.VALIDATION_REQUIRED, now)
    if driver.restarts > _MOST_RESTARTS:
        return fail(node, now, f"{NOT_READY}: restarted {driver.restarts} times{_suspected(node)}")
    return _overdue(node, f"{NOT_READY}{_suspected(node)}", until, now)


def _delete_driver(node: Node, uid: str, until: float, now: float) -> Turn:
    """Delete the driver pod, unless GPU work has come to the node meanwhile; the clock then goes on."""
    if pods.holders(node):
        since = node.since() or now
        return do(move(node, UpgradeState.POD_DELETION_REQUIRED, since, reason="GPU pods have come to the node"))
    if not node.is_template_observed:
        return _overdue(node, "the DaemonSet controller has not observed the new template", until, now)
    if now >= until:
        return fail(node, now, "the previous driver pod is still there")
    return Turn((Restart(node=node.name, uid=uid),), "the driver pod to go", until)


def _overdue(node: Node, waits: str, until: float, now: float) -> Turn:
    if now < until:
        return Turn(waits=waits, until=until)
    return fail(node, now, f"{waits}, {now - (node.since() or now):.0f} s after {node.state.value}")


def _suspected(node: Node) -> str:
    found = (*pods.holders(node), *pods.suspects(node))
    return f"; these may use it: {pods.named(found, lambda pod: f'{pod} {pod.use}')}" if found else ""


def validate(node: Node, domain: Domain, now: float) -> Turn:
    """Have the driver prove itself; there is no way from here to the uncordon but through a proof."""
    until = deadline(node, domain.validation_seconds)
    if needs.must_restart(node) and node.driver is not None:
        return to(node, UpgradeState.POD_DELETION_REQUIRED, now, needs.why(node))
    if node.driver is None or node.driver.is_terminating or not node.driver.is_ready:
        return _overdue(node, "the driver is no longer ready", until, now)
    if trouble := needs.disproof(node):
        return fail(node, now, trouble)
    if needs.is_proven(node):
        ready = to(node, UpgradeState.UNCORDON_REQUIRED, now)
        return ready if node.offers_gpus else _overdue(node, "the device plugin does not offer the GPUs", until, now)
    waiting = _overdue(node, "the validation has not ended", until, now)
    return waiting if waiting.actions else Turn(validation(node), waiting.waits, until)


def uncordon(node: Node, now: float) -> Turn:
    """Give the node back, with a driver that is proven or has never been touched."""
    untouched = needs.is_untouched(node) and not needs.why(node)
    if not (untouched or needs.is_proven(node)):
        return to(node, UpgradeState.VALIDATION_REQUIRED, now, "the driver has yet to prove itself")
    lift = Cordon.LIFT if needs.owns_cordon(node) else Cordon.KEEP
    return do(replace(move(node, UpgradeState.DONE, now), cordon=lift))


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
