"""Facts about one node: whether its driver has to be replaced or validated, and which pods block that."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gpu_provision.components import labels
from gpu_provision.model.label_selectors import parse_selector
from gpu_provision.model.rollout_policy import PodDeletion, UpgradeDrain, UpgradePolicy
from gpu_provision.model.text import join_limited
from gpu_provision.rollout import states
from gpu_provision.rollout.snapshot import FleetNode, GpuUse, Pod, StackPresence
from gpu_provision.rollout.states import EARLY, LATE, UpgradeState

_CORDONED_BY_THE_REFERENCE = (EARLY | LATE | {UpgradeState.FAILED}) - {UpgradeState.CORDON_REQUIRED}


def is_current(node: FleetNode) -> bool:
    """Whether the node has the desired driver: a pod with the desired installation digest, or its own."""
    if node.driver is None:
        return node.has_host_driver
    return node.driver.digest == node.desired.digest


def is_driver_ready(node: FleetNode) -> bool:
    """Whether the driver pod is ready and stays; true for a host driver."""
    if node.driver is None:
        return node.has_host_driver
    return node.driver.is_ready and not node.driver.is_terminating


def is_forced(node: FleetNode) -> bool:
    """Whether a current driver pod has to be replaced anyway."""
    if node.has_flag(states.REQUESTED):
        return True
    began_with = node.annotations.get(states.BEGAN_WITH)
    return node.has_flag(states.FORCED) and node.driver is not None and node.driver.uid == began_with


def upgrade_reason(node: FleetNode) -> str:
    """Return why a node's driver has to be replaced or removed, or its MIG devices; empty if neither."""
    return node.leaves_because if node.is_leaving else driver_reason(node) or geometry_reason(node)


def requests_other_geometry(node: FleetNode) -> bool:
    """Whether a node requests another MIG configuration than the desired one."""
    return bool(node.desired.mig) and node.labels.get(labels.MIG_CONFIG) != node.desired.mig


def geometry_reason(node: FleetNode) -> str:
    """Return why a node with a driver needs other MIG devices; empty if it does not.

    A failure during an upgrade fails the upgrade, a failure before it is a reason for one.
    """
    if not node.desired.mig or (node.driver is None and not node.has_host_driver):
        return ""
    if requests_other_geometry(node):
        return f"MIG configuration {node.labels.get(labels.MIG_CONFIG, 'none')} -> {node.desired.mig}"
    is_failed = node.labels.get(labels.MIG_STATE) == labels.MIG_FAILED and node.state not in EARLY | LATE
    return f"MIG configuration {node.desired.mig} could not be applied" if is_failed else ""


def driver_reason(node: FleetNode) -> str:
    """Return why the driver pod of a node that stays has to be replaced; empty if it has not."""
    if node.driver is None:
        return ""
    if not is_current(node):
        return f"desired driver {node.desired.version}" if node.desired.version else "driver configuration changed"
    if is_forced(node):
        return "the driver pod has crashed" if node.driver.has_crashed else "a restart was asked for"
    if node.annotations.get(states.SAFE_LOAD):
        return "the driver waits for an empty node before it loads"
    return "the driver cannot be installed while pods use the one that is loaded" if node.driver.is_held_up else ""


def is_untouched(node: FleetNode) -> bool:
    """Whether the driver pod is the one from before the upgrade."""
    return node.driver is not None and node.driver.uid == node.annotations.get(states.BEGAN_WITH)


def validation_failure(node: FleetNode) -> str:
    """Return why the validation of the current driver pod failed; empty if it has passed, or not ended."""
    proof = node.validation_result
    if proof is None:
        return ""
    if not proof.passed:
        return f"the validation failed: {proof.reason}" if proof.reason else "the validation failed"
    if proof.version and node.desired.version and proof.version != node.desired.version:
        return f"driver {proof.version} is loaded, desired: {node.desired.version}"
    return ""


def is_validated(node: FleetNode) -> bool:
    """Whether the current driver pod has the desired content and a passed validation."""
    return is_current(node) and node.validation_result is not None and not validation_failure(node)


def is_healthy(node: FleetNode) -> bool:
    """Whether the node is Ready, with the desired driver ready and no failed validation."""
    return node.is_ready and is_driver_ready(node) and is_current(node) and not validation_failure(node)


def has_rollout_metadata(node: FleetNode) -> bool:
    """Whether a node has a label or annotation of a rollout."""
    return states.STATE in node.labels or any(key in node.annotations for key in states.ALL_ANNOTATIONS)


