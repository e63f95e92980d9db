"""Where a stack stands in rows for a reader: one per component, one per node. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpu_provision import components
from gpu_provision.components import labels
from gpu_provision.model.cluster import NodeFacts, Target
from gpu_provision.model.progress import ComponentStatus, NodeState, NodeStatus, State
from gpu_provision.planning.node_writes import has_startup_taint
from gpu_provision.planning.states import Key, Situation

_STARTUP_TAINT = "has the startup taint"
_WORST = (State.FAILED, State.BLOCKED, State.LEAVING, State.PROGRESSING, State.PENDING, State.READY)


def component_rows(seen: Situation, settled: Mapping[Key, NodeState]) -> tuple[ComponentStatus, ...]:
    """Return a row per component, in dependency order."""
    own = _grouped((name, state) for (name, _), state in settled.items())
    return tuple(_component(name, own[name], seen) for name in seen.desired if name in own)


def node_rows(seen: Situation, settled: Mapping[Key, NodeState]) -> tuple[NodeStatus, ...]:
    """Return a row per node of the cluster."""
    own = _grouped((node, state) for (_, node), state in settled.items())
    targets = {target.name: target for target in seen.context.targets}
    pools = {node.name: node.pool for node in seen.context.inventory.nodes}
    return tuple(
        _node(node, targets.get(node.name), pools.get(node.name, ""), own.get(node.name, []))
        for node in seen.context.facts.nodes
    )


def worst_of(found: Iterable[NodeState]) -> NodeState:
    """Return the state that a reader should know of first."""
    return min(found, key=lambda state: _WORST.index(state.state))


def told(state: NodeState) -> str:
    """Return the reason of a state with its node."""
    return f"{state.node}: {state.reason}" if state.node and state.reason else state.reason


def _grouped(found: Iterable[tuple[str, NodeState]]) -> dict[str, list[NodeState]]:
    groups: dict[str, list[NodeState]] = {}
    for name, state in found:
        groups.setdefault(name, []).append(state)
    return groups


def _component(name: str, own: list[NodeState], seen: Situation) -> ComponentStatus:
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
        reason=told(worst),
    )


def _node(node: NodeFacts, target: Target | None, pool: str, own: list[NodeState]) -> NodeStatus:
    worst = worst_of(own) if own else None
    return NodeStatus(
        node=node.name,
        pool=target.pool.name if target else pool,
        os=f"{node.os.id} {node.os.version}" if node.os else "",
        gpu=node.labels.get(labels.GPU_PRODUCT, "") or (target.pool.gpu.model if target and target.pool.gpu else ""),
        gpus=_number(node.labels.get(labels.GPU_COUNT, "")),
        driver=node.labels.get(labels.DRIVER_VERSION, ""),
        driver_on_host=bool(target and target.driver.on_host),
        allocatable=node.gpus_allocatable,
        state=worst.state if worst else State.READY,
        reason=_reason(node, worst),
    )


def _reason(node: NodeFacts, worst: NodeState | None) -> str:
    found = f"{worst.component}: {worst.reason}" if worst and worst.reason else _nodes_own_reason(node)
    return "; ".join(filter(None, (found, _STARTUP_TAINT if has_startup_taint(node) else "")))


def _nodes_own_reason(node: NodeFacts) -> str:
    if not node.ready:
        return "NotReady"
    return "cordoned" if node.unschedulable else ""


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None
