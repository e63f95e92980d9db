"""The rollout of drivers as text and as JSON.

In the text equal waves share a line, and so do pods of one owner; long lists are cut and counted. JSON has everything.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from gpu_provision.model.plan import Eviction, NodePreview, Schedule, Wave
from gpu_provision.model.text import pluralize
from gpu_provision.output.findings import to_json_value
from gpu_provision.output.text import PLAIN, Style, group_by, ordered_ranges, ranges

_MAX_NAMES = 12  # lines of one kind
_FEW = 6  # waves with a line each
_COMES_BACK = "; it tolerates cordons, so it may come back and keep the new driver from starting"
_PAUSES = "; the stack's pods that use GPUs restart on a node with other MIG devices"
_RESTARTS = "; the stack's other pods on a node restart with its driver"


def text(schedule: Schedule, style: Style = PLAIN) -> str:
    """Return the changes of nodes and pods during the rollout, if nothing fails."""
    return "\n".join([style.bold(_heading(schedule)), *(f"  {line}" for line in lines(schedule))])


def is_reported(schedule: Schedule) -> bool:
    """Return whether the schedule has anything to report besides upgrade states."""
    return bool(schedule.under_way or schedule.waves or schedule.skipped)


def _heading(schedule: Schedule) -> str:
    nodes = schedule.nodes
    if not nodes:
        return "rollout of the driver"
    leave = all(outlook.leaves for outlook in nodes)
    pods, bounds = sum(len(outlook.evicts) for outlook in nodes), [outlook.seconds for outlook in nodes]
    leaving = f", {pluralize(pods, 'pod')} to evict" if pods else ""
    minutes = f", up to {-(-max(bounds) // 60)} min a node" if all(bounds) else ""
    size = f"{pluralize(len(nodes), 'node')} in {pluralize(len(schedule.waves), 'wave')}{leaving}{minutes}"
    if leave:
        return f"nodes that leave: {size}"
    if all(outlook.leaves or outlook.keeps_driver for outlook in nodes):
        return f"rollout of MIG devices: {size}{_PAUSES}"
    return f"rollout of the driver: {size}{_RESTARTS}"


def lines(schedule: Schedule) -> Iterator[str]:
    """Yield the plan of a rollout, line by line."""
    nodes = schedule.nodes
    if schedule.under_way:
        yield f"first, what an earlier run began is finished: {ranges(schedule.under_way)}"
    for why, members in group_by(nodes, lambda outlook: outlook.why).items():
        yield f"{why}: {ranges(outlook.node for outlook in members)}"
    yield from _limit_lines(_waves(schedule.waves))
    if len(schedule.waves) > 1:
        yield f"stops after {pluralize(schedule.stop_after, 'failed node')}"
    yield from _limit_lines(f"waits for {_pods(*each)} to end" for each in _by_owner(nodes, "waits_for"))
    yield from _limit_lines(_eviction(*each) for each in _by_owner(nodes, "evicts"))
    yield from _limit_lines(
        f"leaves {_pods(where, group)}, {_pronoun(group)} {group[0].use} and may keep the driver"
        for where, group in _by_owner(nodes, "stays")
    )
    cordoned = group_by((each for each in nodes if each.cordoned_by), lambda outlook: outlook.cordoned_by)
    yield from _limit_lines(
        f"stays cordoned, as {whose} left it: {ranges(outlook.node for outlook in members)}"
        for whose, members in cordoned.items()
    )
    yield from _limit_lines(
        f"skipped: {ranges(node for node, _ in members)}: {reason}"
        for reason, members in group_by(schedule.skipped, lambda each: each[1]).items()
    )


def _limit_lines(texts: Iterable[str]) -> Iterator[str]:
    """Yield the first lines of one kind, and the number of the others."""
    every = list(texts)
    most = _MAX_NAMES if len(every) > _MAX_NAMES + 1 else len(every)
    yield from every[:most]
    if every[most:]:
        yield f"and {len(every) - most} more lines of this kind; --json has all of them"


def _waves(waves: Sequence[Wave]) -> Iterator[str]:
    """Yield a line for each of a few waves; of many, one for consecutive waves with the same conditions."""
    number, are_few = 0, len(waves) <= _FEW

    def likeness(numbered: tuple[int, Wave]) -> Hashable:
        position, wave = numbered
        return position if are_few else None, wave.is_canary, wave.not_before

    for _, members in groupby(enumerate(waves), likeness):
        alike = [wave for _, wave in members]
        names = ordered_ranges(outlook.node for wave in alike for outlook in wave.nodes)
        first, number = number + 1, number + len(alike)
        which, size, most = f"wave {first}", "", max(len(wave.nodes) for wave in alike)
        if len(alike) > 1:
            which = f"waves {first}..{number}"
            size = ", one node at a time" if most == 1 else f", up to {most} nodes at a time"
        when = ""
        if (moment := alike[0].not_before) is not None:
            when = f", not before {datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M:%S UTC}"
        yield f"{which}{' (canary)' if alike[0].is_canary else ''}{when}{size}: {names}"


def _eviction(nodes: list[str], group: list[Eviction]) -> str:
    pod = group[0]
    why = f", {_pronoun(group)} {pod.use}" if pod.use else ", if evicting GPU pods is not enough"
    budget = (
        f"; slowed: PodDisruptionBudget {', '.join(pod.slowed_by)} lets fewer go at a time" if pod.slowed_by else ""
    )
    if pod.budgets:
        budget = f"; blocked: PodDisruptionBudget {', '.join(pod.budgets)} allows no disruption right now"
    back = _COMES_BACK if pod.returns else ""
    return f"{'will' if pod.certain else 'may'} evict {_pods(nodes, group)}{why}{budget}{back}"


def _by_owner(outlooks: Iterable[NodePreview], kind: str) -> Iterator[tuple[list[str], list[Eviction]]]:
    """Yield the nodes and the pods of each owner; ``kind`` is the field of `NodePreview` with the pods."""

    def likeness(each: tuple[str, Eviction]) -> Hashable:
        pod = each[1]
        return pod.namespace, pod.owner or pod.name, pod.use, pod.certain, pod.budgets, pod.slowed_by, pod.returns

    placed = ((outlook.node, pod) for outlook in outlooks for pod in getattr(outlook, kind))
    for group in group_by(placed, likeness).values():
        yield [node for node, _ in group], [pod for _, pod in group]


def _pods(nodes: list[str], group: list[Eviction]) -> str:
    pod, where = group[0], ranges(nodes)
    if len(group) > 1:
        kind, _, name = pod.owner.partition(" ")
        return f"{len(group)} pods of {kind} {pod.namespace}/{name} on {where}"
    owner = f" ({pod.owner})" if pod.owner else ""
    return f"{pod.namespace}/{pod.name}{owner} on {where}"


def _pronoun(group: list[Eviction]) -> str:
    return "which" if len(group) == 1 else "each of which"


def document(schedule: Schedule) -> dict[str, Any]:
    """Return a schedule as a JSON-able dict."""
    waves = []
    for wave in schedule.waves:
        begin = None if wave.not_before is None else datetime.fromtimestamp(wave.not_before, UTC)
        nodes = [to_json_value(outlook) for outlook in wave.nodes]
        for pod in (pod for node in nodes for key in ("waits_for", "evicts", "stays") for pod in node[key]):
            pod["blocked_by"] = pod.pop("budgets")
        moment = begin and begin.isoformat(timespec="seconds")
        waves.append({"canary": wave.is_canary, "not_before": moment, "nodes": nodes})
    skipped = [{"node": node, "reason": reason} for node, reason in schedule.skipped]
    return {**to_json_value(schedule), "waves": waves, "skipped": skipped}
