"""Failed states to findings: which component on which nodes, its first cause, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gpu_provision.diagnose.remedies import Remedy, remedy
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.progress import NodeState, State

_TROUBLE = re.compile(r"error|failed|could not|cannot|not found", re.IGNORECASE)
_MOST_NAMES = 8


class Symptom(NamedTuple):
    """A failed state with what its pod had to say: the pod's name and its last lines."""

    state: NodeState
    pod: str
    lines: Sequence[str]


class _Cause(NamedTuple):
    """What symptoms of one cause have in common."""

    component: str
    remedy: Remedy
    unknown: str  # the reason, where the remedy knows no cause


def failures(symptoms: Iterable[Symptom]) -> tuple[Finding, ...]:
    """Return one finding per component and cause, with the nodes that it befell."""
    by_cause: dict[_Cause, list[Symptom]] = {}
    for symptom in symptoms:
        found = remedy(*reversed(symptom.lines), symptom.state.reason)
        unknown = "" if found.cause else symptom.state.reason
        by_cause.setdefault(_Cause(symptom.state.component, found, unknown), []).append(symptom)
    return tuple(_finding(cause, found) for cause, found in by_cause.items())


def _finding(cause: _Cause, symptoms: Sequence[Symptom]) -> Finding:
    first, nodes = symptoms[0], _names([symptom.state.node for symptom in symptoms])
    pod = f"pod {first.pod}" if first.pod else ""
    evidence = (first.state.reason if cause.remedy.cause else "", _telling_line(first.lines))
    return Finding(
        code=cause.remedy.code,
        what=f"{cause.component} failed{f' on {nodes}' if nodes else ''}: {cause.remedy.cause or cause.unknown}",
        where=", ".join(filter(None, (f"node {nodes}" if nodes else "", pod))),
        evidence="; ".join(dict.fromkeys(filter(None, evidence))),
        fix=cause.remedy.fix,
    )


def _names(nodes: Sequence[str]) -> str:
    named = sorted(filter(None, nodes))
    more = f" and {len(named) - _MOST_NAMES} more" if len(named) > _MOST_NAMES else ""
    return ", ".join(named[:_MOST_NAMES]) + more


def _telling_line(lines: Sequence[str]) -> str:
    """The last line that has an error in it, else the last one."""
    written = [line.strip() for line in lines if line.strip()]
    errors = [line for line in written if _TROUBLE.search(line)]
    return (errors or written or [""])[-1]


def unvalidated(states: Iterable[NodeState], reason: str) -> tuple[Finding, ...]:
    """Return one warning about the nodes whose validation is put off for ``reason``."""
    found = (state.node for state in states if state.state is State.READY and state.reason == reason)
    nodes = [*dict.fromkeys(found)]
    if not nodes:
        return ()
    return (
        Finding(
            code="GP508",
            what=f"the device plugin could not be validated on {_names(nodes)}: other pods use all GPUs there",
            where=f"node {_names(nodes)}",
            evidence=reason,
            fix="nothing is wrong; the waiting pod runs as soon as a GPU is free, and the next run takes its result",
            severity=Severity.WARNING,
        ),
    )


def tainted(nodes: Sequence[str]) -> tuple[Finding, ...]:
    """Return one warning about the nodes that keep their startup taint."""
    if not nodes:
        return ()
    return (
        Finding(
            code="GP511",
            what=f"the startup taint stays on {_names(nodes)}: validations there have not passed",
            where=f"node {_names(nodes)}",
            consequence="no pod is started there that does not tolerate gpu-provision.io/not-validated",
            fix="mend what is named here and run again; to let pods in as it is: "
            f"kubectl taint node {min(nodes)} gpu-provision.io/not-validated-",
            severity=Severity.WARNING,
        ),
    )


def kept(states: Iterable[NodeState], reason: str) -> tuple[Finding, ...]:
    """Return who keeps previous content, which a reason that begins with ``reason`` says: one finding per reason.

    A ready one does as its policy says, which fails no run; a blocked one would go on if somebody helped.
    """
    alike: dict[tuple[State, str], list[str]] = {}
    for state in states:
        if state.state in {State.READY, State.BLOCKED} and state.reason.startswith(reason):
            alike.setdefault((state.state, state.reason.removeprefix(f"{reason}: ")), []).append(state.node)
    return tuple(
        _as_wished(why, nodes) if state is State.READY else _held(why, nodes) for (state, why), nodes in alike.items()
    )


def _as_wished(why: str, nodes: Sequence[str]) -> Finding:
    return Finding(
        code="GP509",
        what=f"the driver of {_names(nodes)} keeps its previous content",
        where=f"node {_names(nodes)}",
        evidence=why,
        fix="nothing is wrong; it is replaced by a run for which this no longer holds",
        severity=Severity.WARNING,
    )


def _held(why: str, nodes: Sequence[str]) -> Finding:
    return Finding(
        code="GP510",
        what=f"the driver of {_names(nodes)} was not replaced and keeps its previous content",
        where=f"node {_names(nodes)}",
        evidence=why,
        consequence="these nodes go on working with the driver that they have",
        fix="see to what is named here and run again: the rollout goes on where it stopped",
    )


def staying(states: Iterable[NodeState], reason: str) -> tuple[Finding, ...]:
    """Return which nodes left the inventory and keep the stack, which ``reason`` begins: one finding per cause.

    A ready one does as its policy says, which fails no run.
    """
    alike: dict[tuple[State, str], list[str]] = {}
    for state in states:
        if state.reason.startswith(reason):
            alike.setdefault((state.state, state.reason.removeprefix(f"{reason}: ")), []).append(state.node)
    return tuple(_stays(state, why, _names(nodes)) for (state, why), nodes in alike.items())


def _stays(state: State, why: str, nodes: str) -> Finding:
    cordoned = "; the next run goes on from there, and until then the node stays cordoned"
    return Finding(
        code="GP513",
        what=f"the stack was not taken off {nodes}, which is no longer in the inventory",
        where=f"node {nodes}",
        evidence=why,
        consequence=f"labels, driver and pods of the stack stay there{cordoned if state is State.FAILED else ''}",
        fix="delete the pods that are named here (kubectl delete pod -n NAMESPACE NAME), or change what is named under "
        "driver.upgrade_policy or rollout; then run again",
        severity=Severity.WARNING if state is State.READY else Severity.ERROR,
    )


def blocked(states: Iterable[NodeState]) -> tuple[Finding, ...]:
    """Return what could not go on: one finding per set of components, with the nodes that they are blocked on."""
    by_node: dict[str, list[NodeState]] = {}
    for state in states:
        if state.state is State.BLOCKED:
            by_node.setdefault(state.node, []).append(state)
    alike: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for node, found in by_node.items():
        alike.setdefault((tuple(state.component for state in found), found[0].reason), []).append(node)
    return tuple(
        Finding(
            code="GP507",
            what=f"blocked{f' on {_names(nodes)}' if any(nodes) else ''}: {', '.join(components)}",
            where=f"node {_names(nodes)}" if any(nodes) else "",
            evidence=reason,
            fix="mend the failure above and run again; nothing else is wrong with these",
            severity=Severity.WARNING,
        )
        for (components, reason), nodes in alike.items()
    )
