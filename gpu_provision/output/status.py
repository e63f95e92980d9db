"""The state of a stack, a run and its hosts: components, nodes and the output of validations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from gpu_provision.hosts.result import REBOOTED, HostOutcome, HostsResult
from gpu_provision.model.progress import (
    ComponentStatus,
    Evidence,
    NodeState,
    NodeStatus,
    OutsideState,
    RunResult,
    State,
    Status,
)
from gpu_provision.model.text import pluralize
from gpu_provision.output.findings import has_errors, to_json_value
from gpu_provision.output.text import PLAIN, Style, group_by, indent, ranges, table

_WORSE = (State.READY, State.PENDING, State.PROGRESSING, State.LEAVING, State.BLOCKED, State.FAILED)
_MAX_REASON = 160
_BACK_OFF = re.compile(r": back-off \S+ restarting failed container=\S+ pod=\S+\([0-9a-f-]{36}\)")


def text(status: Status, style: Style = PLAIN, *, verbose: bool = False) -> str:
    """Return the heading, both tables and the evidence; with ``verbose`` all output of validations."""
    printed = evidence(status.evidence, style, verbose=verbose)
    tables = (components(status.components, style), nodes(status.nodes, style, with_os=verbose), printed)
    parts = [
        style.bold(f"Inventory {status.inventory}, release {status.release}, cluster {status.cluster}"),
        style.paint("yellow", f"A run is writing: {status.lock}") if status.lock else "",
        *(tables if status.installed else (not_installed(status.inventory, status.cluster),)),
    ]
    return "\n\n".join(filter(None, parts))


def not_installed(inventory: str, cluster: str) -> str:
    """Return the sentence for a cluster without the stack."""
    return f"Not installed: cluster {cluster} has nothing of inventory {inventory}."


def is_ready(status: Status) -> bool:
    """Return whether every component and every declared GPU node is ready."""
    states: list[State | OutsideState] = [row.state for row in status.components]
    states += [row.state for row in status.nodes if has_gpu(row) and row.state is not OutsideState.UNDECLARED]
    return all(state is State.READY for state in states)


def components(rows: Iterable[ComponentStatus], style: Style = PLAIN) -> str:
    """Return the table of components."""
    cells = [
        (row.component, _versions(row), f"{row.ready}/{row.desired}", style.state(row.state), _shorten(row.reason))
        for row in rows
    ]
    return table(("COMPONENT", "VERSION", "READY", "STATE", "REASON"), cells, style)


def _versions(row: ComponentStatus) -> str:
    """Return the version, or ``580.126.20 (h100, l40s), 595.91.07 (t4)`` where pools differ."""
    pools = group_by(sorted(row.versions), lambda pool: row.versions[pool])
    by_pool = ", ".join(f"{version} ({', '.join(names)})" for version, names in sorted(pools.items()))
    return by_pool or row.version or "-"


def nodes(rows: Iterable[NodeStatus], style: Style = PLAIN, *, with_os: bool = False) -> str:
    """Return the table of nodes, with a column for cordons if there are any.

    GPUS is allocatable/total.
    """
    every = tuple(rows)
    optional = {"OS": with_os, "CORDONED BY": any(row.cordoned for row in every)}
    cells = [
        {
            "NODE": row.node,
            "POOL": row.pool,
            "OS": row.os,
            "GPU": row.gpu,
            "GPUS": _gpus(row),
            "DRIVER": _driver(row),
            "STATE": style.state(row.state),
            "CORDONED BY": row.cordoned_by,
            "REASON": _shorten(row.reason),
        }
        for row in every
    ]
    headers = [header for header in (cells[0] if cells else ()) if optional.get(header, True)]
    return table(
        headers, [[row[header] or ("" if header == "REASON" else "-") for header in headers] for row in cells], style
    )


def _gpus(row: NodeStatus) -> str:
    counts = (row.allocatable, row.gpus)
    return "-" if counts == (None, None) else "/".join("?" if value is None else str(value) for value in counts)


def has_gpu(row: NodeStatus) -> bool:
    """Return whether a node is declared or observed with a GPU."""
    return bool(row.gpu or row.gpus)


def _driver(row: NodeStatus) -> str:
    if row.driver:
        return f"{row.driver} (host)" if row.driver_on_host else row.driver
    is_expected = has_gpu(row) and isinstance(row.state, State) and not row.driver_on_host
    return "not loaded" if is_expected else "-"


def _shorten(reason: str) -> str:
    """Return a reason that fits a table: without the kubelet's back-off details, and cut."""
    short = _BACK_OFF.sub("", reason)
    return short if len(short) <= _MAX_REASON else f"{short[: _MAX_REASON - 3]}..."


def evidence(results: Iterable[Evidence], style: Style = PLAIN, *, verbose: bool = True) -> str:
    """Return the results of validations, with the output of failed ones, or of all if ``verbose``."""
    blocks = []
    for group in evidence_groups(results):
        blocks.append(evidence_title(group, style))
        if verbose or not group[0].passed:
            blocks.append(indent("\n".join(group[0].lines)))
    return "\n".join(filter(None, blocks))


def evidence_groups(results: Iterable[Evidence]) -> list[list[Evidence]]:
    """Group validations with the same result and the same output."""
    return list(group_by(results, lambda each: (each.component, each.passed, each.lines)).values())


