"""Where every component stands on every node, read off one observation; pure, without clocks or memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gpu_provision.components import labels, node_labels
from gpu_provision.components.device_plugin_validation import NAME as DEVICE_PLUGIN_VALIDATION
from gpu_provision.components.pods import first_untolerated
from gpu_provision.diagnostics import pods as pod_view
from gpu_provision.model.cluster import Context, Manifest, ObjectRef, Target, ref_of
from gpu_provision.model.progress import NodeState, State
from gpu_provision.planning import node_validation
from gpu_provision.planning.applyset import belongs, component_of, digest_of, selects
from gpu_provision.planning.node_patches import node_patch
from gpu_provision.planning.observed import NodeObjects, ObservedState
from gpu_provision.planning.upgrades import (
    AT_WORK,
    DRIVER,
    OUTDATED,
    has_installed,
    has_stale_rollout,
    is_kept,
    is_rolled_out,
    keep_groups,
    nodes_that_stay,
    postpone_validation,
    upgrade_of,
    with_upgrade,
)
from gpu_provision.planning.validation import (
    REPEATED,
    RUNS_IN,
    VALIDATIONS,
    count_problem,
    doubt,
    gpu_text,
    last_verdict,
    verdict_of,
)

Desired = Mapping[str, Sequence[Manifest]]
"""Component name -> its manifests, in dependency order, marked as members."""


Key = tuple[str, str]
"""Component and node; the node is empty for what is not per node."""


TO_BE_LABELLED = "labels are not written yet"
"""Reason of the state of a node that NFD has labelled and we have not."""


LEFT = "no longer in the inventory"
"""Beginning of the reason of the state of a node that left the inventory, and that the stack has yet to leave."""


NO_NODE = "the cluster has no node of this name"
"""Reason of every state on a node that has not joined the cluster."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """Everything that states are read off: pods by component and node, and the labels each node is to have."""

    context: Context
    desired: Desired
    observed: ObservedState
    pods: Mapping[Key, tuple[Manifest, ...]] = field(default_factory=dict)
    node_labels: Mapping[str, dict[str, str | None]] = field(default_factory=dict)
    """In the end; ``desired`` has those for now, see `planning.upgrades`."""
    parts: Mapping[str, NodeObjects] = field(default_factory=dict)
    """Of ``desired``, see `per_node`."""


def cluster_state(
    context: Context, desired: Desired, observed: ObservedState, parts: Mapping[str, NodeObjects] | None = None
) -> ClusterState:
    """Index an observation for reading states off it.

    Args:
        context: What manifests were made from.
        desired: Those manifests.
        observed: What was seen.
        parts: Of ``desired``, if that is known already.
    """
    wanted = {item["metadata"]["name"]: item["metadata"]["labels"] for item in desired.get("node_labels", ())}
    by_key = _by_key(observed.pods.values())
    known = per_node(desired) if parts is None else parts
    if stay := nodes_that_stay(context.targets, desired, by_key):
        desired = keep_groups(desired, stay)
        known = {**known, "node_labels": _on_nodes(desired["node_labels"])}
    if expired := node_validation.expired_labels(context, desired, known, observed, by_key):
        desired = node_validation.without_labels(desired, expired)
        known = {**known, "node_labels": _on_nodes(desired["node_labels"])}
    return ClusterState(context, desired, observed, by_key, wanted, known)


def _by_key(pods: Iterable[Manifest]) -> dict[Key, tuple[Manifest, ...]]:
    found: dict[Key, list[Manifest]] = {}
    for pod in pods:
        # Without calls: there are thousands of pods, and each look groups them.
        node, marks = pod["spec"].get("nodeName"), pod["metadata"].get("labels") or {}
        key = (str(marks.get(labels.COMPONENT, "")), node) if node else key_of(pod)
        found.setdefault(key, []).append(pod)
    return {key: tuple(each) for key, each in found.items()}


def key_of(pod: Manifest) -> Key:
    """Return component and node of a pod."""
    return component_of(pod), pod_view.node_of(pod)


def states(seen: ClusterState, on_nodes: Mapping[str, Mapping[str, NodeState]] | None = None) -> dict[Key, NodeState]:
    """Return the state of every component as a whole (node ``""``) and on every node that it concerns.

    Args:
        on_nodes: Node -> component -> its state there, if that is known already; see `states_of`.
    """
    if on_nodes is None:
        on_nodes = {target.name: states_of(target, seen) for target in seen.context.targets}
    found: dict[Key, NodeState] = {}
    for component in seen.desired:
        found[component, ""] = shared_state(component, seen)
        for node, own in on_nodes.items():
            if component in own:
                found[component, node] = own[component]
    return found | states_of_leaving(seen)


def inputs_of_states(seen: ClusterState) -> dict[str, tuple[object, ...]]:
    """Return for each target all of a situation that `states_of` reads: while it is equal, so are the states."""
    observed, components, runs_in = seen.observed, tuple(seen.desired), tuple(RUNS_IN)
    shared = (components, [part.daemonsets for part in seen.parts.values()], tuple(seen.parts), seen.context.part)
    single = [part.single for part in seen.parts.values() if part.single]
    found: dict[str, tuple[object, ...]] = {}
    for target in seen.context.targets:
        node = target.name
        pods = [seen.pods.get((component, node)) for component in components]
        own = [each.get(node) for each in single]
        passed = [observed.passed.get((component, node)) for component in runs_in]
        found[node] = (target, pods, own, seen.node_labels.get(node), passed, observed.void, shared)
    return found


def states_of_leaving(seen: ClusterState) -> dict[Key, NodeState]:
    """Return the states of nodes that left the inventory. Whether pods of others use their GPUs is not known here."""
    return {
        (node_labels.NAME, node.name): NodeState(
            component=node_labels.NAME, node=node.name, state=State.LEAVING, reason=": ".join((LEFT, *upgrade_of(node)))
        )
        for node in node_labels.leaving(seen.context)
        if node.name in seen.node_labels
    }


def per_node(desired: Desired) -> dict[str, NodeObjects]:
    """Return what each component has on nodes; those without anything there are left out."""
    found = {component: _on_nodes(manifests) for component, manifests in desired.items()}
    return {component: part for component, part in found.items() if part.daemonsets or part.single}


def _on_nodes(manifests: Sequence[Manifest]) -> NodeObjects:
    daemonsets = tuple(manifest for manifest in manifests if manifest["kind"] == "DaemonSet")
    return NodeObjects(daemonsets, {node_named(item): item for item in manifests if item["kind"] in {"Node", "Pod"}})


def states_of(target: Target, seen: ClusterState) -> dict[str, NodeState]:
    """Return where each component stands on one node."""
    parts = seen.parts
    if target.facts is None:
        first = next((name for name in ("nfd", "node_labels") if name in parts), "")
        concerned = [name for name in seen.desired if name in parts or RUNS_IN.get(name) in parts]
        broken = {component: State.FAILED if component == first else State.PENDING for component in concerned}
        return {component: _state(component, target, state, NO_NODE) for component, state in broken.items()}
    found: dict[str, NodeState] = {}
    for component in seen.desired:
        if state := _state_of(component, target, seen, found):
            found[component] = state
    driver = found.get(DRIVER)
    return (
        {component: postpone_validation(state, driver) for component, state in found.items()}
        if is_kept(driver)
        else found
    )


def _state_of(component: str, target: Target, seen: ClusterState, found: Mapping[str, NodeState]) -> NodeState | None:
    """Return where a component stands on a node, or None if it does not concern it.

    Args:
        found: Where those before it stand there.
    """
    if component in VALIDATIONS:
        return _validation_state(component, target, seen, found)
    part = seen.parts.get(component)
    if part is None or not seen.context.part.has_component(component):
        return None
    if target.name in part.single:
        return _single_state(component, target, part.single[target.name], seen, found)
    return _daemon_state_of(component, target, part.daemonsets, seen)


def shared_state(component: str, seen: ClusterState) -> NodeState:
    """Return where a component stands as a whole."""
    for manifest in seen.desired[component]:
        if reason := shared_problem(manifest, seen):
            exists = ref_of(manifest) in seen.observed.members
            state = State.PROGRESSING if exists else State.PENDING
            return NodeState(component=component, node="", state=state, reason=reason)
    return NodeState(component=component, node="", state=State.READY)


def shared_problem(manifest: Manifest, seen: ClusterState) -> str:
    """Say why an object that is not per node is not ready; an empty string if it is, or if it is per node."""
    if manifest["kind"] in {"Node", "Pod"}:
        return ""
    return _not_ready(manifest, seen.observed.members.get(ref_of(manifest)))


def _not_ready(manifest: Manifest, live: Manifest | None) -> str:
    ref = ref_of(manifest)
    if live is None:
        return f"{ref} is missing from the stack"
    match manifest["kind"]:
        case "Deployment":
            return _deployment_reason(ref, live)
        case "CustomResourceDefinition":
            return "" if _condition(live, "Established") else f"{ref} is not established"
        case _:
            return ""


def _deployment_reason(ref: ObjectRef, live: Manifest) -> str:
    status, wanted = live.get("status", {}), live["spec"].get("replicas", 1)
    if not is_observed(live):
        return f"{ref} is not observed yet"
    available = min(status.get("availableReplicas", 0), status.get("updatedReplicas", 0))
    return "" if available >= wanted else f"{ref}: {available} of {wanted} replicas available"


def is_observed(live: Manifest) -> bool:
    """Whether the controller of a workload has observed its present spec, by ``status.observedGeneration``."""
    status = live.get("status") or {}
    return bool(status.get("observedGeneration", 0) >= live["metadata"].get("generation", 0))


def _condition(live: Manifest, name: str) -> bool:
    conditions = live.get("status", {}).get("conditions") or ()  # null on a definition that is seconds old
    return any(condition["type"] == name and condition["status"] == "True" for condition in conditions)


def _single_state(
    component: str, target: Target, manifest: Manifest, seen: ClusterState, found: Mapping[str, NodeState]
) -> NodeState:
    if component == node_validation.NAME:
        return node_validation.state_of(target, found, is_told=_is_written(target, manifest, seen))
    return _label_state(component, target, manifest, seen)


def _is_written(target: Target, manifest: Manifest, seen: ClusterState) -> bool:
    return target.facts is None or node_patch(manifest, target.facts, seen.context.inventory).is_empty


def _label_state(component: str, target: Target, manifest: Manifest, seen: ClusterState) -> NodeState:
    facts = target.facts
    if facts is None or _is_written(target, manifest, seen):
        if has_stale_rollout(target):
            return _state(component, target, State.PROGRESSING, f"{AT_WORK}: the node has a driver of its own")
        gone = facts is not None and labels.nfd_has_spoken(facts.labels) and not labels.has_gpu(facts.labels)
        reason = f"the inventory declares a GPU ({gpu_text(target)}), but NFD sees no NVIDIA device on the PCI bus"
        return _state(component, target, *((State.PROGRESSING, reason) if gone else (State.READY, "")))
    if not labels.nfd_has_spoken(facts.labels):
        return _state(component, target, State.PENDING, "waits for Node Feature Discovery to label the node")
    return _state(component, target, State.PROGRESSING, TO_BE_LABELLED)


def _validation_state(
    component: str, target: Target, seen: ClusterState, found: Mapping[str, NodeState]
) -> NodeState | None:
    wanted = vector_add_of(component, target, seen)
    if wanted is None:
        return None
    problem = count_problem(target, seen.context) if component == DEVICE_PLUGIN_VALIDATION else ""
    if problem:
        return _state(component, target, State.PENDING, problem)
    pod = wanted.pod
    if pod is not None and pod["metadata"]["uid"] in seen.observed.void:
        return _state(component, target, State.PENDING, REPEATED)
    shown = last_verdict(component, target.name, seen.observed, seen.pods)
    doubtful = doubt(component, target, wanted.content, shown, seen.pods, below=found)
    if doubtful and pod is not None and digest_of(pod) == wanted.content and verdict_of(pod) is None:
        return _state(component, target, State.PROGRESSING, _under_way(pod, wanted, target))
    if doubtful or shown is None:
        return _state(component, target, State.PENDING, doubtful)
    return _state(component, target, *((State.READY, "") if shown.passed else (State.FAILED, shown.failure)))


class WantedProof(NamedTuple):
    """What a node has to show: the digest of its content, the spec of the pod that shows it, and that pod."""

    content: str
    spec: Mapping[str, Any]
    pod: Manifest | None


def vector_add_of(component: str, target: Target, seen: ClusterState) -> WantedProof | None:
    """Return what a validation has to show on a node; None if it does not concern the node."""
    part, runs_in = seen.parts.get(RUNS_IN[component]), RUNS_IN[component]
    if part is None or component not in seen.desired:
        return None
    staying = [pod for pod in seen.pods.get((runs_in, target.name), ()) if not pod["metadata"].get("deletionTimestamp")]
    if manifest := part.single.get(target.name):
        pod = next((each for each in staying if ref_of(each) == ref_of(manifest)), None)
        return WantedProof(digest_of(manifest), manifest["spec"], pod)
    for daemonset in part.daemonsets:
        if selects(daemonset, _labels_to_be(target, seen)):
            template = daemonset["spec"]["template"]
            pod = next((each for each in staying if belongs(each, daemonset)), None)
            return WantedProof(digest_of(template), template["spec"], pod)
    return None


def _under_way(pod: Manifest, wanted: WantedProof, target: Target) -> str:
    """Say what a pod waits for whose vectorAdd has not ended."""
    is_bound = bool(pod.get("spec", {}).get("nodeName"))
    kept_off = "" if is_bound else _kept_off(target, wanted.spec)
    return kept_off or pod_view.cause(pod)


def _daemon_state_of(
    component: str, target: Target, daemonsets: Sequence[Manifest], seen: ClusterState
) -> NodeState | None:
    for daemonset in daemonsets:
        if selects(daemonset, _labels_to_be(target, seen)):
            state = _daemon_state(component, target, daemonset, seen)
            return with_upgrade(state, target) if is_rolled_out(daemonset) else state
    return None


def _daemon_state(component: str, target: Target, daemonset: Manifest, seen: ClusterState) -> NodeState:
    candidates = seen.pods.get((component, target.name), ())
    pods = [pod for pod in candidates if is_rolled_out(daemonset) or belongs(pod, daemonset)]
    current = [pod for pod in pods if _is_current(pod, daemonset)]
    if any(pod_view.is_ready(pod) for pod in current):
        return _state(component, target, State.READY)
    silent = "" if target.facts and target.facts.ready else "; the node is NotReady"
    if current:
        return _state(component, target, State.PROGRESSING, f"{pod_view.cause(current[0])}{silent}")
    if staying_pods := [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]:
        return _state(component, target, State.PROGRESSING, _behind(staying_pods, daemonset))
    if pods:
        return _state(component, target, State.PROGRESSING, f"the previous pod is still terminating{silent}")
    kept_off = _kept_off(target, daemonset["spec"]["template"]["spec"])
    return _state(component, target, State.PENDING, kept_off or f"no pod on this node yet{silent}")


def _kept_off(target: Target, spec: Mapping[str, Any]) -> str:
    """Say which taint keeps a pod off a node; an empty string if none does."""
    taints = target.facts.taints if target.facts else ()
    taint = first_untolerated(taints, spec.get("tolerations", ()))
    return f"the pods do not tolerate the node's taint {{{taint}}}" if taint else ""


def _behind(pods: Iterable[Manifest], daemonset: Manifest) -> str:
    """Say what is behind: a driver's content, or but the DaemonSet that its pod is of."""
    moves = is_rolled_out(daemonset) and all(has_installed(pod, daemonset) for pod in pods)
    return "goes over to another DaemonSet" if moves else OUTDATED


def _is_current(pod: Manifest, daemonset: Manifest) -> bool:
    if is_rolled_out(daemonset):
        return has_installed(pod, daemonset) and belongs(pod, daemonset)
    return digest_of(pod) == digest_of(daemonset["spec"]["template"])


def _labels_to_be(target: Target, seen: ClusterState) -> Mapping[str, str | None]:
    live: dict[str, str | None] = dict(target.facts.labels) if target.facts else {}
    return live | seen.node_labels.get(target.name, {})


def node_named(manifest: Manifest) -> str:
    """Return the node that a partial Node or a validation pod is about."""
    if manifest["kind"] == "Node":
        return str(manifest["metadata"]["name"])
    return pod_view.node_of(manifest)


def _state(component: str, target: Target, state: State, reason: str = "") -> NodeState:
    return NodeState(component=component, node=target.name, state=state, reason=reason)
