"""What the status of a stack comes to for whoever waits for it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from gpu_provision.model.cluster import Manifest
from gpu_provision.model.progress import State


class Phase(Enum):
    """How far a controller is with what a stack declares now."""

    UNSEEN = auto()  # the status is about what was declared before
    WORKING = auto()
    READY = auto()
    FAILED = auto()


@dataclass(frozen=True, slots=True)
class Verdict:
    """How far a controller is, and why it got no further.

    Attributes:
        told: Reason and message of the condition that says so: ``NodesFailed: driver on t4-1: ...``.
    """

    phase: Phase
    reason: str = ""
    told: str = ""


def verdict(stack: Manifest) -> Verdict:
    """Return what the status of a stack comes to. A run that is under way may mend what has failed before."""
    status = stack.get("status") or {}
    if status.get("observedGeneration") != stack["metadata"].get("generation"):
        return Verdict(Phase.UNSEEN)
    conditions = {each["type"]: each for each in status.get("conditions") or ()}
    if _holds(conditions, "Progressing"):
        return Verdict(Phase.WORKING)
    if _holds(conditions, "Degraded"):
        found = conditions["Degraded"]
        return Verdict(Phase.FAILED, found["reason"], f"{found['reason']}: {found['message']}")
    return Verdict(Phase.READY if _holds(conditions, "Ready") else Phase.WORKING)


def _holds(conditions: Mapping[str, Mapping[str, Any]], kind: str) -> bool:
    return bool(conditions.get(kind, {}).get("status") == "True")


def failures(stack: Manifest) -> Mapping[tuple[str, str], str]:
    """Return what has failed by the status of a stack: component and node, and why. No more nodes than it names."""
    status = stack.get("status") or {}
    rows = [row for row in (status.get("nodes") or {}).get("problems") or () if row.get("state") == State.FAILED]
    on_nodes = {(name, row["name"]): reason for row in rows for name, reason in [_first_cause(row)]}
    told = {component for component, _ in on_nodes}
    failed = [row for row in status.get("components") or () if row.get("state") == State.FAILED]
    return on_nodes | {(row["name"], ""): row.get("reason", "") for row in failed if row["name"] not in told}


def _first_cause(row: Mapping[str, str]) -> tuple[str, str]:
    """Split what a node's row says: ``driver: ImagePullBackOff``."""
    component, _, reason = row.get("reason", "").partition(": ")
    return component, reason
