"""Which pods of a DaemonSet to create and to delete, and its status (pure)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.controllers.node_filters import (
    NO_EXECUTE,
    NO_SCHEDULE,
    UNSCHEDULABLE_TAINT,
    NodeView,
    find_untolerated,
    matches_node,
    pinned_nodes,
)

HASH_LABEL = "controller-revision-hash"
_GENERATION_LABEL = "pod-template-generation"
_GENERATION_ANNOTATION = "deprecated.daemonset.template.generation"

_TOLERATED: tuple[tuple[str, str], ...] = (
    ("node.kubernetes.io/not-ready", NO_EXECUTE),
    ("node.kubernetes.io/unreachable", NO_EXECUTE),
    ("node.kubernetes.io/disk-pressure", NO_SCHEDULE),
    ("node.kubernetes.io/memory-pressure", NO_SCHEDULE),
    ("node.kubernetes.io/pid-pressure", NO_SCHEDULE),
    (UNSCHEDULABLE_TAINT, NO_SCHEDULE),
)
_TOLERATED_ON_HOST_NETWORK = ("node.kubernetes.io/network-unavailable", NO_SCHEDULE)


class Eligibility(NamedTuple):
    """Whether a node gets a pod, and whether a pod that is there may stay."""

    runs: bool
    stays: bool


@dataclass(slots=True)
class Placement:
    """What to do now: node names to create pods on, pods to delete, finished pods to replace."""

    create: list[str] = field(default_factory=list)
    delete: list[Object] = field(default_factory=list)
    finished: list[Object] = field(default_factory=list)


def tolerations(template_spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the template's tolerations with those that every DaemonSet pod gets."""
    automatic = [*_TOLERATED]
    if template_spec.get("hostNetwork"):
        automatic.append(_TOLERATED_ON_HOST_NETWORK)
    result = list(template_spec.get("tolerations") or ())
    for key, effect in automatic:
        added = {"key": key, "operator": "Exists", "effect": effect}
        if added not in result:
            result.append(added)
    return result


def judge_node(template_spec: Mapping[str, Any], view: NodeView) -> Eligibility:
    """Decide on one node by name, selectors, affinity and taints."""
    wanted = template_spec.get("nodeName")
    if (wanted and wanted != view.name) or not matches_node(template_spec, view):
        return Eligibility(runs=False, stays=False)
    tolerated = tolerations(template_spec)
    if find_untolerated(tolerated, view.taints) is None:
        return Eligibility(runs=True, stays=True)
    return Eligibility(runs=False, stays=find_untolerated(tolerated, view.taints, (NO_EXECUTE,)) is None)


def target_node(pod: Object) -> str:
    """Return the node that a pod of a DaemonSet runs on or is pinned to; empty if neither is known."""
    bound = objects.node_of(pod)
    if bound:
        return bound
    pinned = pinned_nodes(pod["spec"])
    return next(iter(pinned)) if pinned and len(pinned) == 1 else ""


def group_by_node(pods: Iterable[Object]) -> dict[str, list[Object]]:
    """Group the pods of a DaemonSet by node, the oldest first."""
    result: dict[str, list[Object]] = {}
    for pod in pods:
        result.setdefault(target_node(pod), []).append(pod)
    for on_node in result.values():
        if len(on_node) > 1:
            on_node.sort(key=_age)
    return result


def _age(pod: Object) -> tuple[bool, str, str]:
    return not objects.node_of(pod), objects.created(pod), objects.name(pod)


def plan_placement(nodes: Mapping[str, Eligibility], pods: Mapping[str, Sequence[Object]]) -> Placement:
    """Decide what each node lacks and what is too much on it."""
    result = Placement()
    for name, node in nodes.items():
        on_node = pods.get(name, ())
        if node.runs and not on_node:
            result.create.append(name)
        elif not node.stays:
            result.delete += [pod for pod in on_node if not objects.is_deleting(pod)]
        elif on_node:
            _judge_pods(on_node, result)
    for name, on_node in pods.items():
        if name not in nodes:
            result.delete += [pod for pod in on_node if not objects.is_deleting(pod)]
    return result


