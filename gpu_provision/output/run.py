"""How an apply and its host phase ended, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from gpu_provision.hosts.result import REBOOTED, HostOutcome, HostsResult
from gpu_provision.model.findings import Severity
from gpu_provision.model.progress import NodeState, RunResult, State
from gpu_provision.output.status import evidence, evidence_document
from gpu_provision.output.text import PLAIN, Style, ranges, table

_HEADERS = ("COMPONENT", "READY", "STATE", "NODES AND REASONS")
_ENDS_WELL = frozenset({State.READY})


def succeeded(result: RunResult) -> bool:
    """Return whether every component is ready on every node, and nothing else was found wrong."""
    errors = any(finding.severity is Severity.ERROR for finding in result.findings)
    return not errors and all(each.state in _ENDS_WELL for each in result.states)


def text(result: RunResult, style: Style = PLAIN) -> str:
    """Return a table of components, the evidence of the validations, and one closing sentence."""
    parts = [_components(result.states, style), evidence(result.evidence, style), closing(result, style)]
    return "\n\n".join(part for part in parts if part)


def closing(result: RunResult, style: Style = PLAIN) -> str:
    """Return the one sentence with the outcome, the writes, the requests and the seconds."""
    figures = f"{result.requests} API requests, {result.seconds:.1f} s"
    unwell = [each for each in result.states if each.state not in _ENDS_WELL]
    if unwell:
        where = ranges({each.node for each in unwell if each.node})
        on = f" on {where}" if where else ""
        components = ", ".join(dict.fromkeys(each.component for each in unwell))
        return style.paint("red", f"Not as declared: {components}{on}. {_written(result)}, {figures}.")
    if not succeeded(result):
        return style.paint("red", f"Not as declared, see below. {_written(result)}, {figures}.")
    return style.paint("green", f"Everything is as declared. {_written(result)}, {figures}.")


def _written(result: RunResult) -> str:
    if not result.changed:
        return "No changes"
    return f"{result.changed} object{'' if result.changed == 1 else 's'} written"


def _components(states: Iterable[NodeState], style: Style) -> str:
    rows = component_rows(states, style)
    return table(_HEADERS, rows, style) if rows else ""


def component_rows(states: Iterable[NodeState], style: Style = PLAIN) -> list[tuple[str, str, str, str]]:
    """Return a row per component: its name, how many are ready, the worst state, and why."""
    return [_row(component, own, style) for component, own in _by_component(states).items()]


def _by_component(states: Iterable[NodeState]) -> dict[str, list[NodeState]]:
    grouped: dict[str, list[NodeState]] = {}
    for each in states:
        grouped.setdefault(each.component, []).append(each)
    return grouped


def _row(component: str, states: list[NodeState], style: Style) -> tuple[str, str, str, str]:
    counted = [each for each in states if each.node] or states
    ready = sum(each.state is State.READY for each in counted)
    worst = max((each.state for each in states), key=_WORSE.index)
    return component, f"{ready}/{len(counted)}", style.state(worst), "; ".join(_reasons(states))


_WORSE = (State.READY, State.PENDING, State.PROGRESSING, State.LEAVING, State.BLOCKED, State.FAILED)


def _reasons(states: Iterable[NodeState]) -> Iterator[str]:
    """Yield ``nodes: reason`` for what is not ready, equal reasons together."""
    nodes_of: dict[str, list[str]] = {}
    for each in states:
        if each.state not in _ENDS_WELL:
            nodes_of.setdefault(each.reason or each.state.value, []).append(each.node)
    for reason, nodes in nodes_of.items():
        named = ranges(filter(None, nodes))
        yield f"{named}: {reason}" if named else reason


def document(result: RunResult) -> dict[str, Any]:
    """Return the run's own parts of its JSON document."""
    return {
        "changed": result.changed,
        "requests": result.requests,
        "run": result.run,
        "seconds": round(result.seconds, 3),
        "succeeded": succeeded(result),
        "states": [
            {
                "component": each.component,
                "node": each.node,
                "state": each.state.value,
                "reason": each.reason,
            }
            for each in result.states
        ],
        "evidence": [evidence_document(each) for each in result.evidence],
    }


def hosts_text(result: HostsResult, style: Style = PLAIN, *, done: bool = True) -> str:
    """Return one block per group of equal hosts: sign, names, GPUs, then what was changed, or is still to do."""
    groups: dict[tuple[object, ...], list[HostOutcome]] = {}
    for host in result.hosts:
        likeness = (host.changes, host.failed, host.reason, host.reboot_needed, host.gpus, host.driver)
        groups.setdefault(likeness, []).append(host)
    return "\n".join(_group(group, style, done=done) for group in groups.values())


def hosts_document(result: HostsResult) -> list[dict[str, Any]]:
    """Return the hosts as JSON-able dicts."""
    return [
        {
            "host": host.name,
            "changes": list(host.changes),
            "failed": host.failed,
            "reason": host.reason,
            "reboot_needed": host.reboot_needed,
            "rebooted": is_rebooted(host),
            "gpus": host.gpus,
            "driver": host.driver,
        }
        for host in result.hosts
    ]


def is_rebooted(host: HostOutcome) -> bool:
    """Return whether this run rebooted a host, or would."""
    return any(change.startswith(REBOOTED) for change in host.changes)


def _group(group: list[HostOutcome], style: Style, *, done: bool) -> str:
    host = group[0]
    head = [f"{_sign(host, style)} {ranges(each.name for each in group)}"]
    head += [] if host.gpus is None else [f"{host.gpus} GPU{'' if host.gpus == 1 else 's'}"]
    head += [f"host driver {host.driver}"] if host.driver else []
    head += ["reboot needed"] if host.reboot_needed else []
    head += ["to do:"] if host.changes and not done else []
    return "\n".join(["  ".join(head), *(f"    {line}" for line in _lines(host))])


def _sign(host: HostOutcome, style: Style) -> str:
    if host.failed:
        return style.paint("red", "!")
    return style.paint("yellow", "~") if host.changes else style.paint("dim", "=")


def _lines(host: HostOutcome) -> Iterable[str]:
    yield from host.changes
    if host.reason:
        yield host.reason
