"""The stack as it stands, from one reading: a row for each component, a row for each node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from gpu_provision import components
from gpu_provision.components import labels
from gpu_provision.components.targets import node_pools
from gpu_provision.diagnostics import pods as pod_view
from gpu_provision.kube.client import Cluster
from gpu_provision.model.cluster import Manifest, NodeFacts, Target
from gpu_provision.model.progress import ComponentStatus, Evidence, NodeState, NodeStatus, Outside, State, Status
from gpu_provision.planning.node_validation import has_startup_taint
from gpu_provision.planning.states import LEFT, ClusterState, Key, cluster_state, states
from gpu_provision.planning.upgrades import DRIVER, between_runs
from gpu_provision.planning.validation import RUNS_IN, verdict_of
from gpu_provision.reconcile.plan import ClusterPlan
from gpu_provision.reconcile.states import deadline_tracker
from gpu_provision.reconcile.steps import Crashes
from gpu_provision.rollout.states import cordoned_by

_NO_GPU = "no GPU: gets no GPU component"
_STARTUP_TAINT = "has the startup taint"
_WORST = (State.FAILED, State.BLOCKED, State.LEAVING, State.PROGRESSING, State.PENDING, State.READY)


def component_rows(seen: ClusterState, settled: Mapping[Key, NodeState]) -> tuple[ComponentStatus, ...]:
    """Return a row per component, in dependency order."""
    own = _grouped((name, state) for (name, _), state in settled.items())
    return tuple(_component(name, own[name], seen) for name in seen.desired if name in own)


def node_rows(seen: ClusterState, settled: Mapping[Key, NodeState]) -> tuple[NodeStatus, ...]:
    """Return a row per node of the cluster."""
    own = _grouped((node, state) for (_, node), state in settled.items())
    targets = {target.name: target for target in seen.context.targets}
    pools = {name: pool.name for name, pool in node_pools(seen.context.inventory, seen.context.facts).items()}
    return tuple(
        _node(node, pools.get(node.name, ""), targets.get(node.name), own.get(node.name, []), seen)
        for node in seen.context.facts.nodes
    )


def worst_of(found: Iterable[NodeState]) -> NodeState:
    """Return the state that a reader should know of first."""
    return min(found, key=lambda state: _WORST.index(state.state))


def describe_state(state: NodeState) -> str:
    """Return the reason of a state with its node."""
    return f"{state.node}: {state.reason}" if state.node and state.reason else state.reason


def _grouped(found: Iterable[tuple[str, NodeState]]) -> dict[str, list[NodeState]]:
    groups: dict[str, list[NodeState]] = {}
    for name, state in found:
        groups.setdefault(name, []).append(state)
    return groups


def _component(name: str, own: list[NodeState], seen: ClusterState) -> ComponentStatus:
    component = next(item for item in components.COMPONENTS if item.name == name)
    counted = [state for state in own if state.node] or own
    worst = worst_of(own)
    spec = component.spec(seen.context.inventory)
    return ComponentStatus(
        component=name,
        title=component.title,
        version=component.version(spec) if spec is not None else "",
        desired=len(counted),
        ready=sum(state.state is State.READY for state in counted),
        state=worst.state,
        reason=describe_state(worst),
        versions=_versions_of_pools(seen.context.targets) if name == DRIVER else {},
    )


def _versions_of_pools(targets: Iterable[Target]) -> dict[str, str]:
    """Return the version of the driver container in each pool that has one; empty if it is the same in all."""
    found = {each.pool.name: each.pool.driver.image.version for each in targets if not each.driver.on_host}
    return found if len(set(found.values())) > 1 else {}


def _node(node: NodeFacts, pool: str, target: Target | None, own: list[NodeState], seen: ClusterState) -> NodeStatus:
    model = target.pool.gpu.model if target and target.pool.gpu else ""
    gpu = node.labels.get(labels.GPU_PRODUCT, "") or model
    gpus = _number(node.labels.get(labels.GPU_COUNT, ""))
    state, reason = _of_stack(node, own, seen) if own else _outside(node, pool, seen)
    told = "; ".join(filter(None, (reason, _STARTUP_TAINT if has_startup_taint(node) else "")))
    return NodeStatus(
        node=node.name,
        pool=pool,
        os=f"{node.os.id} {node.os.version}" if node.os else "",
        gpu=gpu,
        gpus=gpus,
        driver=_loaded_driver(node, target, seen),
        driver_on_host=bool(target and target.driver.on_host),
        allocatable=node.gpus_allocatable,
        state=state,
        reason=told or ("" if gpu or gpus else _NO_GPU),
        cordoned=node.unschedulable,
        cordoned_by=cordoned_by(node),
    )


def _of_stack(node: NodeFacts, own: list[NodeState], seen: ClusterState) -> tuple[State, str]:
    worst = worst_of(own)
    if worst.state is State.LEAVING:
        return worst.state, f"{worst.reason}; still has {', '.join(_left_on(node, seen)) or 'its labels'}"
    reason = f"{worst.component}: {worst.reason}" if worst.reason else ""
    return _of_kubelet(node, reason) if worst.state is State.READY else (worst.state, reason)


def _of_kubelet(node: NodeFacts, reason: str = "") -> tuple[State, str]:
    return (State.READY, reason) if node.ready else (State.PROGRESSING, "NotReady")


def _outside(node: NodeFacts, pool: str, seen: ClusterState) -> tuple[State | Outside, str]:
    """Return where a node stands that gets no GPU component."""
    if left := _left_on(node, seen):
        return State.LEAVING, f"{LEFT}; still has {', '.join(left)}"
    if not pool and (labels.has_gpu(node) or labels.GPU_PRODUCT in node.labels):
        return Outside.UNDECLARED, "not in the inventory"
    return _of_kubelet(node)


def _left_on(node: NodeFacts, seen: ClusterState) -> list[str]:
    """Return the components with pods on a node that is to have none."""
    daemons = (name for name, part in seen.parts.items() if part.daemonsets and name != _ON_ALL_NODES)
    return [name for name in daemons if seen.pods.get((name, node.name))]


_ON_ALL_NODES = "nfd"


def _loaded_driver(node: NodeFacts, target: Target | None, seen: ClusterState) -> str:
    """Return the version of the driver that is loaded; empty if nothing that is ready now shows it.

    GPU Feature Discovery's label outlives the driver that it was written for, so it only completes what a pod says: an
    image of a precompiled driver names its branch alone.
    """
    label = node.labels.get(labels.DRIVER_VERSION, "")
    if not node.ready:
        return ""
    if target and target.driver.on_host:
        is_shown = any(_ready_pod(name, node, seen) for name in _NEED_A_DRIVER)
        return label or target.driver.version if is_shown else ""
    pod = _ready_pod(DRIVER, node, seen)
    version = _version_of_image(pod["spec"]["containers"][0]["image"]) if pod else ""
    return label if pod and label.startswith(version) else version


_NEED_A_DRIVER = ("gfd", "validator")
"""Components whose pods are ready only where a driver is loaded, also one of the host's own."""