def _judge_pods(on_node: Sequence[Object], result: Placement) -> None:
    working: list[Object] = []
    for pod in on_node:
        if objects.is_deleting(pod):
            continue
        (result.finished if objects.is_finished(pod) else working).append(pod)
    result.delete += working[1:]


def max_unavailable(daemon_set: Object) -> int | str:
    """Return how many pods a rolling update may miss; surging is left out, so maxSurge counts as that."""
    rolling = (daemon_set["spec"].get("updateStrategy") or {}).get("rollingUpdate") or {}
    allowed: int | str = rolling.get("maxUnavailable", 1)
    return (rolling.get("maxSurge") or 1) if allowed in {0, "0%"} else allowed


def select_outdated(
    daemon_set: Object,
    nodes: Mapping[str, Eligibility],
    pods: Mapping[str, Sequence[Object]],
    is_current: Callable[[Object], bool],
) -> list[Object]:
    """Return the outdated pods that a rolling update may delete now.

    That includes pods on nodes whose taints the present template does not tolerate: they do not return.
    """
    wanted = [name for name, node in nodes.items() if node.runs]
    allowed = objects.resolve_percentage(max_unavailable(daemon_set), len(wanted), up=True, default=1)
    unavailable = 0
    broken: list[Object] = []
    candidates: list[Object] = []
    for name in {**dict.fromkeys(wanted), **pods}:
        pod = _only_working(pods.get(name, ()))
        if pod is None:
            unavailable += 1
            continue
        available = objects.is_ready(pod)
        unavailable += not available
        if is_current(pod):
            continue
        (candidates if available else broken).append(pod)
    return broken + candidates[: max(allowed - unavailable, 0)]


def _only_working(on_node: Sequence[Object]) -> Object | None:
    working = [pod for pod in on_node if objects.is_active(pod)]
    return working[0] if len(working) == 1 else None


def count_status(
    nodes: Mapping[str, Eligibility], pods: Mapping[str, Sequence[Object]], is_current: Callable[[Object], bool]
) -> dict[str, int | None]:
    """Count the DaemonSet's status; fields that the API omits when they are 0 are None then."""
    desired = current = misscheduled = ready = updated = 0
    for name, node in nodes.items():
        on_node = pods.get(name, ())
        if not node.runs:
            misscheduled += bool(on_node)
            continue
        desired += 1
        if not on_node:
            continue
        current += 1
        first = on_node[0]
        ready += objects.is_ready(first)
        updated += is_current(first)
    return {
        "desiredNumberScheduled": desired,
        "currentNumberScheduled": current,
        "numberMisscheduled": misscheduled,
        "numberReady": ready,
        "updatedNumberScheduled": updated or None,
        "numberAvailable": ready or None,
        "numberUnavailable": (desired - ready) or None,
    }


def _template_generation(daemon_set: Object) -> str:
    """Return the deprecated template generation; empty if the API server keeps none."""
    return objects.annotations_of(daemon_set).get(_GENERATION_ANNOTATION, "")


def build_pod(daemon_set: Object, revision: str, node: str) -> Object:
    """Return the pod that a DaemonSet creates for a node, pinned to it by node affinity."""
    pod = objects.pod_from_template(daemon_set["spec"]["template"], daemon_set)
    pod["metadata"]["labels"][HASH_LABEL] = revision
    generation = _template_generation(daemon_set)
    if generation:
        pod["metadata"]["labels"][_GENERATION_LABEL] = generation
    spec = pod["spec"]
    spec["tolerations"] = copy.deepcopy(tolerations(spec))
    affinity = spec["affinity"] = dict(spec.get("affinity") or {})
    by_name = {"key": "metadata.name", "operator": "In", "values": [node]}
    affinity["nodeAffinity"] = {
        **(affinity.get("nodeAffinity") or {}),
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [by_name]}]},
    }
    return pod
