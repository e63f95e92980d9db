"""How drivers are going to be replaced, as text and as JSON.

Text is for any number of nodes: equal waves share a line, and so are pods of one owner; what is longer
than that is counted. JSON has all of it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from gpu_provision.model.plan import Eviction, NodePreview, Schedule, Wave
from gpu_provision.output.findings import plain
from gpu_provision.output.text import PLAIN, Style, counted, grouped, in_order, ranges

_MOST = 12  # lines of one kind
_FEW = 6  # waves with a line each
_COMES_BACK = "; it tolerates cordons, so it may come back and keep the new driver from starting"
_OF_DRIVERS = "rollout of the driver"
_RESTARTS = "; the stack's other pods on a node restart with its driver"
_Placed = tuple[str, Eviction]
"""A node, and a pod on it."""


def text(schedule: Schedule, style: Style = PLAIN) -> str:
    """Return what happens to nodes and pods while drivers are replaced, if nothing fails."""
    return "\n".join([style.bold(_heading(schedule)), *(f"  {line}" for line in lines(schedule))])


def is_reported(schedule: Schedule) -> bool:
    """Return whether there is anything for people: that a node's state of upgrades is written is for the tool."""
    return bool(schedule.under_way or schedule.waves or schedule.skipped)


def _heading(schedule: Schedule) -> str:
    nodes, waves = len(schedule.nodes), len(schedule.waves)
    if not nodes:
        return _OF_DRIVERS
    what = _OF_DRIVERS if not all(outlook.leaves for outlook in schedule.nodes) else "nodes that leave"
    pods = sum(len(outlook.evicts) for outlook in schedule.nodes)
    leaving = f", {counted(pods, 'pod')} to evict" if pods else ""
    restarts = _RESTARTS if what == _OF_DRIVERS else ""
    bounds = [node.seconds for node in schedule.nodes]
    minutes = f", up to {-(-max(bounds) // 60)} min a node" if all(bounds) else ""
    return f"{what}: {counted(nodes, 'node')} in {counted(waves, 'wave')}{leaving}{minutes}{restarts}"


def lines(schedule: Schedule) -> Iterator[str]:
    """Yield the plan of a rollout, line by line."""
    if schedule.under_way:
        yield f"first, what an earlier run began is finished: {ranges(schedule.under_way)}"
    yield from _reasons(schedule.nodes)
    yield from _short(_waves(schedule.waves))
    yield from _stops(schedule)
    yield from _short(_waits(schedule.nodes))
    yield from _short(_evictions(schedule.nodes))
    yield from _short(_stays(schedule.nodes))
    yield from _short(_cordons(schedule.nodes))
    yield from _short(_skipped(schedule.skipped))


def _short(found: Iterable[str]) -> Iterator[str]:
    """Yield the first lines of one kind, and how many more there are."""
    told = list(found)
    most = _MOST if len(told) > _MOST + 1 else len(told)
    yield from told[:most]
    if told[most:]:
        yield f"and {len(told) - most} more lines of this kind; --json has all of them"


def _reasons(nodes: Iterable[NodePreview]) -> Iterator[str]:
    for why, members in grouped(nodes, lambda outlook: outlook.why).items():
        yield f"{why}: {ranges(outlook.node for outlook in members)}"


def _waves(waves: Sequence[Wave]) -> Iterator[str]:
    """Yield a line for each of a few waves; of many, one for those in a row that start under the same conditions."""
    number, are_few = 0, len(waves) <= _FEW

    def likeness(numbered: tuple[int, Wave]) -> Hashable:
        place, wave = numbered
        return place if are_few else None, wave.is_canary, wave.not_before

    for _, members in groupby(enumerate(waves), likeness):
        alike = [wave for _, wave in members]
        names = in_order(outlook.node for wave in alike for outlook in wave.nodes)
        first, number = number + 1, number + len(alike)
        which = f"wave {first}" if len(alike) == 1 else f"waves {first}..{number}"
        canary, not_before = " (canary)" if alike[0].is_canary else "", alike[0].not_before
        when = f", not before {_moment(not_before)}" if not_before is not None else ""
        yield f"{which}{canary}{when}{_size(alike)}: {names}"