def _ready_pod(component: str, node: NodeFacts, seen: ClusterState) -> Manifest | None:
    return next(filter(pod_view.is_ready, seen.pods.get((component, node.name), ())), None)


def _version_of_image(image: str) -> str:
    """Return ``595.91.07`` of ``nvcr.io/nvidia/driver:595.91.07-ubuntu24.04``; empty for an image named by digest."""
    tag = image.rpartition(":")[2]
    return "" if "@" in image or "/" in tag else tag.partition("-")[0]


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None


_MOST_LOGS = 10


def status(cluster: Cluster, reading: ClusterPlan) -> Status:
    """Return what `gpu-provision status` shows. Reads a few logs besides the reading."""
    seen = cluster_state(reading.context, reading.desired, reading.observed)
    settled = {
        key: between_runs(state) for key, state in deadline_tracker(reading).settle(_told(cluster, seen), 0.0).items()
    }
    inventory = reading.context.inventory
    return Status(
        inventory=inventory.name,
        cluster=reading.observed.cluster,
        release=inventory.release,
        components=component_rows(seen, settled),
        nodes=node_rows(seen, settled),
        evidence=tuple(evidence(seen)),
        lock=reading.observed.lock,
        installed=reading.observed.is_installed,
    )


def _told(cluster: Cluster, seen: ClusterState) -> Mapping[Key, NodeState]:
    """Return the states, those of crashed containers with what they said; reads a few logs."""
    raw, crashes = states(seen), Crashes(cluster)
    for step in islice(crashes.unread(raw, seen), _MOST_LOGS):
        crashes.read(step)
    return crashes.told(raw, seen)


def evidence(seen: ClusterState) -> Iterator[Evidence]:
    """Yield what vectorAdds printed last whose pods are there."""
    for component, runs_in in RUNS_IN.items():
        for target in seen.context.targets:
            for pod in seen.pods.get((runs_in, target.name), ()):
                if verdict := verdict_of(pod):
                    name = pod["metadata"]["name"]
                    yield Evidence(
                        component=component, node=target.name, pod=name, passed=verdict.passed, lines=verdict.lines
                    )
