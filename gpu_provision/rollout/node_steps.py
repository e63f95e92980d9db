"""The actions of a node in each state: start, cordon, evict, restart the driver, validate, uncordon, leave."""

from __future__ import annotations

from dataclasses import replace

from gpu_provision.components import labels
from gpu_provision.model.rollout_policy import PodDeletion, UpgradeDrain
from gpu_provision.rollout import predicates, snapshot, states
from gpu_provision.rollout.geometry_steps import NO_REQUEST, change_geometry
from gpu_provision.rollout.node_decision import (
    IDLE,
    NodeDecision,
    act,
    deadline,
    enter_state,
    evict_newcomers,
    fail,
    remove_rollout_state,
    wait_until,
)
from gpu_provision.rollout.snapshot import (
    BudgetDomain,
    FleetNode,
    Pod,
    StackPresence,
    StateTransition,
    cordon_node,
    transition_to,
)
from gpu_provision.rollout.states import NOT_READY, UpgradeState


def validation_actions(node: FleetNode) -> tuple[snapshot.Action, ...]:
    """Return the validation of the current driver pod."""
    return (snapshot.Validate(node=node.name, driver=node.driver.uid),) if node.driver else ()


def remove_from_node(node: FleetNode, domain: BudgetDomain, now: float) -> NodeDecision:
    """Return the next actions of a leaving node, before and after its eviction."""
    match node.state:
        case UpgradeState.UNKNOWN | UpgradeState.DONE:  # a node with an obstacle gets no label
            obstacle = start_obstacle(node, domain)
            return NodeDecision(wait_reason=obstacle) if obstacle else _join_queue(node, now)
        case UpgradeState.UPGRADE_REQUIRED:
            obstacle = start_obstacle(node, domain)
            return NodeDecision(wait_reason=obstacle, is_candidate=not obstacle)
        case UpgradeState.POD_RESTART_REQUIRED:
            return _remove_stack(node, domain, now)
        case UpgradeState.VALIDATION_REQUIRED | UpgradeState.UNCORDON_REQUIRED:
            return enter_state(node, UpgradeState.POD_DELETION_REQUIRED, now, predicates.upgrade_reason(node))
        case UpgradeState.FAILED if node.stack is StackPresence.BARE or (
            node.stack is StackPresence.LABELLED and not predicates.losing_pods(node)
        ):
            return enter_state(node, UpgradeState.POD_RESTART_REQUIRED, now, "nothing is in the way any more")
        case _:
            return IDLE


def _remove_stack(node: FleetNode, domain: BudgetDomain, now: float) -> NodeDecision:
    """Remove the labels of a node without GPU pods, wait until the stack's pods have ended, and uncordon the node."""
    until = deadline(node, domain.restart_seconds)
    waits = "pods of the stack to end"
    match node.stack:
        case StackPresence.LABELLED if predicates.losing_pods(node):
            return evict_newcomers(node, now)
        case StackPresence.LABELLED:
            return NodeDecision((snapshot.RemoveLabels(node=node.name),), waits, until)
        case StackPresence.ENDING if now >= until:
            return fail(node, now, f"pods of the stack have not ended after {domain.restart_seconds} s")
        case StackPresence.ENDING:
            return NodeDecision(wait_reason=waits, until=until)
        case _:
            return remove_rollout_state(node, "the stack is off the node")


def compare_driver(node: FleetNode, now: float) -> NodeDecision:
    """Compare the driver with the desired one; resume an upgrade whose label was removed."""
    driver, is_cordoned = node.driver, predicates.owns_cordon(node)
    if not is_cordoned and (missing := _comparison_obstacle(node)):
        return NodeDecision(wait_reason=missing)
    if predicates.upgrade_reason(node):
        return _join_queue(node, now)
    if is_cordoned:
        return enter_state(node, UpgradeState.POD_RESTART_REQUIRED, now, "the label went, the cordon stayed")
    if node.state is UpgradeState.DONE or driver is None:
        return IDLE
    return (
        enter_state(node, UpgradeState.DONE, now)
        if driver.is_ready
        else NodeDecision(wait_reason="the driver is not ready yet")
    )


def _comparison_obstacle(node: FleetNode) -> str:
    if node.driver is None:
        return "" if node.has_host_driver else "has no driver pod"
    if node.driver.is_terminating:
        return "the driver pod is terminating"
    if not node.driver.has_owner and not predicates.is_forced(node):
        return f"nothing would start its driver pod again; {states.REQUESTED}=true deletes it all the same"
    return ""


def _join_queue(node: FleetNode, now: float) -> NodeDecision:
    also = {states.BEGAN_WITH: _uid_of_driver(node)}
    return act(
        transition_to(node, UpgradeState.UPGRADE_REQUIRED, now, reason=predicates.upgrade_reason(node), also=also)
    )


