"""The state of every component on every node, from one observation; no clock and no memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from gpu_provision.components import gfd, labels, machine_config, mig_manager, nfd, node_labels
from gpu_provision.components.device_plugin_validation import NAME as DEVICE_PLUGIN_VALIDATION
from gpu_provision.components.pods import first_untolerated_taint
from gpu_provision.components.targets import node_pools
from gpu_provision.diagnostics import pods as pod_view
from gpu_provision.model.cluster import Manifest, NodeObjects, ObservedState, RenderContext, Target, ref_of
from gpu_provision.model.progress import NodeState, State
from gpu_provision.planning import machine_configs, upgrades, verdicts
from gpu_provision.planning.applyset import digest_of, is_owned_by, matches_node
from gpu_provision.planning.upgrades import DRIVER, is_kept, is_rolled_out
from gpu_provision.planning.verdicts import RUNS_IN, VALIDATIONS

Desired = Mapping[str, Sequence[Manifest]]
"""Component name -> its manifests, in dependency order, labelled as members."""

ComponentNode = tuple[str, str]
"""Component and node; the node is empty for what is not per node."""

LABELS_PENDING = "labels are not written yet"
"""Reason of a node that NFD has labelled, and that lacks labels of the stack."""

NO_POD = "no pod on this node yet"
"""Beginning of the reason of a component whose DaemonSet has no pod on a node."""

NO_NODE = "the cluster has no node of this name"
"""Reason of all states of a node that has not joined the cluster."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """An observed cluster, indexed: pods by component and node, and the desired labels of each node."""

    context: RenderContext
    desired: Desired
    observed: ObservedState
    pods: Mapping[ComponentNode, Sequence[Manifest]] = field(default_factory=dict)
    node_labels: Mapping[str, dict[str, str | None]] = field(default_factory=dict)
    """The final labels; ``desired`` has those for now, see `planning.upgrades`."""
    parts: Mapping[str, NodeObjects] = field(default_factory=dict)
    """See `per_node`; of ``desired``."""


def cluster_state(
    context: RenderContext,
    desired: Desired,
    observed: ObservedState,
    parts: Mapping[str, NodeObjects] | None = None,
    pods: Mapping[ComponentNode, Sequence[Manifest]] | None = None,
) -> ClusterState:
    """Index an observation; ``parts`` and ``pods``: of ``desired`` and ``observed``, if they are known already."""
    wanted = {item["metadata"]["name"]: item["metadata"]["labels"] for item in desired.get("node_labels", ())}
    by_key = _group_pods(observed.pods.values()) if pods is None else pods
    known = per_node(desired) if parts is None else parts
    stay = upgrades.kept_driver_groups(context.targets, desired, by_key)
    geometries = upgrades.kept_geometries(context.targets, context.inventory, desired, by_key)
    expired = verdicts.expired_labels(context, desired, known, observed, by_key)
    for other in filter(None, (stay, geometries, expired)):
        desired = upgrades.with_node_labels(desired, other)
        known = {**known, "node_labels": _on_nodes(desired["node_labels"])}
    return ClusterState(context, desired, observed, by_key, wanted, known)


def _group_pods(pods: Iterable[Manifest]) -> dict[ComponentNode, list[Manifest]]:
    by_key: dict[ComponentNode, list[Manifest]] = {}
    for pod in pods:
        by_key.setdefault(key_of_pod(pod), []).append(pod)
    return by_key


def key_of_pod(pod: Manifest) -> ComponentNode:
    """Return component and node of a pod; empty without one."""
    component = (pod["metadata"].get("labels") or {}).get(labels.COMPONENT, "")
    return str(component), pod["spec"].get("nodeName") or pod_view.node_of(pod)


def evaluate_states(
    seen: ClusterState, on_nodes: Mapping[str, Mapping[str, NodeState]] | None = None
) -> dict[ComponentNode, NodeState]:
    """Return the state of every component as a whole (node ``""``) and on every node that it concerns.

    ``on_nodes``: results of `evaluate_node` by node, if they are known already.
    """
    if on_nodes is None:
        on_nodes = {target.name: evaluate_node(target, seen) for target in seen.context.targets}
    by_key: dict[ComponentNode, NodeState] = {}
    for component in seen.desired:
        by_key[component, ""] = _shared_state(component, seen)
        for name, own in on_nodes.items():
            if component in own:
                by_key[component, name] = own[component]
    # Pods of others that use the GPUs of leaving nodes are not known here.
    gone = node_labels.leaving_nodes(seen.context)
    why = node_labels.departure_reasons(gone, seen.context)
    for node in gone:
        if node.name in seen.node_labels:
            reason = ": ".join((why[node.name], *upgrades.upgrade_of(node)))
            leaving = NodeState(component=node_labels.NAME, node=node.name, state=State.LEAVING, reason=reason)
            by_key[node_labels.NAME, node.name] = leaving
    return by_key


def inputs_of_states(seen: ClusterState) -> dict[str, tuple[object, ...]]:
    """Return for each target all inputs of `evaluate_node`: equal inputs have equal states."""
    observed, runs_in, pods = seen.observed, tuple(RUNS_IN), defaultdict[str, list[Sequence[Manifest]]](list)
    for (_, node), each in seen.pods.items():
        pods[node].append(each)
    daemonsets = [part.daemonsets for part in seen.parts.values()]
    rolled = (seen.desired.get(machine_config.NAME), seen.context.openshift)
    shared = (tuple(seen.desired), daemonsets, tuple(seen.parts), seen.context.selection, rolled)
    single = [part.single for part in seen.parts.values() if part.single]
    by_node: dict[str, tuple[object, ...]] = {}
    for target in seen.context.targets:
        node = target.name
        own = [each.get(node) for each in single]
        passed = [observed.verdicts.get((component, node)) for component in runs_in]
        by_node[node] = (
            target,
            pods.get(node),
            own,
            seen.node_labels.get(node),
            passed,
            observed.void_pod_uids,
            shared,
        )
    return by_node


def per_node(desired: Desired) -> dict[str, NodeObjects]:
    """Return the objects that each component has on nodes; components without any are absent."""
    parts = {component: _on_nodes(manifests) for component, manifests in desired.items()}
    return {component: part for component, part in parts.items() if part.daemonsets or part.single}


def _on_nodes(manifests: Sequence[Manifest]) -> NodeObjects:
    daemonsets = tuple(manifest for manifest in manifests if manifest["kind"] == "DaemonSet")
    nodes = {item["metadata"]["name"]: item for item in manifests if item["kind"] == "Node"}
    pods = {pod_view.node_of(item): item for item in manifests if item["kind"] == "Pod"}
    return NodeObjects(daemonsets, nodes | pods)


def evaluate_node(target: Target, seen: ClusterState) -> dict[str, NodeState]:
    """Return the state of each component on one node."""
    parts = seen.parts
    if target.facts is None:
        first = next((name for name in ("nfd", "node_labels") if name in parts), "")
        concerned = [name for name in seen.desired if name in parts or RUNS_IN.get(name) in parts]
        broken = {component: State.FAILED if component == first else State.PENDING for component in concerned}
        return {component: _node_state(component, target, state, NO_NODE) for component, state in broken.items()}
    by_component: dict[str, NodeState] = {}
    for component in seen.desired:
        if state := _evaluate_component(component, target, seen, by_component):
            by_component[component] = state
    if is_kept(driver := by_component.get(DRIVER)):
        return {component: verdicts.postpone_validation(state, driver) for component, state in by_component.items()}
    return by_component


def _evaluate_component(  # noqa: PLR0911 - one kind of component after the other
    component: str, target: Target, seen: ClusterState, known: Mapping[str, NodeState]
) -> NodeState | None:
    if component in VALIDATIONS:
        return _validation_state(component, target, seen, known)
    if component == machine_config.NAME:
        return machine_configs.node_state(target, seen.desired[component], seen.context.openshift)
    part = seen.parts.get(component)
    if part is None or not seen.context.selection.has_component(component):
        return None
    if manifest := part.single.get(target.name):
        facts, inventory = target.facts, seen.context.inventory
        is_written = facts is None or verdicts.node_patch(manifest, facts, inventory).is_empty
        if component == verdicts.STARTUP_TAINT:
            return verdicts.node_state(target, known, is_reported=is_written)
        return _label_state(component, target, is_written=is_written)
    if daemonset := daemonset_on(target, component, seen):
        state = _daemon_state(component, target, daemonset, seen)
        if component == gfd.NAME:
            state = _with_features(state, target)
        state = upgrades.with_upgrade(state, target) if is_rolled_out(daemonset) else state
        wanted = seen.node_labels.get(target.name, {}) if component == mig_manager.NAME else {}
        return upgrades.with_geometry(state, target, wanted, seen.context.inventory)
    return None


def _with_features(state: NodeState, target: Target) -> NodeState:
    """Return a state of GPU Feature Discovery, which is ready once its labels are on the node: MIG needs them."""
    is_labelled = target.facts is not None and labels.has_gpu_features(target.facts.labels)
    if state.state is not State.READY or is_labelled:
        return state
    return replace(state, state=State.PROGRESSING, reason="has not labelled the node yet")


def daemonset_on(target: Target, component: str, seen: ClusterState) -> Manifest | None:
    """Return the DaemonSet of a component that selects a node; None if none does."""
    part, wanted = seen.parts.get(component), _desired_labels(target, seen)
    return next((each for each in part.daemonsets if matches_node(each, wanted)), None) if part else None


def _shared_state(component: str, seen: ClusterState) -> NodeState:
    for manifest in seen.desired[component]:
        if reason := shared_problem(manifest, seen):
            exists = ref_of(manifest) in seen.observed.members
            state = State.PROGRESSING if exists else State.PENDING
            return NodeState(component=component, node="", state=state, reason=reason)
    if component == machine_config.NAME and (openshift := seen.context.openshift):
        return machine_configs.rollout_state(seen.desired[component], openshift)
    if component == nfd.NAME and (reason := _discovery_problem(seen)):
        return NodeState(component=component, node="", state=State.PROGRESSING, reason=reason)
    return NodeState(component=component, node="", state=State.READY)


def shared_problem(manifest: Manifest, seen: ClusterState) -> str:
    """Return why an object that is not per node is not ready; empty if it is ready, or per node."""
    if manifest["kind"] in {"Node", "Pod"}:
        return ""
    ref = ref_of(manifest)
    live = seen.observed.members.get(ref)
    if live is None:
        return f"{ref} is missing from the stack"
    status = live.get("status", {})
    match manifest["kind"]:
        case "Deployment":
            return _deployment_problem(live)
        case "CustomResourceDefinition":
            conditions = status.get("conditions") or ()  # null on a definition that is seconds old
            established = any(each["type"] == "Established" and each["status"] == "True" for each in conditions)
            return "" if established else f"{ref} is not established"
        case _:
            return ""


def _deployment_problem(live: Manifest) -> str:
    ref, status = ref_of(live), live.get("status", {})
    if not is_observed(live):
        return f"{ref} is not observed yet"
    available = min(status.get("availableReplicas", 0), status.get("updatedReplicas", 0))
    wanted = live["spec"].get("replicas", 1)
    if available >= wanted:
        return ""
    parts = f"{ref}: {available} of {wanted} replicas available", pod_view.replica_failure(live)
    return "; ".join(filter(None, parts))


def _discovery_problem(seen: ClusterState) -> str:
    """Return which nodes a pool for any GPUs may still get, since Node Feature Discovery has not labelled them.

    Only nodes with its pods count, as it may never run on others. A run would end before its first pod otherwise.
    """
    inventory, facts, selection = seen.context.inventory, seen.context.facts, seen.context.selection
    if not any(pool.takes_any_gpu for pool in inventory.pools.values()):
        return ""
    running = {node for component, node in seen.pods if component == nfd.NAME and node}
    for worker in (item for item in seen.desired[nfd.NAME] if item["kind"] == "DaemonSet"):
        live = seen.observed.members.get(ref_of(worker), {})
        if live and not is_observed(live):
            return f"{ref_of(worker)} is not observed yet"
        if len(running) < (live.get("status") or {}).get("desiredNumberScheduled", 0):
            return f"{ref_of(worker)} has no pod on some nodes yet"
    unlabelled = {node.name for node in facts.nodes if node.ready and not labels.has_nfd_labels(node.labels)} & running
    awaited = unlabelled - node_pools(inventory, facts).keys() if unlabelled else set()
    names = sorted(filter(selection.has_node, awaited))
    more = f" and {len(names) - 1} more nodes" if len(names) > 1 else ""
    return f"has not labelled {names[0]}{more} yet" if names else ""


def is_observed(live: Manifest) -> bool:
    """Whether the controller of a workload has observed its current spec, by ``status.observedGeneration``."""
    status = live.get("status") or {}
    return bool(status.get("observedGeneration", 0) >= live["metadata"].get("generation", 0))


def _label_state(component: str, target: Target, *, is_written: bool) -> NodeState:
    facts = target.facts
    if facts is None or is_written:
        if upgrades.has_stale_rollout(target):
            reason = f"{upgrades.UPGRADE_UNFINISHED}: the node has a driver of its own"
        elif facts is not None and labels.has_nfd_labels(facts.labels) and not labels.has_gpu(facts.labels):
            declared = verdicts.gpu_text(target)
            reason = f"the inventory declares a GPU ({declared}), but NFD sees no NVIDIA device on the PCI bus"
        else:
            return _node_state(component, target, State.READY)
        return _node_state(component, target, State.PROGRESSING, reason)
    if not labels.has_nfd_labels(facts.labels):
        return _node_state(component, target, State.PENDING, "waits for Node Feature Discovery to label the node")
    return _node_state(component, target, State.PROGRESSING, LABELS_PENDING)


def _validation_state(
    component: str, target: Target, seen: ClusterState, known: Mapping[str, NodeState]
) -> NodeState | None:
    wanted = vector_add_of(component, target, seen)
    if wanted is None:
        return None
    is_second = component == DEVICE_PLUGIN_VALIDATION
    if is_second and (problem := verdicts.count_problem(target, seen.context, _desired_labels(target, seen))):
        return _node_state(component, target, State.PENDING, problem)
    pod = wanted.pod
    if pod is not None and pod["metadata"]["uid"] in seen.observed.void_pod_uids:
        return _node_state(component, target, State.PENDING, verdicts.REPEAT_REQUESTED)
    verdict = verdicts.last_verdict(component, target.name, seen.observed, seen.pods)
    doubtful = verdicts.expiry_reason(component, target, wanted.content, verdict, seen.pods, below=known)
    if doubtful and pod is not None and digest_of(pod) == wanted.content and verdicts.verdict_of(pod) is None:
        taint = "" if pod["spec"].get("nodeName") else _untolerated_taint(target, wanted.spec)
        return _node_state(component, target, State.PROGRESSING, taint or pod_view.cause(pod))
    if doubtful or verdict is None:
        return _node_state(component, target, State.PENDING, doubtful)
    return _node_state(component, target, *((State.READY, "") if verdict.passed else (State.FAILED, verdict.failure)))


class RequiredValidation(NamedTuple):
    """The vectorAdd that a node needs: the digest of its content, the spec of its pod, and the pod if it exists."""

    content: str
    spec: Mapping[str, Any]
    pod: Manifest | None


def vector_add_of(component: str, target: Target, seen: ClusterState) -> RequiredValidation | None:
    """Return the vectorAdd of a validation on a node; None if the validation does not concern the node."""
    part, runs_in = seen.parts.get(RUNS_IN[component]), RUNS_IN[component]
    if part is None or component not in seen.desired:
        return None
    staying = [pod for pod in seen.pods.get((runs_in, target.name), ()) if not pod["metadata"].get("deletionTimestamp")]
    if manifest := part.single.get(target.name):
        pod = next((each for each in staying if ref_of(each) == ref_of(manifest)), None)
        return RequiredValidation(digest_of(manifest), manifest["spec"], pod)
    for daemonset in part.daemonsets:
        if matches_node(daemonset, _desired_labels(target, seen)):
            template = daemonset["spec"]["template"]
            pod = next((each for each in staying if is_owned_by(each, daemonset)), None)
            return RequiredValidation(digest_of(template), template["spec"], pod)
    return None


def _daemon_state(component: str, target: Target, daemonset: Manifest, seen: ClusterState) -> NodeState:
    candidates = seen.pods.get((component, target.name), ())
    pods = [pod for pod in candidates if is_rolled_out(daemonset) or is_owned_by(pod, daemonset)]
    if is_rolled_out(daemonset):
        current = [pod for pod in pods if upgrades.has_installed(pod, daemonset) and is_owned_by(pod, daemonset)]
    else:
        current = [pod for pod in pods if digest_of(pod) == digest_of(daemonset["spec"]["template"])]
    if any(pod_view.is_ready(pod) for pod in current):
        return _node_state(component, target, State.READY)
    silent = "" if target.facts and target.facts.ready else "; the node is NotReady"
    if current:
        return _node_state(component, target, State.PROGRESSING, f"{pod_view.cause(current[0])}{silent}")
    if staying_pods := [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]:
        if upgrades.waits_for_deletion(daemonset) and any(map(pod_view.is_ready, staying_pods)):
            return _node_state(component, target, State.READY, upgrades.KEPT_UNTIL_DELETED)
        # The driver's content is outdated, or only the DaemonSet of its pod is another one.
        moves = is_rolled_out(daemonset) and all(upgrades.has_installed(pod, daemonset) for pod in staying_pods)
        reason = "goes over to another DaemonSet" if moves else upgrades.OUTDATED
        return _node_state(component, target, State.PROGRESSING, reason)
    if pods:
        return _node_state(component, target, State.PROGRESSING, f"the previous pod is still terminating{silent}")
    taint = _untolerated_taint(target, daemonset["spec"]["template"]["spec"])
    return _node_state(component, target, State.PENDING, taint or f"{NO_POD}{silent}")


def _untolerated_taint(target: Target, spec: Mapping[str, Any]) -> str:
    taints = target.facts.taints if target.facts else ()
    taint = first_untolerated_taint(taints, spec.get("tolerations", ()))
    return f"the pods do not tolerate the node's taint {{{taint}}}" if taint else ""


def _desired_labels(target: Target, seen: ClusterState) -> Mapping[str, str | None]:
    live: dict[str, str | None] = dict(target.facts.labels) if target.facts else {}
    return live | seen.node_labels.get(target.name, {})


def _node_state(component: str, target: Target, state: State, reason: str = "") -> NodeState:
    return NodeState(component=component, node=target.name, state=state, reason=reason)
