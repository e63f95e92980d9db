"""Where every component stands on every node, read off one observation; pure, without clocks or memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpu_provision.components import labels
from gpu_provision.diagnose import pods as pod_view
from gpu_provision.model.cluster import Context, Manifest, NodeFacts, ObjectRef, Target, ref_of
from gpu_provision.model.progress import NodeState, State
from gpu_provision.planning.membership import component_of, digest_of
from gpu_provision.planning.observed import Observed

Desired = Mapping[str, Sequence[Manifest]]
"""Component name -> its manifests, in dependency order, marked as members."""

Key = tuple[str, str]
"""Component and node; the node is empty for what is not per node."""

OUTDATED = "the pod still runs the previous content"
"""Reason of a state whose pod is older than its DaemonSet."""

TO_BE_LABELLED = "labels are to be written"
"""Reason of the state of a node that NFD has labelled and we have not."""

NO_NODE = "the cluster has no node of this name"
"""Reason of every state on a node that has not joined the cluster."""

NOT_RUN = "has not run for this content"
"""Reason of the state of a validation that is still to be started."""


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that states are read off: pods by component and node, and the labels each node is to have."""

    context: Context
    desired: Desired
    observed: Observed
    pods: Mapping[Key, tuple[Manifest, ...]] = field(default_factory=dict)
    node_labels: Mapping[str, dict[str, str | None]] = field(default_factory=dict)


def situation(context: Context, desired: Desired, observed: Observed) -> Situation:
    """Index an observation for reading states off it."""
    pods: dict[Key, tuple[Manifest, ...]] = {}
    for pod in observed.pods.values():
        key = (component_of(pod), pod_view.node_of(pod))
        pods[key] = (*pods.get(key, ()), pod)
    node_labels = {item["metadata"]["name"]: item["metadata"]["labels"] for item in desired.get("node_labels", ())}
    return Situation(context, desired, observed, pods, node_labels)


def states(seen: Situation) -> dict[Key, NodeState]:
    """Return the state of every component as a whole (node ``""``) and on every node that it concerns."""
    found = (state for component in seen.desired for state in _component_states(component, seen))
    return {(state.component, state.node): state for state in found}


def _component_states(component: str, seen: Situation) -> Iterator[NodeState]:
    yield _shared_state(component, seen)
    manifests = seen.desired[component]
    daemonsets = [manifest for manifest in manifests if manifest["kind"] == "DaemonSet"]
    by_node = {_node_named(manifest): manifest for manifest in manifests if manifest["kind"] in {"Node", "Pod"}}
    if not (daemonsets or by_node):
        return
    for target in seen.context.targets:
        if target.facts is None:
            first = component == next(name for name in ("nfd", "node_labels") if name in seen.desired)
            yield _state(component, target, State.FAILED if first else State.PENDING, NO_NODE)
        elif target.name in by_node:
            yield _single_state(component, target, by_node[target.name], seen)
        else:
            yield from _daemon_states(component, target, daemonsets, seen)


def _shared_state(component: str, seen: Situation) -> NodeState:
    for manifest in seen.desired[component]:
        if reason := shared_problem(manifest, seen):
            exists = ref_of(manifest) in seen.observed.members
            state = State.PROGRESSING if exists else State.PENDING
            return NodeState(component=component, node="", state=state, reason=reason)
    return NodeState(component=component, node="", state=State.READY)


def shared_problem(manifest: Manifest, seen: Situation) -> str:
    """Say why an object that is not per node is not ready; an empty string if it is, or if it is per node."""
    if manifest["kind"] in {"Node", "Pod"}:
        return ""
    return _not_ready(manifest, seen.observed.members.get(ref_of(manifest)))


def _not_ready(manifest: Manifest, live: Manifest | None) -> str:
    ref = ref_of(manifest)
    if live is None:
        return f"{ref} does not exist"
    match manifest["kind"]:
        case "Deployment":
            return _deployment_reason(ref, live)
        case "CustomResourceDefinition":
            return "" if _condition(live, "Established") else f"{ref} is not established"
        case _:
            return ""


def _deployment_reason(ref: ObjectRef, live: Manifest) -> str:
    status, wanted = live.get("status", {}), live["spec"].get("replicas", 1)
    if status.get("observedGeneration", 0) < live["metadata"].get("generation", 0):
        return f"{ref} is not observed yet"
    available = min(status.get("availableReplicas", 0), status.get("updatedReplicas", 0))
    return "" if available >= wanted else f"{ref}: {available} of {wanted} replicas available"


def _condition(live: Manifest, name: str) -> bool:
    conditions = live.get("status", {}).get("conditions", ())
    return any(condition["type"] == name and condition["status"] == "True" for condition in conditions)


def _single_state(component: str, target: Target, manifest: Manifest, seen: Situation) -> NodeState:
    if manifest["kind"] == "Node":
        return _label_state(component, target, manifest)
    return _validation_state(component, target, manifest, seen)


