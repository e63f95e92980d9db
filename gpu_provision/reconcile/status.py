"""The status of a stack without a run: a row for each component and each node."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice

from gpu_provision import components
from gpu_provision.components import labels, node_labels
from gpu_provision.components.targets import node_pools, nodes_for_vms
from gpu_provision.diagnostics import pods as pod_view
from gpu_provision.kube.client import KubeClient
from gpu_provision.model.cluster import Manifest, NodeFacts, Target
from gpu_provision.model.plan import FOR_VMS, NOT_IN_INVENTORY
from gpu_provision.model.progress import ComponentStatus, Evidence, NodeState, NodeStatus, OutsideState, State, Status
from gpu_provision.planning.states import ClusterState, ComponentNode, cluster_state, evaluate_states
from gpu_provision.planning.upgrades import DRIVER, state_between_runs
from gpu_provision.planning.verdicts import RUNS_IN, has_startup_taint, verdict_of
from gpu_provision.reconcile.evidence import Crashes, add_refusals, verdict_evidence
from gpu_provision.reconcile.plan import ClusterPlan
from gpu_provision.reconcile.states import deadline_tracker
from gpu_provision.rollout.states import cordoned_by

_ANY = "any"  # model of a pool for any GPUs
_NO_GPU = "no GPU: gets no GPU component"
_FOR_VMS = "its GPUs are for virtual machines: gets no GPU component"
_STARTUP_TAINT = "has the startup taint"
_WORST = (State.FAILED, State.BLOCKED, State.LEAVING, State.PROGRESSING, State.PENDING, State.READY)


def component_rows(seen: ClusterState, settled: Mapping[ComponentNode, NodeState]) -> tuple[ComponentStatus, ...]:
    """Return a row for each component, in dependency order."""
    own: dict[str, list[NodeState]] = {}
    for (name, _), state in settled.items():
        own.setdefault(name, []).append(state)
    return tuple(_component_row(name, own[name], seen) for name in seen.desired if name in own)


def node_rows(seen: ClusterState, settled: Mapping[ComponentNode, NodeState]) -> tuple[NodeStatus, ...]:
    """Return a row for each node of the cluster."""
    own: dict[str, list[NodeState]] = {}
    for (_, node), state in settled.items():
        own.setdefault(node, []).append(state)
    targets = {target.name: target for target in seen.context.targets}
    pools = {name: pool.name for name, pool in node_pools(seen.context.inventory, seen.context.facts).items()}
    for_vms = nodes_for_vms(seen.context.inventory, seen.context.facts)
    stateless = [facts for facts in seen.context.facts.nodes if facts.name not in own]
    reasons = node_labels.departure_reasons(stateless, seen.context)
    rows = []
    for facts in seen.context.facts.nodes:
        pool = pools.get(facts.name, "")
        outcome = _state_of(facts, pool, own.get(facts.name, []), reasons.get(facts.name, ""), seen)
        row = _node_row(facts, pool, targets.get(facts.name), outcome, seen)
        rows.append(_with_vms(row) if row.node in for_vms else row)
    return tuple(rows)


def most_severe_state(states: Iterable[NodeState]) -> NodeState:
    """Return the most severe state."""
    return min(states, key=lambda state: _WORST.index(state.state))


def _component_row(name: str, own: list[NodeState], seen: ClusterState) -> ComponentStatus:
    component = next(item for item in components.COMPONENTS if item.name == name)
    pools = {each.pool.name: each.pool.driver.image.version for each in seen.context.targets if not each.driver.on_host}
    counted = [state for state in own if state.node] or own
    worst, spec = most_severe_state(own), component.spec(seen.context.inventory)
    return ComponentStatus(
        component=name,
        title=component.title,
        version=component.version(spec) if spec is not None else "",
        desired=len(counted),
        ready=sum(state.state is State.READY for state in counted),
        state=worst.state,
        reason=f"{worst.node}: {worst.reason}" if worst.node and worst.reason else worst.reason,
        versions=pools if name == DRIVER and len(set(pools.values())) > 1 else {},
    )


def _node_row(
    node: NodeFacts, pool: str, target: Target | None, outcome: tuple[State | OutsideState, str], seen: ClusterState
) -> NodeStatus:
    model = (target.pool.gpu.model or _ANY) if target and target.pool.gpu else ""
    gpu = node.labels.get(labels.GPU_PRODUCT, "") or model
    count = node.labels.get(labels.GPU_COUNT, "")
    gpus = int(count) if count.isdigit() else None
    state, reason = outcome
    reason = "; ".join(filter(None, (reason, _STARTUP_TAINT if has_startup_taint(node) else "")))
    return NodeStatus(
        node=node.name,
        pool=pool,
        os=f"{node.os.id} {node.os.version}" if node.os else "",
        gpu=gpu,
        gpus=gpus,
        driver=_loaded_driver(node, target, seen),
        driver_on_host=bool(target and target.driver.on_host),
        allocatable=sum(node.devices.values()) if node.devices else None,
        state=state,
        reason=reason or ("" if gpu or gpus else _NO_GPU),
        cordoned=node.unschedulable,
        cordoned_by=cordoned_by(node),
    )


def _with_vms(row: NodeStatus) -> NodeStatus:
    """Return the row of a node whose GPUs are for virtual machines, with that as its reason."""
    if row.state is State.LEAVING:
        return replace(row, reason=row.reason.replace(NOT_IN_INVENTORY, FOR_VMS))
    return replace(row, reason="; ".join(filter(None, (_FOR_VMS, row.reason.removeprefix(_NO_GPU)))))


def _state_of(
    node: NodeFacts, pool: str, own: list[NodeState], departure: str, seen: ClusterState
) -> tuple[State | OutsideState, str]:
    """Return the state of a node; ``departure``: why it loses the components that are left, if it has no state."""
    daemons = (name for name, part in seen.parts.items() if part.daemonsets and name != "nfd")  # NFD is on all nodes
    left = ", ".join(name for name in daemons if seen.pods.get((name, node.name)))
    worst = most_severe_state(own) if own else None
    if worst and worst.state is State.LEAVING:
        return worst.state, f"{worst.reason}; still has {left or 'its labels'}"
    reason = f"{worst.component}: {worst.reason}" if worst and worst.reason else ""
    if worst and worst.state is not State.READY:
        return worst.state, reason
    if left and not worst:
        return State.LEAVING, f"{departure}; still has {left}"
    if not (worst or pool) and (labels.has_gpu(node.labels) or labels.GPU_PRODUCT in node.labels):
        return OutsideState.UNDECLARED, "not in the inventory"
    return (State.READY, reason) if node.ready else (State.PROGRESSING, "NotReady")


def _loaded_driver(node: NodeFacts, target: Target | None, seen: ClusterState) -> str:
    """Return the version of the loaded driver; empty unless a ready pod shows that one is loaded.

    The label of GPU Feature Discovery outlives its driver, so the label only completes the tag of the pod's image: that
    of a precompiled driver names only the branch.
    """
    label = node.labels.get(labels.DRIVER_VERSION, "")
    if not node.ready:
        return ""
    if target and target.driver.on_host:
        is_loaded = any(_ready_pod(name, node, seen) for name in _DRIVER_USERS)
        return label or target.driver.version if is_loaded else ""
    pod = _ready_pod(DRIVER, node, seen)
    if pod is None:
        return ""
    image = pod["spec"]["containers"][0]["image"]  # such as nvcr.io/nvidia/driver:595.91.07-ubuntu24.04
    tag = image.rpartition(":")[2]
    version = re.match(r"\d{3}(\.\d+)*(?=-|$)", tag)  # none of a digest, and of a tag of the user's own
    loaded = version[0] if version and "@" not in image else ""
    return label if label.startswith(loaded) else loaded


_DRIVER_USERS = ("gfd", "validator")
"""Components whose pods are ready only where a driver is loaded, including a host driver."""


def _ready_pod(component: str, node: NodeFacts, seen: ClusterState) -> Manifest | None:
    return next(filter(pod_view.is_ready, seen.pods.get((component, node.name), ())), None)


_MAX_LOGS = 10


def status(cluster: KubeClient, reading: ClusterPlan) -> Status:
    """Return the result of `gpu-provision status`; reads the logs of a few crashed containers, and refusals of pods."""
    seen = cluster_state(reading.context, reading.desired, reading.observed)
    raw, crashes = evaluate_states(seen), Crashes(cluster)
    for step in islice(crashes.start_reading(raw, seen), _MAX_LOGS):
        crashes.read_log(step)
    tracked = deadline_tracker(reading).settle(crashes.add_crash_reasons(raw, seen), 0.0)
    settled = {key: state_between_runs(state) for key, state in add_refusals(cluster, tracked, seen).items()}
    inventory = reading.context.inventory
    return Status(
        inventory=inventory.name,
        cluster=reading.observed.cluster,
        release=inventory.release,
        components=component_rows(seen, settled),
        nodes=node_rows(seen, settled),
        evidence=tuple(collect_evidence(seen)),
        lock=reading.observed.lock,
        installed=reading.observed.is_installed,
    )


def collect_evidence(seen: ClusterState) -> Iterator[Evidence]:
    """Yield the last output of each vectorAdd whose pod exists."""
    for component, runs_in in RUNS_IN.items():
        for target in seen.context.targets:
            for pod in seen.pods.get((runs_in, target.name), ()):
                if verdict := verdict_of(pod):
                    yield verdict_evidence((component, target.name), pod, verdict)