def owns_cordon(node: FleetNode) -> bool:
    """Whether the rollout may lift a node's cordon: it has set the cordon, and no other manager has since."""
    return node.is_cordoned and states.is_of_rollout(node.annotations, node.cordoned_by)


def inherits_cordon(node: FleetNode) -> bool:
    """Whether the GPU Operator cordoned a node for an upgrade that this tool resumes; its cordons have no mark."""
    is_own = states.CORDONED in node.annotations or states.TARGET in node.annotations
    is_for_reboot = labels.CORDONED in node.annotations  # the host phase lifts this cordon
    is_foreign = node.is_cordoned and not node.has_flag(states.WAS_CORDONED) and not is_for_reboot
    return is_foreign and not is_own and node.state in _CORDONED_BY_THE_REFERENCE


_CERTAIN = frozenset({GpuUse.REQUEST, GpuUse.CLAIM})
_UNKNOWN = frozenset({GpuUse.NONE, GpuUse.SOME_CLAIM})


def gpu_pods(node: FleetNode) -> tuple[Pod, ...]:
    """Return the pods that have to end before the driver is replaced.

    A DaemonSet's pod that only may use GPUs, such as a monitor with the runtime class, does not count, as an eviction
    does not remove it. Nor does a pod whose claim could not be read: the claim may be to a network card.
    """
    alive = (pod for pod in node.pods if not pod.is_finished and pod.use not in _UNKNOWN)
    return tuple(pod for pod in alive if not pod.is_daemon or pod.use in _CERTAIN)


def possible_gpu_pods(node: FleetNode) -> tuple[Pod, ...]:
    """Return the pods that are not evicted although they may use GPUs: the suspects if a driver cannot be unloaded."""
    certain = gpu_pods(node)
    return tuple(pod for pod in node.pods if pod.use is not GpuUse.NONE and not pod.is_finished and pod not in certain)


def awaited_jobs(node: FleetNode, policy: UpgradePolicy) -> tuple[Pod, ...]:
    """Return the pods of jobs that the node waits for."""
    selector = policy.wait_for_completion.pod_selector
    if not selector:
        return ()
    selects = parse_selector(selector)
    return tuple(pod for pod in node.pods if not pod.is_finished and selects(pod.labels))


def pods_to_drain(node: FleetNode, drain: UpgradeDrain) -> tuple[Pod, ...]:
    """Return the pods that a drain of the node evicts."""
    selects = parse_selector(drain.pod_selector)
    alive = (pod for pod in node.pods if not pod.is_finished and not pod.is_daemon)
    return tuple(pod for pod in alive if selects(pod.labels) and pod.labels.get(states.DRAIN_SKIP) != "true")


def eviction_obstacle(pod: Pod, rules: PodDeletion | UpgradeDrain, key: str) -> str:
    """Return why a pod may not be evicted under these rules, the inventory's ``key``; empty if it may."""
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
    """Return what blocks the eviction of GPU pods, except for jobs, which may end before."""
    troubles, waited_for = list[str](), awaited_jobs(node, policy)
    for pod in (pod for pod in gpu_pods(node) if pod not in waited_for):
        trouble = eviction_obstacle(pod, policy.pod_deletion, "pod_deletion")
        if trouble and policy.drain.enable and not pod.is_daemon:  # the drain comes after the eviction
            is_drained = pod in pods_to_drain(node, policy.drain)
            trouble = eviction_obstacle(pod, policy.drain, "drain") if is_drained else f"{pod} is exempt from the drain"
        troubles += [trouble] if trouble else []
    return tuple(troubles)


def name_pods(pods: Iterable[Pod], say: Callable[[Pod], str] = str) -> str:
    """Return the names of the first three pods, and how many more."""
    return join_limited(map(say, pods), 3)


def describe_refusal(pod: Pod) -> str:
    """Return a pod's name with the API server's refusal of its eviction, or that the pod is terminating."""
    return f"{pod}: {pod.refusal or 'is still terminating'}" if pod.refusal or pod.is_terminating else str(pod)


def losing_pods(node: FleetNode) -> tuple[Pod, ...]:
    """Return the pods that would lose a GPU, without terminating ones on a NotReady node."""
    return tuple(pod for pod in gpu_pods(node) if node.is_ready or not pod.is_terminating)


def is_free(node: FleetNode) -> bool:
    """Whether a node without a driver of the stack needs no eviction, so that its labels may be written.

    A leaving node is free if no pod would lose a GPU and no eviction has begun. A node of the inventory has a host
    driver.
    """
    if not node.is_leaving:
        return True
    is_begun = node.state in EARLY | LATE or owns_cordon(node)
    return not is_begun and (node.stack is not StackPresence.LABELLED or not losing_pods(node))