def _uid_of_driver(node: FleetNode) -> str | None:
    return node.driver.uid if node.driver else None


def check_queue(node: FleetNode, domain: BudgetDomain, now: float) -> NodeDecision:
    """Check whether a queued node waits only for a slot."""
    if node.driver is None and not node.has_host_driver:
        return NodeDecision(wait_reason="has no driver pod")
    has_begun = node.driver is None or states.BEGAN_WITH in node.annotations
    if node.annotations.get(states.TARGET) != node.desired.target or not has_begun:
        return act(_adopt_label(node, now))
    if not predicates.upgrade_reason(node):
        return _skip_upgrade(node, now)
    obstacle = start_obstacle(node, domain)
    return NodeDecision(wait_reason=obstacle, is_candidate=not obstacle)


def start_obstacle(node: FleetNode, domain: BudgetDomain) -> str:
    """Return why a node cannot start even with a slot; empty if it can."""
    if node.labels.get(states.SKIP) == "true":
        return f"is excluded by the label {states.SKIP}"
    if not node.is_ready:
        return "the node is NotReady"
    if node.driver is not None and node.driver.is_terminating:
        return "the driver pod is terminating"
    return "; ".join(predicates.eviction_obstacles(node, domain.policy))


def _adopt_label(node: FleetNode, now: float) -> StateTransition:
    """Adopt a state label that another client wrote; with a current driver it requests a restart."""
    by_hand = states.TARGET not in node.annotations and not predicates.upgrade_reason(node)
    forced = "true" if by_hand or predicates.is_forced(node) else None
    began_with = node.annotations.get(states.BEGAN_WITH) or _uid_of_driver(node)
    also = {states.BEGAN_WITH: began_with, states.FORCED: forced}
    return transition_to(
        node, UpgradeState.UPGRADE_REQUIRED, now, reason="asked for by label" if by_hand else "", also=also
    )


def _skip_upgrade(node: FleetNode, now: float) -> NodeDecision:
    """Handle a driver that was restarted by another client, or desired content that has changed back."""
    if predicates.owns_cordon(node):
        return enter_state(node, UpgradeState.POD_RESTART_REQUIRED, now, "the driver is already as declared")
    if predicates.is_untouched(node) or predicates.is_validated(node):
        return enter_state(node, UpgradeState.DONE, now, "the driver is already as declared")
    if trouble := predicates.validation_failure(node):
        return fail(node, now, trouble)
    return NodeDecision(validation_actions(node), "the driver was restarted by another client and has to prove itself")


def start(node: FleetNode, now: float, canary: str | None) -> StateTransition:
    """Return the transition that starts the upgrade of a node; ``canary``: the digest of a canary's content."""
    also = {
        states.BEGAN_WITH: _uid_of_driver(node),
        states.REQUESTED: None,
        states.FORCED: "true" if predicates.is_forced(node) else None,
    }
    also |= {states.CANARY: canary} if canary is not None else {}
    # A MIG manager repeats a failed configuration only after a restart, or after another value of the label, which it
    # may miss: see `change_geometry`.
    is_failed = node.desired.mig and node.labels.get(labels.MIG_STATE) == labels.MIG_FAILED
    also |= {states.MIG_MANAGER: node.mig_manager} if is_failed else {}
    move = transition_to(node, UpgradeState.CORDON_REQUIRED, now, reason=predicates.upgrade_reason(node), also=also)
    return replace(move, labels=NO_REQUEST) if is_failed else move


def cordon(node: FleetNode, now: float) -> NodeDecision:
    """Cordon the node, or record that it was cordoned before."""
    if end := _end_early(node, now):
        return end
    following = UpgradeState.WAIT_FOR_JOBS_REQUIRED
    if not node.is_cordoned or predicates.owns_cordon(node):
        return act(cordon_node(node, following, now, "cordoned"))
    whose = node.cordoned_by or "another client"
    also = {states.WAS_CORDONED: "true", states.CORDONED_BY: whose, states.CORDONED: None}
    return act(transition_to(node, following, now, reason=f"was cordoned by {whose} and stays so", also=also))


def wait_for_jobs(node: FleetNode, domain: BudgetDomain, now: float) -> NodeDecision:
    """Wait for jobs to end; after the timeout they are evicted."""
    if end := _end_early(node, now):
        return end
    running = predicates.awaited_jobs(node, domain.policy)
    until = deadline(node, domain.policy.wait_for_completion.timeout_seconds)
    if not running or now >= until:
        return enter_state(node, UpgradeState.POD_DELETION_REQUIRED, now)
    return NodeDecision(wait_reason=f"jobs: {predicates.name_pods(running)}", until=until)


