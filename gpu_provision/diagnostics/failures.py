"""Converts failed states to findings with component, nodes, first cause and fix.

remedies.toml beside this module has the known causes, by their symptoms.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.progress import NodeState, State
from gpu_provision.model.text import join_limited

_TROUBLE = re.compile(
    r"BackOff|Err[A-Z]|Unschedulable|Failed|Killed|exit \d|tolerate|NotReady|no node of this name|declares"
)
_ERROR = re.compile(r"error|failed|could not|cannot|unable to|not found", re.IGNORECASE)
_OVERDUE = re.compile(r" \(not ready after \d+ s\)$")
# Refuses pods of any component alike; the rest of its words are about one pod.
_REFUSER = re.compile(r'is forbidden: (exceeded quota: [^,]+|violates PodSecurity "[^"]+")')
_MAX_NODES = 8


class Remedy(NamedTuple):
    """Code, cause and fix of a finding; the cause is empty if unknown."""

    code: str
    cause: str
    fix: str


_UNKNOWN = Remedy("GP500", "", "run kubectl describe pod and kubectl logs for the pod")


def is_failure(reason: str) -> bool:
    """Return whether a reason for not being ready is a failure, to be reported at once."""
    return bool(_TROUBLE.search(reason))


def find_remedy(*symptoms: str) -> Remedy:
    """Return the remedy of the first symptom with a known cause."""
    known = (remedy for symptom in symptoms for pattern, remedy in remedies() if re.search(pattern, symptom))
    return next(known, _UNKNOWN)


@cache
def remedies() -> tuple[tuple[str, Remedy], ...]:
    """Return patterns of symptoms with their remedies; the first match counts."""
    import tomllib  # noqa: PLC0415  only failures need it

    table = tomllib.loads(Path(__file__).with_name("remedies.toml").read_text(encoding="utf-8"))
    return tuple((entry.pop("pattern"), Remedy(**entry)) for entry in table["remedies"])


class FailedState(NamedTuple):
    """A failed state with the evidence of its pod: the pod's name and its last lines."""

    state: NodeState
    pod: str
    lines: Sequence[str]


def describe_exit(end: str, lines: Sequence[str]) -> str:
    """Return the relevant log line of a container that ended, and the cause if known.

    Args:
        end: The container and how it ended: ``nvidia-driver-ctr: exit 1``.
        lines: Its last log lines.
    """
    remedy, line = find_remedy(*reversed(lines)), _relevant_line(lines)
    return f"{remedy.cause}: {line} ({end})" if remedy.cause else f"{end}: {line}"


def failure_findings(failed: Iterable[FailedState], followers: Iterable[NodeState] = ()) -> tuple[Finding, ...]:
    """Return one finding per cause, with the components and nodes that it affects.

    Args:
        followers: States that are not ready because of these; the first possible cause names them.
    """
    by_component: dict[tuple[str, Remedy, str], list[FailedState]] = {}
    for each in failed:
        remedy = find_remedy(*reversed(each.lines), each.state.reason)
        unknown = "" if remedy.cause else each.state.reason
        by_component.setdefault((each.state.component, remedy, unknown), []).append(each)
    by_cause: dict[tuple[str, Remedy, str], list[FailedState]] = {}
    for (component, remedy, unknown), group in by_component.items():
        # Equal lines of a known cause, without the waiting time, are one cause for all components.
        words = _relevant_line(group[0].lines) or _OVERDUE.sub("", group[0].state.reason)
        words = found[1] if (found := _REFUSER.search(words)) else words
        key = ("", remedy, words) if remedy.cause else (component, remedy, unknown)
        by_cause.setdefault(key, []).extend(group)
    followed = _group_followers(followers, [*by_cause.values()])
    pairs = zip(by_cause.items(), followed, strict=True)
    return tuple(_finding(remedy, group, waiting) for ((_, remedy, _), group), waiting in pairs)


def _group_followers(followers: Iterable[NodeState], causes: Sequence[Sequence[FailedState]]) -> list[list[NodeState]]:
    """Return the followers of each cause.

    A blocked state follows the first cause on its node, or on no node. A failed one waits for another pod of its
    component.
    """
    groups: list[list[NodeState]] = [[] for _ in causes]
    nodes = [frozenset(each.state.node for each in group) for group in causes]
    components = [frozenset(each.state.component for each in group) for group in causes]
    for state in followers if causes else ():
        if state.state is State.FAILED:
            near = [index for index, names in enumerate(components) if state.component in names]
        else:
            near = [index for place in (state.node, "") for index, names in enumerate(nodes) if place in names]
        groups[near[0] if near else 0].append(state)
    return groups


def _finding(remedy: Remedy, failed: Sequence[FailedState], followers: Sequence[NodeState]) -> Finding:
    first, nodes = failed[0], _names([each.state.node for each in failed])
    components = ", ".join(dict.fromkeys(each.state.component for each in failed))
    what = f"{components} failed{f' on {nodes}' if nodes else ''}: {remedy.cause or first.state.reason}"
    pod = f"pod {first.pod}" if first.pod else ""
    reason = first.state.reason.removeprefix(f"{remedy.cause}: ") if remedy.cause else ""
    line = _relevant_line(first.lines)
    return Finding(
        code=remedy.code,
        what=what,
        where=", ".join(filter(None, (f"node {nodes}" if nodes else "", pod))),
        evidence="; ".join(filter(None, (reason, "" if line in reason or line in what else line))),
        consequence=_describe_followers(followers),
        fix=remedy.fix,
    )