def _size(alike: list[Wave]) -> str:
    if len(alike) == 1:
        return ""
    most = max(len(wave.nodes) for wave in alike)
    return ", one node at a time" if most == 1 else f", up to {most} nodes at a time"


def _stops(schedule: Schedule) -> Iterator[str]:
    if len(schedule.waves) > 1:
        failures = counted(schedule.stop_after, "node")
        yield f"each wave follows only if those before it go well: no further node starts once {failures} failed"


def _waits(nodes: Iterable[NodePreview]) -> Iterator[str]:
    for group in _by_owner((outlook.node, pod) for outlook in nodes for pod in outlook.waits_for):
        yield f"waits for {_pods(group)} to end"


def _evictions(nodes: Iterable[NodePreview]) -> Iterator[str]:
    for group in _by_owner((outlook.node, pod) for outlook in nodes for pod in outlook.evicts):
        pod = group[0][1]
        why = f", {_each(group)} {pod.use}" if pod.use else ", if evicting GPU pods is not enough"
        back = _COMES_BACK if pod.returns else ""
        yield f"{'will' if pod.certain else 'may'} evict {_pods(group)}{why}{_blocked(pod)}{back}"


def _blocked(pod: Eviction) -> str:
    if pod.budgets:
        return f"; blocked: PodDisruptionBudget {', '.join(pod.budgets)} allows no disruption right now"
    return f"; slowed: PodDisruptionBudget {', '.join(pod.slowed_by)} lets fewer go at a time" if pod.slowed_by else ""


def _stays(nodes: Iterable[NodePreview]) -> Iterator[str]:
    for group in _by_owner((outlook.node, pod) for outlook in nodes for pod in outlook.stays):
        yield f"leaves {_pods(group)}, {_each(group)} {group[0][1].use} and may keep the driver"


def _cordons(nodes: Iterable[NodePreview]) -> Iterator[str]:
    cordoned = (outlook for outlook in nodes if outlook.cordoned_by)
    for whose, members in grouped(cordoned, lambda outlook: outlook.cordoned_by).items():
        yield f"stays cordoned, as {whose} left it: {ranges(outlook.node for outlook in members)}"


def _skipped(skipped: Iterable[tuple[str, str]]) -> Iterator[str]:
    for reason, members in grouped(skipped, lambda each: each[1]).items():
        yield f"skipped: {ranges(node for node, _ in members)}: {reason}"


def _by_owner(placed: Iterable[_Placed]) -> Iterable[list[_Placed]]:
    def likeness(each: _Placed) -> Hashable:
        pod = each[1]
        return pod.namespace, pod.owner or pod.name, pod.use, pod.certain, pod.budgets, pod.slowed_by, pod.returns

    return grouped(placed, likeness).values()


def _pods(group: list[_Placed]) -> str:
    pod, where = group[0][1], ranges(node for node, _ in group)
    if len(group) > 1:
        kind, _, name = pod.owner.partition(" ")
        return f"{len(group)} pods of {kind} {pod.namespace}/{name} on {where}"
    owner = f" ({pod.owner})" if pod.owner else ""
    return f"{pod.namespace}/{pod.name}{owner} on {where}"


def _each(group: list[_Placed]) -> str:
    return "which" if len(group) == 1 else "each of which"


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def document(schedule: Schedule) -> dict[str, Any]:
    """Return a schedule as a JSON-able dict."""
    return {
        **plain(schedule),
        "waves": [_wave_document(wave) for wave in schedule.waves],
        "skipped": [{"node": node, "reason": reason} for node, reason in schedule.skipped],
    }


def _wave_document(wave: Wave) -> dict[str, Any]:
    moment = wave.not_before
    return {
        "canary": wave.is_canary,
        "not_before": None if moment is None else datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds"),
        "nodes": [_node_document(outlook) for outlook in wave.nodes],
    }


def _node_document(outlook: NodePreview) -> dict[str, Any]:
    document = plain(outlook)
    for pod in (*document["waits_for"], *document["evicts"], *document["stays"]):
        pod["blocked_by"] = pod.pop("budgets")
    return document  # type: ignore[no-any-return]