def delete_pods(node: FleetNode, domain: BudgetDomain, now: float) -> NodeDecision:
    """Evict the pods that use GPUs."""
    if end := _end_early(node, now):
        return end
    holding, rules = predicates.gpu_pods(node), domain.policy.pod_deletion
    if not holding:
        return enter_state(node, UpgradeState.POD_RESTART_REQUIRED, now)
    until = deadline(node, rules.timeout_seconds)
    trouble = _eviction_problem(holding, rules, "pod_deletion", is_over=now >= until)
    if not trouble:
        return _evict(node, holding, until)
    if domain.policy.drain.enable:
        return enter_state(node, UpgradeState.DRAIN_REQUIRED, now, trouble)
    return fail(node, now, trouble)


def drain(node: FleetNode, domain: BudgetDomain, now: float) -> NodeDecision:
    """Evict all pods that the drain selects; fail if others use GPUs."""
    if end := _end_early(node, now):
        return end
    rules, holding = domain.policy.drain, predicates.gpu_pods(node)
    leaving = predicates.pods_to_drain(node, rules) if rules.enable else ()
    if not (leaving or holding):
        return enter_state(node, UpgradeState.POD_RESTART_REQUIRED, now)
    if not leaving:
        return fail(node, now, f"the drain leaves {predicates.name_pods(holding)}")
    until = deadline(node, rules.timeout_seconds)
    trouble = _eviction_problem(leaving, rules, "drain", is_over=now >= until)
    return fail(node, now, trouble) if trouble else _evict(node, leaving, until)


def _end_early(node: FleetNode, now: float) -> NodeDecision | None:
    """End the upgrade if the driver has become current; an unchanged driver needs no validation."""
    if node.driver is None or predicates.upgrade_reason(node):
        return None
    if node.desired.mig and node.labels.get(labels.MIG_STATE) != labels.MIG_SUCCESS:
        return None
    if predicates.is_untouched(node) and node.driver.is_ready:
        return enter_state(node, UpgradeState.UNCORDON_REQUIRED, now, "the driver is as declared again")
    return enter_state(node, UpgradeState.POD_RESTART_REQUIRED, now, "the driver was restarted meanwhile")


def _eviction_problem(leaving: tuple[Pod, ...], rules: PodDeletion | UpgradeDrain, key: str, *, is_over: bool) -> str:
    if obstacles := [text for pod in leaving if (text := predicates.eviction_obstacle(pod, rules, key))]:
        return "; ".join(obstacles)
    late = f"not gone after {rules.timeout_seconds} s ({key}.timeout_seconds)"
    return f"{late}: {predicates.name_pods(leaving, predicates.describe_refusal)}" if is_over else ""


def _evict(node: FleetNode, leaving: tuple[Pod, ...], until: float) -> NodeDecision:
    evictions = tuple(
        snapshot.Evict(node=node.name, namespace=pod.namespace, name=pod.name, uid=pod.uid)
        for pod in leaving
        if not pod.is_terminating
    )
    return NodeDecision(evictions, f"pods to go: {predicates.name_pods(leaving, predicates.describe_refusal)}", until)


_MAX_RESTARTS = 10  # the reference's limit


def restart(node: FleetNode, domain: BudgetDomain, now: float) -> NodeDecision:
    """Delete the driver pod once, and wait until its successor is ready."""
    until, driver = deadline(node, domain.restart_seconds), node.driver
    if node.has_host_driver and driver is None:
        return change_geometry(node, until, now)
    if driver is None or driver.is_terminating:
        waits = "the previous driver pod is terminating" if driver else "has no driver pod"
        return wait_until(node, waits, until, now)
    if not predicates.is_current(node) or predicates.is_forced(node):
        return _delete_driver(node, driver.uid, until, now)
    if node.annotations.get(states.SAFE_LOAD):
        return act(
            transition_to(node, node.state, node.state_since() or now, reason="is empty", also={states.SAFE_LOAD: None})
        )
    if driver.is_ready:
        return change_geometry(node, until, now)
    return _wait_for_driver(node, driver.restarts, until, now)


def _wait_for_driver(node: FleetNode, restarts: int, until: float, now: float) -> NodeDecision:
    if restarts > _MAX_RESTARTS:
        return fail(node, now, f"{NOT_READY}: restarted {restarts} times{_suspects(node)}")
    return wait_until(node, f"{NOT_READY}{_suspects(node)}", until, now)


def _delete_driver(node: FleetNode, uid: str, until: float, now: float) -> NodeDecision:
    """Delete the driver pod, or evict new GPU pods first; the clock continues."""
    if predicates.gpu_pods(node):
        return evict_newcomers(node, now)
    if not node.is_template_observed:
        return wait_until(node, "the DaemonSet controller has not observed the new template", until, now)
    if now >= until:
        return fail(node, now, "the previous driver pod is still there")
    return NodeDecision((snapshot.Restart(node=node.name, uid=uid),), "the driver pod to go", until)


