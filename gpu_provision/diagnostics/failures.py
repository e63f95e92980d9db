"""Failed states to findings: which component on which nodes, its first cause, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gpu_provision.diagnostics.remedies import Remedy, remedy
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.progress import NodeState, State

_TROUBLE = re.compile(r"error|failed|could not|cannot|unable to|not found", re.IGNORECASE)
_OVERDUE = re.compile(r" \(not ready after \d+ s\)$")
_MOST_NAMES = 8


class Symptom(NamedTuple):
    """A failed state with what its pod had to say: the pod's name and its last lines."""

    state: NodeState
    pod: str
    lines: Sequence[str]


class _Cause(NamedTuple):
    """What symptoms of one cause have in common.

    Attributes:
        component: Empty where the cause is seen in words that do not depend on the component.
        unknown: The reason, where the remedy knows no cause.
        seen: The words, where it knows one.
    """

    component: str
    remedy: Remedy
    unknown: str = ""
    seen: str = ""


def in_words(end: str, lines: Sequence[str]) -> str:
    """Return what a container said before it ended, and its cause if that is known.

    Args:
        end: The container and how it ended: ``nvidia-driver-ctr: exit 1``.
        lines: Its last ones.
    """
    found, line = remedy(*reversed(lines)), _telling_line(lines)
    return f"{found.cause}: {line} ({end})" if found.cause else f"{end}: {line}"


def failures(symptoms: Iterable[Symptom], followers: Iterable[NodeState] = ()) -> tuple[Finding, ...]:
    """Return one finding per cause, with the components and nodes that it befell.

    Args:
        symptoms: Of failed states.
        followers: What is not ready because of these; the first finding that can be the cause names it.
    """
    by_component: dict[_Cause, list[Symptom]] = {}
    for symptom in symptoms:
        found = remedy(*reversed(symptom.lines), symptom.state.reason)
        unknown = "" if found.cause else symptom.state.reason
        by_component.setdefault(_Cause(symptom.state.component, found, unknown), []).append(symptom)
    by_cause: dict[_Cause, list[Symptom]] = {}
    for cause, group in by_component.items():
        shared = _Cause("", cause.remedy, seen=_seen(group[0])) if cause.remedy.cause else cause
        by_cause.setdefault(shared, []).extend(group)
    due = _by_cause(followers, [*by_cause.values()])
    return tuple(_finding(cause, group, due[index]) for index, (cause, group) in enumerate(by_cause.items()))


def _seen(symptom: Symptom) -> str:
    """Return the words that show a known cause, without how long they were waited for."""
    return _telling_line(symptom.lines) or _OVERDUE.sub("", symptom.state.reason)


def _by_cause(followers: Iterable[NodeState], causes: Sequence[Sequence[Symptom]]) -> dict[int, list[NodeState]]:
    """Return the followers of each cause.

    What is blocked follows the first cause on its node, or of all nodes. What failed itself waits behind another pod of
    its component.
    """
    due: dict[int, list[NodeState]] = {index: [] for index in range(len(causes))}
    nodes = [frozenset(symptom.state.node for symptom in symptoms) for symptoms in causes]
    components = [frozenset(symptom.state.component for symptom in symptoms) for symptoms in causes]
    for state in followers if causes else ():
        if state.state is State.FAILED:
            near = [index for index, found in enumerate(components) if state.component in found]
        else:
            near = [index for place in (state.node, "") for index, found in enumerate(nodes) if place in found]
        due[near[0] if near else 0].append(state)
    return due


def _finding(cause: _Cause, symptoms: Sequence[Symptom], followers: Sequence[NodeState]) -> Finding:
    first, nodes = symptoms[0], _names([symptom.state.node for symptom in symptoms])
    components = ", ".join(dict.fromkeys(symptom.state.component for symptom in symptoms))
    what = f"{components} failed{f' on {nodes}' if nodes else ''}: {cause.remedy.cause or cause.unknown}"
    pod = f"pod {first.pod}" if first.pod else ""
    reason = first.state.reason.removeprefix(f"{cause.remedy.cause}: ") if cause.remedy.cause else ""
    line = _telling_line(first.lines)
    return Finding(
        code=cause.remedy.code,
        what=what,
        where=", ".join(filter(None, (f"node {nodes}" if nodes else "", pod))),
        evidence="; ".join(filter(None, (reason, "" if line in reason or line in what else line))),
        consequence=_following(followers),
        fix=cause.remedy.fix,
    )


def _following(states: Iterable[NodeState]) -> str:
    """Return ``toolkit, gfd wait for it on t4-1``; nodes on which the same components wait share one part."""
    by_node: dict[str, list[str]] = {}
    for state in states:
        by_node.setdefault(state.node, []).append(state.component)
    alike: dict[tuple[str, ...], list[str]] = {}
    for node, components in by_node.items():
        alike.setdefault(tuple(components), []).append(node)
    return "; ".join(_wait(components, _names(nodes)) for components, nodes in alike.items())


def _wait(components: Sequence[str], nodes: str) -> str:
    verb = "waits" if len(components) == 1 else "wait"
    return f"{', '.join(components)} {verb} for it{f' on {nodes}' if nodes else ''}"


def _names(nodes: Sequence[str]) -> str:
    named = sorted({*filter(None, nodes)})
    more = f" and {len(named) - _MOST_NAMES} more" if len(named) > _MOST_NAMES else ""
    return ", ".join(named[:_MOST_NAMES]) + more


def _telling_line(lines: Sequence[str]) -> str:
    """Return the last line whose cause is known, else the last one that has an error in it, else the last one."""
    written = [line.strip() for line in lines if line.strip()]
    known = [line for line in written if remedy(line).cause]
    errors = [line for line in written if _TROUBLE.search(line)]
    return (known or errors or written or [""])[-1]


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