def _describe_followers(states: Iterable[NodeState]) -> str:
    """Return ``toolkit, gfd wait for it on t4-1``; nodes on which the same components wait share one part."""
    by_node: dict[str, list[str]] = {}
    for state in states:
        by_node.setdefault(state.node, []).append(state.component)
    alike: dict[tuple[str, ...], list[str]] = {}
    for node, components in by_node.items():
        alike.setdefault(tuple(components), []).append(node)
    parts = []
    for names, nodes in alike.items():
        where = f" on {_names(nodes)}" if any(nodes) else ""
        parts.append(f"{', '.join(names)} {'waits' if len(names) == 1 else 'wait'} for it{where}")
    return "; ".join(parts)


def _names(nodes: Iterable[str]) -> str:
    return join_limited(sorted({*filter(None, nodes)}), _MAX_NODES)


def _relevant_line(lines: Sequence[str]) -> str:
    """Return the last line with a known cause, else the last one with an error, else the last one."""
    written = [line.strip() for line in lines if line.strip()]
    known = [line for line in written if find_remedy(line).cause]
    errors = [line for line in written if _ERROR.search(line)]
    return (known or errors or written or [""])[-1]


def deferred_validation_findings(states: Iterable[NodeState], reason: str) -> tuple[Finding, ...]:
    """Return one warning about the nodes whose validation is deferred for ``reason``."""
    nodes = _names(state.node for state in states if state.state is State.READY and state.reason == reason)
    if not nodes:
        return ()
    warning = Finding(
        code="GP508",
        what=f"the device plugin could not be validated on {nodes}: other pods use all GPUs there",
        where=f"node {nodes}",
        evidence=reason,
        fix="No action needed; the pod runs when a GPU is free, and the next run takes its result.",
        severity=Severity.WARNING,
    )
    return (warning,)


def taint_findings(nodes: Sequence[str]) -> tuple[Finding, ...]:
    """Return one warning about the nodes that keep their startup taint."""
    if not nodes:
        return ()
    warning = Finding(
        code="GP511",
        what=f"the startup taint stays on {_names(nodes)}: validations there have not passed",
        where=f"node {_names(nodes)}",
        consequence="pods that do not tolerate gpu-provision.io/not-validated do not start there",
        fix="correct what the other findings name and run again; to admit pods anyway: "
        f"kubectl taint node {min(nodes)} gpu-provision.io/not-validated-",
        severity=Severity.WARNING,
    )
    return (warning,)


def driver_kept_findings(states: Iterable[NodeState], reason: str) -> tuple[Finding, ...]:
    """Return one finding for each reason that begins with ``reason``, with the nodes that keep their previous driver.

    Ready nodes follow their policy, which fails no run; blocked ones need help.
    """
    keeping = (state for state in states if state.state in {State.READY, State.BLOCKED})
    return tuple(
        Finding(
            code="GP509",
            what=f"the driver of {nodes} keeps its previous content",
            where=f"node {nodes}",
            evidence=why,
            fix="No action needed; a later run upgrades the node once this reason is gone.",
            severity=Severity.WARNING,
        )
        if state is State.READY
        else Finding(
            code="GP510",
            what=f"the driver of {nodes} was not replaced and keeps its previous content",
            where=f"node {nodes}",
            evidence=why,
            consequence="these nodes go on working with the driver that they have",
            fix="correct what is named here and run again, which resumes the rollout",
        )
        for (state, why), nodes in _group_by_reason(keeping, reason).items()
    )


def stack_kept_findings(states: Iterable[NodeState], reason: str) -> tuple[Finding, ...]:
    """Return one finding per cause with the nodes that left the inventory and keep the stack.

    Args:
        reason: Prefix of the reasons. A ready node follows its policy, which fails no run.
    """
    cordoned = "; the next run resumes there, and until then the node stays cordoned"
    return tuple(
        Finding(
            code="GP513",
            what=f"the stack is still on nodes that left the inventory: {nodes}",
            where=f"node {nodes}",
            evidence=why,
            consequence=f"labels, driver and pods of the stack stay there{cordoned if state is State.FAILED else ''}",
            fix="delete the named pods (kubectl delete pod -n NAMESPACE NAME), or change driver.upgrade_policy or "
            "rollout; then run again",
            severity=Severity.WARNING if state is State.READY else Severity.ERROR,
        )
        for (state, why), nodes in _group_by_reason(states, reason).items()
    )


def _group_by_reason(states: Iterable[NodeState], prefix: str) -> Mapping[tuple[State, str], str]:
    """Return the names of nodes by state and by what follows the prefix in their reason."""
    alike: dict[tuple[State, str], list[str]] = {}
    for state in states:
        if state.reason.startswith(prefix):
            alike.setdefault((state.state, state.reason.removeprefix(f"{prefix}: ")), []).append(state.node)
    return {key: _names(nodes) for key, nodes in alike.items()}