def _suspects(node: FleetNode) -> str:
    pods = (*predicates.gpu_pods(node), *predicates.possible_gpu_pods(node))
    return f"; these may use it: {predicates.name_pods(pods, lambda pod: f'{pod} {pod.use}')}" if pods else ""


def validate(node: FleetNode, domain: BudgetDomain, now: float) -> NodeDecision:
    """Validate the driver; the uncordon requires a passed validation."""
    until = deadline(node, domain.validation_seconds)
    is_replaced = node.driver is not None and (not predicates.is_current(node) or predicates.is_forced(node))
    if is_replaced or predicates.geometry_reason(node):
        return enter_state(node, UpgradeState.POD_DELETION_REQUIRED, now, predicates.upgrade_reason(node))
    if not predicates.is_driver_ready(node):
        return wait_until(node, "the driver is no longer ready", until, now)
    if trouble := predicates.validation_failure(node):
        return fail(node, now, trouble)
    if predicates.is_validated(node):
        ready = enter_state(node, UpgradeState.UNCORDON_REQUIRED, now)
        return ready if node.offers_gpus else wait_until(node, "the device plugin does not offer the GPUs", until, now)
    waiting = wait_until(node, "the validation has not ended", until, now)
    return waiting if waiting.actions else NodeDecision(validation_actions(node), waiting.wait_reason, until)


def uncordon(node: FleetNode, now: float) -> NodeDecision:
    """Uncordon the node, whose driver is validated or unchanged."""
    untouched = predicates.is_untouched(node) and not predicates.upgrade_reason(node)
    if not (untouched or predicates.is_validated(node)):
        return enter_state(node, UpgradeState.VALIDATION_REQUIRED, now, "the driver has yet to prove itself")
    lift = snapshot.Cordon.LIFT if predicates.owns_cordon(node) else snapshot.Cordon.KEEP
    return act(replace(transition_to(node, UpgradeState.DONE, now), cordon=lift))


def fail_canary(node: FleetNode, now: float) -> NodeDecision:
    """Fail a canary that is not healthy in its soak time."""
    unready = "the driver is not ready" if node.is_ready else "the node is NotReady"
    trouble = predicates.validation_failure(node) or unready
    return fail(node, now, f"did not stay well as a canary: {trouble}")


def recover(node: FleetNode, now: float) -> NodeDecision:
    """Retry a failed node if its content has changed; a recovered driver is validated, unlike in the GPU Operator."""
    driver, uid = node.driver, _uid_of_driver(node)
    if driver is None and not node.has_host_driver:
        return IDLE
    if driver is not None and driver.is_terminating:
        return IDLE
    tried = node.annotations.get(states.TARGET, node.desired.target)
    is_behind = not predicates.is_current(node) or predicates.requests_other_geometry(node)
    if node.has_flag(states.REQUESTED) or (tried != node.desired.target and is_behind):
        return act(retry(node, now))
    # A driver that failed its validation is not validated again without a change.
    failed_to_prove = node.annotations.get(states.FAILED_IN) == UpgradeState.VALIDATION_REQUIRED
    is_same = failed_to_prove and node.annotations.get(states.FAILED_WITH) == uid
    is_unchanged = is_same and not (predicates.is_validated(node) and node.offers_gpus)
    if predicates.upgrade_reason(node) or not predicates.is_healthy(node) or is_unchanged:
        return IDLE
    if node.is_cordoned:
        return enter_state(node, UpgradeState.VALIDATION_REQUIRED, now, "the driver has become ready")
    return act(cordon_node(node, UpgradeState.VALIDATION_REQUIRED, now, "the driver has become ready"))


def retry(node: FleetNode, now: float) -> StateTransition:
    """Return the transition that retries a failed node from the beginning.

    A node that is in the inventory again keeps its driver. A crashed pod is replaced: its restarts would count, and the
    kubelet delays the next one for minutes.
    """
    could_not_leave = node.annotations.get(states.TARGET) == snapshot.NO_DRIVER.digest
    if could_not_leave and predicates.is_untouched(node) and not predicates.upgrade_reason(node):
        return transition_to(node, UpgradeState.UNCORDON_REQUIRED, now, reason="is in the inventory again")
    also = {states.BEGAN_WITH: _uid_of_driver(node)}
    if node.driver and node.driver.has_crashed:
        also[states.FORCED] = "true"
    return transition_to(node, UpgradeState.UPGRADE_REQUIRED, now, reason="once more", also=also)
