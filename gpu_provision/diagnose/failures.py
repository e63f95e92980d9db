"""Failed states to findings: which component on which node, its first cause, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gpu_provision.diagnose.remedies import remedy
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.progress import NodeState, State

_TROUBLE = re.compile(r"error|failed|could not|cannot|not found", re.IGNORECASE)


class Symptom(NamedTuple):
    """A failed state with what its pod had to say: the pod's name and its last lines."""

    state: NodeState
    pod: str
    lines: Sequence[str]


def failures(symptoms: Iterable[Symptom]) -> tuple[Finding, ...]:
    """Return one finding per failure, first causes first."""
    return tuple(_finding(symptom) for symptom in symptoms)


def _finding(symptom: Symptom) -> Finding:
    state = symptom.state
    last = _telling_line(symptom.lines)
    found = remedy(*reversed(symptom.lines), state.reason)
    place = ", ".join(
        part
        for part in (f"node {state.node}" if state.node else "", f"pod {symptom.pod}" if symptom.pod else "")
        if part
    )
    where = f" on {state.node}" if state.node else ""
    because = f": {found.cause}" if found.cause else f": {state.reason}"
    return Finding(
        code=found.code,
        what=f"{state.component} failed{where}{because}",
        where=place,
        evidence="; ".join(part for part in (state.reason, last) if part),
        fix=found.fix,
    )


def _telling_line(lines: Sequence[str]) -> str:
    """The last line that has an error in it, else the last one."""
    written = [line.strip() for line in lines if line.strip()]
    errors = [line for line in written if _TROUBLE.search(line)]
    return (errors or written or [""])[-1]


def blocked(states: Iterable[NodeState]) -> tuple[Finding, ...]:
    """Return one finding per node that names what could not go on there."""
    by_node: dict[str, list[NodeState]] = {}
    for state in states:
        if state.state is State.BLOCKED:
            by_node.setdefault(state.node, []).append(state)
    return tuple(
        Finding(
            code="GP507",
            what=f"blocked{f' on {node}' if node else ''}: {', '.join(state.component for state in found)}",
            where=f"node {node}" if node else "",
            evidence=found[0].reason,
            fix="mend the failure above and run again; nothing else is wrong with these",
            severity=Severity.WARNING,
        )
        for node, found in sorted(by_node.items())
    )