def evidence_title(group: Sequence[Evidence], style: Style = PLAIN) -> str:
    """Return the component, the nodes and the result of a group of validations."""
    first = group[0]
    verdict = style.paint("green", "passed") if first.passed else style.paint("red", "failed")
    pods = f"pod {first.pod}" if len(group) == 1 else f"{len(group)} pods, such as {first.pod}"
    return f"{first.component} on {ranges(each.node for each in group)}: {verdict} ({pods})"


def document(status: Status) -> dict[str, Any]:
    """Return the status's own parts of its JSON document."""
    return {**to_json_value(status), "ready": is_ready(status)}


def has_succeeded(result: RunResult) -> bool:
    """Return whether every component is ready on every node, without errors."""
    return not has_errors(result.findings) and all(each.state is State.READY for each in result.states)


def run_text(result: RunResult, style: Style = PLAIN) -> str:
    """Return a table of components, the evidence of the validations, and one closing sentence."""
    rows = component_rows(result.states, style)
    drawn = table(("COMPONENT", "READY", "STATE", "NODES AND REASONS"), rows, style)
    return "\n\n".join(filter(None, (drawn, evidence(result.evidence, style), closing(result, style))))


def closing(result: RunResult, style: Style = PLAIN) -> str:
    """Return one sentence with the outcome, the writes, the requests and the seconds."""
    written = f"{pluralize(result.changed, 'object')} written" if result.changed else "No changes"
    figures = f"{written}, {result.requests} API requests, {result.seconds:.1f} s"
    unready = [each for each in result.states if each.state is not State.READY]
    if unready:
        where = ranges({each.node for each in unready if each.node})
        names = ", ".join(dict.fromkeys(each.component for each in unready))
        return style.paint("red", f"Not as declared: {names}{f' on {where}' if where else ''}. {figures}.")
    if not has_succeeded(result):
        return style.paint("red", f"Not as declared, see below. {figures}.")
    return style.paint("green", f"Everything is as declared. {figures}.")


def component_rows(states: Iterable[NodeState], style: Style = PLAIN) -> list[tuple[str, str, str, str]]:
    """Return a row per component: name, ready count, worst state and reasons.

    Reasons are ``nodes: reason``, with equal reasons together.
    """
    rows = []
    for component, own in group_by(states, lambda each: each.component).items():
        on_nodes = [each for each in own if each.node] or own
        unready = [each for each in own if each.state is not State.READY]
        reasons = []
        for reason, group in group_by(unready, lambda each: each.reason or each.state.value).items():
            named = ranges(each.node for each in group if each.node)
            reasons.append(f"{named}: {reason}" if named else reason)
        ready = sum(each.state is State.READY for each in on_nodes)
        worst = max((each.state for each in own), key=_WORSE.index)
        rows.append((component, f"{ready}/{len(on_nodes)}", style.state(worst), "; ".join(reasons)))
    return rows


def run_document(result: RunResult) -> dict[str, Any]:
    """Return the run's own parts of its JSON document."""
    states = [{key: value for key, value in each.items() if key != "step"} for each in to_json_value(result.states)]
    fields = {key: to_json_value(getattr(result, key)) for key in ("changed", "requests", "run", "evidence")}
    return {**fields, "seconds": round(result.seconds, 3), "succeeded": has_succeeded(result), "states": states}


NO_HOST = "No host takes part. Nothing was changed."
"""Text of a command for the host phase alone without a host; the finding `codes.NO_HOST` has the reason."""


def hosts_text(result: HostsResult, style: Style = PLAIN, *, done: bool = True) -> str:
    """Return one block per group of equal hosts: sign, names, GPUs, then the changes or the pending changes."""
    blocks = []
    for group in group_by(result.hosts, lambda host: (*_common_fields(host).values(), host.changes)).values():
        host = group[0]
        sign, color = ("!", "red") if host.failed else ("~", "yellow") if host.changes else ("=", "dim")
        head = [f"{style.paint(color, sign)} {ranges(each.name for each in group)}"]
        head += [] if host.gpus is None else [pluralize(host.gpus, "GPU")]
        head += [f"host driver {host.driver}"] if host.driver else []
        head += ["reboot needed"] if host.reboot_needed else []
        head += ["will be done:"] if host.changes and not done else []
        head += [f"failed: {host.reason}" if host.reason else "failed"] if host.failed else []
        blocks += ["  ".join(head), *(f"    {change}" for change in host.changes)]
    return "\n".join(blocks)


def hosts_document(result: HostsResult) -> list[dict[str, Any]]:
    """Return the hosts as JSON-able dicts."""
    return [
        {"host": host.name, "changes": list(host.changes), "rebooted": is_rebooted(host), **_common_fields(host)}
        for host in result.hosts
    ]


def _common_fields(host: HostOutcome) -> dict[str, Any]:
    """Return the fields that the text and the document of a host share."""
    return {key: getattr(host, key) for key in ("failed", "reason", "reboot_needed", "gpus", "driver")}


def is_rebooted(host: HostOutcome) -> bool:
    """Return whether this run rebooted a host, or would reboot it."""
    return any(change.startswith(REBOOTED) for change in host.changes)
