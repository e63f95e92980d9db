"""Whose cordon a node has, and what a rollout leaves behind where it stops. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from gpu_provision.components import labels
from gpu_provision.model.cluster import NodeFacts
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.rollout import states
from gpu_provision.rollout.states import EARLY, LATE, UpgradeState

_UNKNOWN = "unknown"
_MOST_NAMES = 8


def writer_of(metadata: Mapping[str, Any]) -> tuple[str, str]:
    """Return which field manager wrote ``spec.unschedulable`` of a node last, and when; empty where unknown."""
    entries = [
        (str(entry.get("time", "")), str(entry.get("manager", "")))
        for entry in metadata.get("managedFields") or ()
        if "f:unschedulable" in ((entry.get("fieldsV1") or {}).get("f:spec") or {})
    ]
    at, manager = max(entries, default=("", ""))
    return manager, at


def is_of_rollout(notes: Mapping[str, str], manager: str) -> bool:
    """Whether the rollout may lift the cordon of a node: the node is marked so, and no other manager set it since.

    Args:
        notes: Annotations of the node, which is cordoned.
        manager: Field manager that cordoned it last; empty if unknown.
    """
    mark = notes.get(states.CORDONED)
    if mark is None or notes.get(states.WAS_CORDONED) == "true" or labels.CORDONED in notes:
        return False
    return manager in {"", mark}


def cordoned_by(node: NodeFacts) -> str:
    """Return who keeps new pods off a node, in words; empty if it is not cordoned."""
    if not node.unschedulable:
        return ""
    if purpose := node.annotations.get(labels.CORDONED):
        return f"gpu-provision: {purpose}"
    if is_of_rollout(node.annotations, node.cordoned_by):
        return f"gpu-provision: {_step(node) or 'driver rollout'}"
    return ", ".join(filter(None, (node.cordoned_by, node.cordoned_at))) or _UNKNOWN


def _step(node: NodeFacts) -> str:
    """Return how far the rollout of a node is, as its labels and annotations say it."""
    step, failed_in = node.labels.get(states.STATE, ""), node.annotations.get(states.FAILED_IN, "")
    return f"{step} in {failed_in}" if step == UpgradeState.FAILED and failed_in else step


class _Left(NamedTuple):
    """What nodes have in common that a run has left behind."""

    what: str
    next_run: str
    is_ours: bool


def left_behind(nodes: Iterable[NodeFacts], inventory: str) -> tuple[Finding, ...]:
    """Return which nodes of a stack a run has left cordoned or halfway to another driver, and what the next one does.

    Equal nodes share one warning. A node that another manager cordoned is named only if the rollout has begun on it.
    """
    found: dict[_Left, list[str]] = {}
    for node in nodes:
        is_of_stack = node.labels.get(labels.INVENTORY) == inventory
        if is_of_stack and (left := _left(node)) is not None:
            found.setdefault(left, []).append(node.name)
    return tuple(_finding(left, names) for left, names in found.items())


def _left(node: NodeFacts) -> _Left | None:
    purpose = node.annotations.get(labels.CORDONED)
    if node.unschedulable and purpose:
        return _Left(f"cordoned ({purpose})", "uncordons it once the host is ready", is_ours=True)
    is_ours = node.unschedulable and is_of_rollout(node.annotations, node.cordoned_by)
    state = states.state_named(node.labels.get(states.STATE, ""))
    if not is_ours and state not in _NEXT:
        return None
    step = _step(node) or "driver rollout"
    if is_ours:
        what = f"cordoned ({step})"
    else:
        by = cordoned_by(node)
        what = f"in the middle of the driver rollout ({step}), {f'cordoned by {by}' if by else 'not cordoned'}"
    return _Left(what, _NEXT.get(state, _RESUMES), is_ours)


_RESUMES = "resumes the rollout there"
_NEXT = {
    **dict.fromkeys(EARLY, f"{_RESUMES}; the driver that runs has not been touched"),
    **dict.fromkeys(LATE, f"{_RESUMES}; until then the node may have no driver"),
    UpgradeState.FAILED: "tries once more there",
}


def _finding(left: _Left, names: list[str]) -> Finding:
    verb = "stays" if len(names) == 1 else "stay"
    shown = names[:_MOST_NAMES]
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    by_hand = f"; to uncordon by hand: kubectl uncordon {' '.join(shown)}" if left.is_ours else ""
    return Finding(
        code="GP517",
        what=f"{', '.join(shown)}{more} {verb} {left.what}",
        consequence=f"the next run {left.next_run}",
        fix=f"run the same command again{by_hand}",
        severity=Severity.WARNING,
    )
