"""The stack as it stands, from one reading: a row per component, a row per node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpu_provision import components
from gpu_provision.cluster.client import Cluster
from gpu_provision.components import labels
from gpu_provision.diagnose import pods as pod_view
from gpu_provision.engine.reading import Reading
from gpu_provision.engine.settle import settler_of
from gpu_provision.model.cluster import Manifest, NodeFacts, Target, ref_of
from gpu_provision.model.findings import ProvisionError
from gpu_provision.model.progress import ComponentStatus, Evidence, NodeState, NodeStatus, State, Status
from gpu_provision.planning.states import Key, Situation, situation, states
from gpu_provision.planning.upgrades import at_rest

_MOST_LOGS = 10  # evidence is for reading; a fleet's is in the run's record
_WORST = (State.FAILED, State.BLOCKED, State.PROGRESSING, State.PENDING, State.READY)


def status(cluster: Cluster, reading: Reading) -> Status:
    """Return what `gpu-provision status` shows. Reads a few logs besides the reading."""
    seen = situation(reading.context, reading.desired, reading.observed)
    settled = {key: at_rest(state) for key, state in settler_of(reading).settle(states(seen), 0.0).items()}
    inventory = reading.context.inventory
    return Status(
        inventory=inventory.name,
        cluster=reading.observed.cluster,
        release=inventory.release,
        components=tuple(_component(name, seen, settled) for name in reading.desired),
        nodes=tuple(_node(node, seen, settled) for node in reading.context.facts.nodes),
        evidence=tuple(_evidence(cluster, seen)),
        lock=reading.observed.lock,
    )


def _component(name: str, seen: Situation, settled: Mapping[Key, NodeState]) -> ComponentStatus:
    component = next(item for item in components.COMPONENTS if item.name == name)
    own = [state for (owner, _), state in settled.items() if owner == name]
    per_node = [state for state in own if state.node]
    counted = per_node or own
    worst = _worst(own)
    spec = component.spec(seen.context.inventory)
    return ComponentStatus(
        component=name,
        title=component.title,
        version=component.version(spec) if spec is not None else "",
        desired=len(counted),
        ready=sum(state.state is State.READY for state in counted),
        state=worst.state,
        reason=_told(worst),
    )


def _worst(found: Iterable[NodeState]) -> NodeState:
    return min(found, key=lambda state: _WORST.index(state.state))


def _told(state: NodeState) -> str:
    return f"{state.node}: {state.reason}" if state.node and state.reason else state.reason


def _node(node: NodeFacts, seen: Situation, settled: Mapping[Key, NodeState]) -> NodeStatus:
    target = next((item for item in seen.context.targets if item.name == node.name), None)
    own = [state for (_, name), state in settled.items() if name == node.name]
    worst = _worst(own) if own else None
    return NodeStatus(
        node=node.name,
        pool=_pool(node, target, seen),
        os=f"{node.os.id} {node.os.version}" if node.os else "",
        gpu=node.labels.get(labels.GPU_PRODUCT, "") or (target.pool.gpu.model if target and target.pool.gpu else ""),
        gpus=_number(node.labels.get(labels.GPU_COUNT, "")),
        driver=node.labels.get(labels.DRIVER_VERSION, ""),
        driver_on_host=bool(target and target.driver.on_host),
        allocatable=node.gpus_allocatable,
        state=worst.state if worst else State.READY,
        reason=f"{worst.component}: {worst.reason}" if worst and worst.reason else _nodes_own_reason(node),
    )


def _pool(node: NodeFacts, target: Target | None, seen: Situation) -> str:
    if target:
        return target.pool.name
    return next((item.pool for item in seen.context.inventory.nodes if item.name == node.name), "")


def _nodes_own_reason(node: NodeFacts) -> str:
    if not node.ready:
        return "NotReady"
    return "cordoned" if node.unschedulable else ""


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _evidence(cluster: Cluster, seen: Situation) -> Iterable[Evidence]:
    wanted = [(name, item) for name, items in seen.desired.items() for item in items if item["kind"] == "Pod"]
    live = [(name, pod) for name, item in wanted if (pod := seen.observed.pods.get(ref_of(item)))]
    ended = [(name, pod) for name, pod in live if pod_view.phase(pod) in {"Succeeded", "Failed"}]
    for name, pod in ended[:_MOST_LOGS]:
        yield _read(cluster, name, pod)


def _read(cluster: Cluster, component: str, pod: Manifest) -> Evidence:
    try:
        lines = cluster.log(ref_of(pod), pod["spec"]["containers"][0]["name"])
    except ProvisionError:
        lines = ()
    return Evidence(
        component=component,
        node=pod_view.node_of(pod),
        pod=pod["metadata"]["name"],
        passed=pod_view.phase(pod) == "Succeeded",
        lines=lines,
    )
