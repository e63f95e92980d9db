"""Cordoning a node, waiting for its jobs, and evicting what uses its driver."""

from __future__ import annotations

from gpu_provision.model.upgrade import PodDeletion, UpgradeDrain
from gpu_provision.rollout import needs, pods, states
from gpu_provision.rollout.actions import move
from gpu_provision.rollout.snapshot import Domain, Node, Pod
from gpu_provision.rollout.states import UpgradeState
from gpu_provision.rollout.turn import Turn, cordoned, deadline, do, fail, to


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
