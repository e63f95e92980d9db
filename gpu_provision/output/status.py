"""The stack as it stands: components, nodes, and what the validations printed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from gpu_provision.model.progress import ComponentStatus, Evidence, LockHolder, NodeStatus, Outside, State, Status
from gpu_provision.output.text import PLAIN, Style, indented, ranges, table

_COMPONENT_HEADERS = ("COMPONENT", "VERSION", "DESIRED", "READY", "STATE", "REASON")
_NODE_HEADERS = (
    "NODE",
    "POOL",
    "OS",
    "GPU",
    "GPUS",
    "DRIVER",
    "nvidia.com/gpu",  # allocatable, under the name that kubectl shows
    "STATE",
)
_MOST_OF_REASON = 160
_BACK_OFF = re.compile(r": back-off \S+ restarting failed container=\S+ pod=\S+\([0-9a-f-]{36}\)")
_NOTHING = "-"


def text(status: Status, style: Style = PLAIN) -> str:
    """Return the heading, both tables, and the evidence."""
    parts = [
        style.bold(f"Inventory {status.inventory}, release {status.release}, cluster {status.cluster}"),
        style.paint("yellow", f"A run is writing: {status.lock}") if status.lock else "",
        *(_tables(status, style) if status.installed else (not_installed(status.inventory, status.cluster),)),
    ]
    return "\n\n".join(part for part in parts if part)


def not_installed(inventory: str, cluster: str) -> str:
    """Return the one sentence about a cluster without the stack."""
    return f"Not installed: cluster {cluster} has nothing of inventory {inventory}."


def _tables(status: Status, style: Style) -> tuple[str, ...]:
    return components(status.components, style), nodes(status.nodes, style), evidence(status.evidence, style)


def is_ready(status: Status) -> bool:
    """Return whether every component and every GPU node is ready; a node that the inventory does not name is none."""
    states: list[State | Outside] = [row.state for row in status.components]
    states += [row.state for row in status.nodes if has_gpu(row) and row.state is not Outside.UNDECLARED]
    return all(state is State.READY for state in states)


def components(rows: Iterable[ComponentStatus], style: Style = PLAIN) -> str:
    """Return the table of components."""
    cells = [
        (row.component, _versions(row), row.desired, row.ready, style.state(row.state), _short(row.reason))
        for row in rows
    ]
    return table(_COMPONENT_HEADERS, [tuple(map(str, row)) for row in cells], style) if cells else ""


def _versions(row: ComponentStatus) -> str:
    """Return the version, or ``580.126.20 (h100, l40s), 595.91.07 (t4)`` where pools differ."""
    pools: dict[str, list[str]] = {}
    for pool, version in sorted(row.versions.items()):
        pools.setdefault(version, []).append(pool)
    told = [f"{version} ({', '.join(names)})" for version, names in sorted(pools.items())]
    return ", ".join(told) or row.version or _NOTHING


def nodes(rows: Iterable[NodeStatus], style: Style = PLAIN) -> str:
    """Return the table of nodes, with a column for cordons if there are any."""
    found = tuple(rows)
    if not found:
        return ""
    are_cordoned = any(row.cordoned for row in found)
    headers = (*_NODE_HEADERS, *(("CORDONED BY",) if are_cordoned else ()), "REASON")
    return table(headers, [_node(row, style, with_cordon=are_cordoned) for row in found], style)


def has_gpu(row: NodeStatus) -> bool:
    """Return whether a node is declared or seen with a GPU."""
    return bool(row.gpu or row.gpus)


def _node(row: NodeStatus, style: Style, *, with_cordon: bool) -> tuple[str, ...]:
    return (
        row.node,
        row.pool or _NOTHING,
        row.os or _NOTHING,
        row.gpu or _NOTHING,
        _number(row.gpus),
        _driver(row),
        _number(row.allocatable),
        style.state(row.state),
        *((row.cordoned_by or _NOTHING,) if with_cordon else ()),
        _short(row.reason),
    )


def _driver(row: NodeStatus) -> str:
    if row.driver:
        return f"{row.driver} (host)" if row.driver_on_host else row.driver
    is_expected = has_gpu(row) and isinstance(row.state, State) and not row.driver_on_host
    return "not loaded" if is_expected else _NOTHING


def _short(reason: str) -> str:
    """Return a reason that fits a table: without what a kubelet says of back-offs, cut; ``--json`` has all of it."""
    told = _BACK_OFF.sub("", reason)
    return told if len(told) <= _MOST_OF_REASON else f"{told[: _MOST_OF_REASON - 3]}..."


def _number(value: int | None) -> str:
    return _NOTHING if value is None else str(value)


def evidence(found: Iterable[Evidence], style: Style = PLAIN) -> str:
    """Return what the validation pods printed, their own lines; equal ones once, under the names of the nodes."""
    blocks = [[evidence_title(group, style), indented("\n".join(group[0].lines))] for group in evidence_groups(found)]
    return "\n".join("\n".join(block).rstrip() for block in blocks)


def evidence_groups(found: Iterable[Evidence]) -> list[list[Evidence]]:
    """Return validations that printed the same and ended in the same way together."""
    groups: dict[tuple[object, ...], list[Evidence]] = {}
    for each in found:
        groups.setdefault((each.component, each.passed, each.lines), []).append(each)
    return list(groups.values())


def evidence_title(group: Sequence[Evidence], style: Style = PLAIN) -> str:
    """Return which validation it was, on which nodes, and how it ended."""
    first = group[0]
    verdict = style.paint("green", "passed") if first.passed else style.paint("red", "failed")
    pods = f"pod {first.pod}" if len(group) == 1 else f"{len(group)} pods, such as {first.pod}"
    return f"{first.component} on {ranges(each.node for each in group)}: {verdict} ({pods})"


def evidence_document(each: Evidence) -> dict[str, Any]:
    """Return one validation's outcome as a JSON-able dict."""
    return {
        "component": each.component,
        "node": each.node,
        "pod": each.pod,
        "passed": each.passed,
        "lines": list(each.lines),
    }


def document(status: Status) -> dict[str, Any]:
    """Return the status's own parts of its JSON document."""
    return {
        "inventory": status.inventory,
        "release": status.release,
        "cluster": status.cluster,
        "installed": status.installed,
        "ready": is_ready(status),
        "components": [_component_document(row) for row in status.components],
        "nodes": [_node_document(row) for row in status.nodes],
        "evidence": [evidence_document(each) for each in status.evidence],
        "lock": lock_document(status.lock),
    }


def lock_document(lock: LockHolder | None) -> dict[str, Any] | None:
    """Return who writes as a JSON-able dict; None for nobody."""
    return None if lock is None else asdict(lock)


def _component_document(row: ComponentStatus) -> dict[str, Any]:
    return {
        "component": row.component,
        "title": row.title,
        "version": row.version,
        "versions": dict(row.versions),
        "desired": row.desired,
        "ready": row.ready,
        "state": row.state.value,
        "reason": row.reason,
    }


def _node_document(row: NodeStatus) -> dict[str, Any]:
    return {
        "node": row.node,
        "pool": row.pool,
        "os": row.os,
        "gpu": row.gpu,
        "gpus": row.gpus,
        "driver": row.driver,
        "driver_on_host": row.driver_on_host,
        "allocatable": row.allocatable,
        "state": row.state.value,
        "reason": row.reason,
        "cordoned": row.cordoned,
        "cordoned_by": row.cordoned_by,
    }