def _label_state(component: str, target: Target, manifest: Manifest) -> NodeState:
    facts = target.facts
    if facts is None or not label_changes(manifest, facts):
        gone = facts is not None and labels.nfd_has_spoken(facts.labels) and not labels.has_gpu(facts.labels)
        reason = f"the inventory declares a GPU ({_gpu_text(target)}), but NFD sees no NVIDIA device on the PCI bus"
        return _state(component, target, *((State.PROGRESSING, reason) if gone else (State.READY, "")))
    if not labels.nfd_has_spoken(facts.labels):
        return _state(component, target, State.PENDING, "waits for Node Feature Discovery to label the node")
    return _state(component, target, State.PROGRESSING, TO_BE_LABELLED)


def label_changes(manifest: Manifest, facts: NodeFacts) -> dict[str, str | None]:
    """Return the labels of a node that are not as a partial Node manifest says; None means: to be removed."""
    wanted: Mapping[str, str | None] = manifest["metadata"].get("labels", {})
    return {key: value for key, value in wanted.items() if facts.labels.get(key) != value}


def _validation_state(component: str, target: Target, manifest: Manifest, seen: Situation) -> NodeState:
    problem = count_problem(target, seen.context) if component == "device_plugin_validation" else ""
    if problem:
        return _state(component, target, State.PENDING, problem)
    if seen.observed.passed.get((component, target.name)) == digest_of(manifest):
        return _state(component, target, State.READY)
    pod = seen.observed.pods.get(ref_of(manifest))
    if pod is None:
        return _state(component, target, State.PENDING, NOT_RUN)
    return _state(component, target, *_of_validation_pod(pod))


def _of_validation_pod(pod: Manifest) -> tuple[State, str]:
    if pod["metadata"].get("deletionTimestamp"):
        return State.PROGRESSING, pod_view.cause(pod)
    match pod_view.phase(pod):
        case "Failed" if not pod_view.was_turned_away(pod):
            return State.FAILED, pod_view.cause(pod)
        case "Succeeded":
            return State.PROGRESSING, "passed, not recorded yet"
        case _:
            return State.PROGRESSING, pod_view.cause(pod)


def count_problem(target: Target, context: Context) -> str:
    """Say which GPU counts of a node differ; an empty string if all agree.

    With a sharing configuration a GPU is offered several times, so more than declared is right there.
    """
    if target.facts is None or target.pool.gpu is None:
        return ""
    declared, offered = target.pool.gpu.count, target.facts.gpus_allocatable or 0
    shared = bool(context.inventory.specs.device_plugin.config_name)
    counted = target.facts.labels.get(labels.GPU_COUNT, "")
    if counted.isdigit() and int(counted) != declared and not shared:
        return f"the inventory declares {_gpu_text(target)}, GPU Feature Discovery counts {counted}"
    if offered == declared or (shared and offered > declared):
        return ""
    return f"the inventory declares {_gpu_text(target)}, the node offers {offered} nvidia.com/gpu to pods"


def _gpu_text(target: Target) -> str:
    return f"{target.pool.gpu.count} x {target.pool.gpu.model}" if target.pool.gpu else "none"


def _daemon_states(
    component: str, target: Target, daemonsets: Sequence[Manifest], seen: Situation
) -> Iterator[NodeState]:
    for daemonset in daemonsets:
        if selects(daemonset, _labels_to_be(target, seen)):
            yield _daemon_state(component, target, daemonset, seen)
            return


def _daemon_state(component: str, target: Target, daemonset: Manifest, seen: Situation) -> NodeState:
    wanted = digest_of(daemonset["spec"]["template"])
    candidates = seen.pods.get((component, target.name), ())
    pods = [pod for pod in candidates if _belongs(pod, daemonset)]
    current = [pod for pod in pods if digest_of(pod) == wanted]
    if any(pod_view.is_ready(pod) for pod in current):
        return _state(component, target, State.READY)
    silent = "" if target.facts and target.facts.ready else "; the node is NotReady"
    if current:
        return _state(component, target, State.PROGRESSING, f"{pod_view.cause(current[0])}{silent}")
    if any(not pod["metadata"].get("deletionTimestamp") for pod in pods):
        return _state(component, target, State.PROGRESSING, OUTDATED)
    if pods:
        return _state(component, target, State.PROGRESSING, f"the previous pod is still terminating{silent}")
    return _state(component, target, State.PENDING, f"no pod on this node yet{silent}")


def _belongs(pod: Manifest, daemonset: Manifest) -> bool:
    owners = pod["metadata"].get("ownerReferences", ())
    return any(owner["kind"] == "DaemonSet" and owner["name"] == daemonset["metadata"]["name"] for owner in owners)


def _labels_to_be(target: Target, seen: Situation) -> Mapping[str, str | None]:
    live: dict[str, str | None] = dict(target.facts.labels) if target.facts else {}
    return live | seen.node_labels.get(target.name, {})


def selects(daemonset: Manifest, node_labels: Mapping[str, str | None]) -> bool:
    """Whether a DaemonSet's nodeSelector matches a node's labels."""
    selector = daemonset["spec"]["template"]["spec"].get("nodeSelector", {})
    return all(node_labels.get(key) == value for key, value in selector.items())


def _node_named(manifest: Manifest) -> str:
    if manifest["kind"] == "Node":
        return str(manifest["metadata"]["name"])
    return pod_view.node_of(manifest)


def _state(component: str, target: Target, state: State, reason: str = "") -> NodeState:
    return NodeState(component=component, node=target.name, state=state, reason=reason)
