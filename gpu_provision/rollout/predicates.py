"""What can be read off one node: whether its driver has to be replaced or proven, and which pods are in the way."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gpu_provision.components import labels
from gpu_provision.model.rollout_policy import PodDeletion, UpgradeDrain, UpgradePolicy
from gpu_provision.model.selectors import parse_selector
from gpu_provision.model.text import join_limited
from gpu_provision.rollout import states
from gpu_provision.rollout.snapshot import FleetNode, GpuUse, Pod, StackPresence
from gpu_provision.rollout.states import EARLY, LATE, UpgradeState

_CORDONED_BY_THE_REFERENCE = (EARLY | LATE | {UpgradeState.FAILED}) - {UpgradeState.CORDON_REQUIRED}


def is_current(node: FleetNode) -> bool:
    """Whether the driver pod is as wanted. A pod template may differ in what the installation does not depend on."""
    return node.driver is not None and node.driver.digest == node.wanted.digest


def is_forced(node: FleetNode) -> bool:
    """Whether a pod that is as wanted has to be replaced all the same."""
    if node.says(states.REQUESTED):
        return True
    began_with = node.annotations.get(states.BEGAN_WITH)
    return node.says(states.FORCED) and node.driver is not None and node.driver.uid == began_with


def upgrade_reason(node: FleetNode) -> str:
    """Say why a node has to be emptied, before its driver is brought up again or goes; empty if it has not."""
    if node.is_leaving:
        return "no longer in the inventory"
    if node.driver is None:
        return ""
    if not is_current(node):
        return f"driver {node.wanted.version} is wanted" if node.wanted.version else "other content is wanted"
    if is_forced(node):
        return "the driver pod has crashed" if node.driver.has_crashed else "a restart was asked for"
    if node.annotations.get(states.SAFE_LOAD):
        return "the driver waits for an empty node before it loads"
    return "the driver cannot be installed while pods use the one that is loaded" if node.driver.is_held_up else ""


def is_untouched(node: FleetNode) -> bool:
    """Whether the driver pod is still the one that the upgrade found."""
    return node.driver is not None and node.driver.uid == node.annotations.get(states.BEGAN_WITH)


def validation_failure(node: FleetNode) -> str:
    """Say what validation found wrong with the driver pod that is there now; empty if nothing, or not yet."""
    found = node.proof
    if found is None:
        return ""
    if not found.passed:
        return f"the validation failed: {found.reason}" if found.reason else "the validation failed"
    if found.version and node.wanted.version and found.version != node.wanted.version:
        return f"driver {found.version} is loaded, {node.wanted.version} is wanted"
    return ""


def is_proven(node: FleetNode) -> bool:
    """Whether exactly the wanted driver has been shown to work in the pod that is there now."""
    return is_current(node) and node.proof is not None and not validation_failure(node)


def is_healthy(node: FleetNode) -> bool:
    """Whether the node does its work with the wanted driver, as far as can be seen."""
    ready = node.driver is not None and node.driver.is_ready and not node.driver.is_terminating
    return node.is_ready and ready and is_current(node) and not validation_failure(node)


def is_marked(node: FleetNode) -> bool:
    """Whether a rollout has written anything on a node."""
    return states.STATE in node.labels or any(key in node.annotations for key in states.ALL_ANNOTATIONS)


def owns_cordon(node: FleetNode) -> bool:
    """Whether a node's cordon is ours to lift: it is marked so, and no other manager has set it since."""
    return node.is_cordoned and states.is_of_rollout(node.annotations, node.cordoned_by)


def inherits_cordon(node: FleetNode) -> bool:
    """Whether the reference cordoned a node for an upgrade that we go on with; it has no mark for its cordons."""
    ours = states.CORDONED in node.annotations or states.TARGET in node.annotations
    is_for_reboot = labels.CORDONED in node.annotations  # which the host phase lifts, in this run or the next
    theirs = node.is_cordoned and not node.says(states.WAS_CORDONED) and not is_for_reboot
    return theirs and not ours and node.state in _CORDONED_BY_THE_REFERENCE


_CERTAIN = frozenset({GpuUse.REQUEST, GpuUse.CLAIM})
_UNKNOWN = frozenset({GpuUse.NONE, GpuUse.SOME_CLAIM})


