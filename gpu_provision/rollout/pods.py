"""Which pods of a node are in the way of its driver, and which of those must not be evicted. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from gpu_provision.model.rollout_policy import PodDeletion, UpgradeDrain, UpgradePolicy
from gpu_provision.model.selectors import parse_selector
from gpu_provision.rollout import states
from gpu_provision.rollout.actions import Evict
from gpu_provision.rollout.snapshot import Node, Pod, Use

_CERTAIN = frozenset({Use.REQUEST, Use.CLAIM})
_UNKNOWN = frozenset({Use.NONE, Use.SOME_CLAIM})


def holders(node: Node) -> tuple[Pod, ...]:
    """Return the pods that have to be gone before the driver is replaced.

    A DaemonSet's pod that merely may use GPUs, such as a monitor with the runtime class, is no holder: evicting it is
    of no use, and keeping every driver because of it would be worse. Nor is one whose claim nobody could look at: it
    may be to a network card.
    """
    alive = (pod for pod in node.pods if not pod.is_over and pod.use not in _UNKNOWN)
    return tuple(pod for pod in alive if not pod.is_daemon or pod.use in _CERTAIN)


def suspects(node: Node) -> tuple[Pod, ...]:
    """Return the pods that stay although they may use GPUs: where a driver cannot be unloaded, these come first."""
    held = holders(node)
    return tuple(pod for pod in node.pods if pod.use is not Use.NONE and not pod.is_over and pod not in held)


def jobs(node: Node, policy: UpgradePolicy) -> tuple[Pod, ...]:
    """Return the pods whose end the node waits for."""
    selector = policy.wait_for_completion.pod_selector
    if not selector:
        return ()
    selects = parse_selector(selector)
    return tuple(pod for pod in node.pods if not pod.is_over and selects(pod.labels))


def drained(node: Node, drain: UpgradeDrain) -> tuple[Pod, ...]:
    """Return the pods that draining the node evicts."""
    selects = parse_selector(drain.pod_selector)
    alive = (pod for pod in node.pods if not pod.is_over and not pod.is_daemon)
    return tuple(pod for pod in alive if selects(pod.labels) and pod.labels.get(states.DRAIN_SKIP) != "true")


def obstacle(pod: Pod, rules: PodDeletion | UpgradeDrain, key: str) -> str:
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


def obstacles(node: Node, policy: UpgradePolicy) -> tuple[str, ...]:
    """Say what would make the eviction of GPU pods fail, were it to begin now; jobs may end before it does."""
    waited_for = jobs(node, policy)
    return tuple(
        found for pod in holders(node) if pod not in waited_for if (found := _obstacle_to_both(pod, node, policy))
    )


def _obstacle_to_both(pod: Pod, node: Node, policy: UpgradePolicy) -> str:
    found = obstacle(pod, policy.pod_deletion, "pod_deletion")
    if not (found and policy.drain.enable):
        return found
    if pod not in drained(node, policy.drain):
        return f"{pod} is exempt from the drain" if not pod.is_daemon else found
    return obstacle(pod, policy.drain, "drain")


def evictions(node: Node, pods: Iterable[Pod]) -> Iterator[Evict]:
    """Yield the evictions that are still to be asked for."""
    for pod in pods:
        if not pod.is_terminating:
            yield Evict(node=node.name, namespace=pod.namespace, name=pod.name, uid=pod.uid)


def named(pods: Iterable[Pod], say: Callable[[Pod], str] = str) -> str:
    """Return pods as a short list: the first three, and how many more."""
    names = [say(pod) for pod in pods]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


_SHOWN = 3


def with_refusal(pod: Pod) -> str:
    """Return a pod with what keeps it: the answer of the API server, or that it is still ending."""
    if pod.refusal:
        return f"{pod}: {pod.refusal}"
    return f"{pod}: is still terminating" if pod.is_terminating else str(pod)