def gpu_pods(node: FleetNode) -> tuple[Pod, ...]:
    """Return the pods that have to be gone before the driver is replaced.

    A DaemonSet's pod that merely may use GPUs, such as a monitor with the runtime class, is no holder: evicting it is
    of no use, and keeping every driver because of it would be worse. Nor is one whose claim could not be read: it
    may be to a network card.
    """
    alive = (pod for pod in node.pods if not pod.is_over and pod.use not in _UNKNOWN)
    return tuple(pod for pod in alive if not pod.is_daemon or pod.use in _CERTAIN)


def possible_gpu_pods(node: FleetNode) -> tuple[Pod, ...]:
    """Return the pods that stay although they may use GPUs: where a driver cannot be unloaded, these come first."""
    held = gpu_pods(node)
    return tuple(pod for pod in node.pods if pod.use is not GpuUse.NONE and not pod.is_over and pod not in held)


def awaited_jobs(node: FleetNode, policy: UpgradePolicy) -> tuple[Pod, ...]:
    """Return the pods whose end the node waits for."""
    selector = policy.wait_for_completion.pod_selector
    if not selector:
        return ()
    selects = parse_selector(selector)
    return tuple(pod for pod in node.pods if not pod.is_over and selects(pod.labels))


def pods_to_drain(node: FleetNode, drain: UpgradeDrain) -> tuple[Pod, ...]:
    """Return the pods that draining the node evicts."""
    selects = parse_selector(drain.pod_selector)
    alive = (pod for pod in node.pods if not pod.is_over and not pod.is_daemon)
    return tuple(pod for pod in alive if selects(pod.labels) and pod.labels.get(states.DRAIN_SKIP) != "true")


def eviction_obstacle(pod: Pod, rules: PodDeletion | UpgradeDrain, key: str) -> str:
    """Say why a pod may not be evicted under these rules, which the inventory has under ``key``; empty if it may."""
    if pod.is_terminating:
        return ""
    if pod.is_daemon:
        return f"{pod} would be started again on this node at once"
    if not pod.owner and not rules.force:
        return f"{pod} has no controller that would start it elsewhere, and {key}.force is off"
    if pod.has_empty_dir and not rules.delete_empty_dir:
        return f"{pod} keeps data in an emptyDir, and {key}.delete_empty_dir is off"
    return ""


def eviction_obstacles(node: FleetNode, policy: UpgradePolicy) -> tuple[str, ...]:
    """Say what would make the eviction of GPU pods fail, were it to begin now; jobs may end before it does."""
    found, waited_for = list[str](), awaited_jobs(node, policy)
    for pod in (pod for pod in gpu_pods(node) if pod not in waited_for):
        trouble = eviction_obstacle(pod, policy.pod_deletion, "pod_deletion")
        if trouble and policy.drain.enable and not pod.is_daemon:  # the drain takes what is left
            is_drained = pod in pods_to_drain(node, policy.drain)
            trouble = eviction_obstacle(pod, policy.drain, "drain") if is_drained else f"{pod} is exempt from the drain"
        found += [trouble] if trouble else []
    return tuple(found)


def name_pods(pods: Iterable[Pod], say: Callable[[Pod], str] = str) -> str:
    """Return pods as a short list: the first three, and how many more."""
    return join_limited(map(say, pods), 3)


def with_refusal(pod: Pod) -> str:
    """Return a pod with what keeps it: the answer of the API server, or that it is still ending."""
    return f"{pod}: {pod.refusal or 'is still terminating'}" if pod.refusal or pod.is_terminating else str(pod)


def losing_pods(node: FleetNode) -> tuple[Pod, ...]:
    """Return the pods that would lose a GPU. On a NotReady node those that are being deleted have lost it already."""
    return tuple(pod for pod in gpu_pods(node) if node.is_ready or not pod.is_terminating)


def is_free(node: FleetNode) -> bool:
    """Whether a node that is to have no driver of the stack needs no emptying, so that its labels may be written.

    One that left has no pod that would lose a GPU, and is not being emptied. One that is in the inventory has a driver
    of its own.
    """
    if not node.is_leaving:
        return True
    is_begun = node.state in EARLY | LATE or owns_cordon(node)
    return not is_begun and (node.stack is not StackPresence.LABELLED or not losing_pods(node))
