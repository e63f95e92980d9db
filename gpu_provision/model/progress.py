"""Where a run stands: states per component and node, and the events that a run emits."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gpu_provision.model.findings import Finding


class State(StrEnum):
    """Where one component stands on one node, or as a whole."""

    PENDING = "pending"  # what it requires is not ready yet, nothing is wrong
    PROGRESSING = "progressing"  # it is being brought up
    READY = "ready"  # runs the declared content; for a validation: it passed
    FAILED = "failed"  # its deadline passed, or its validation failed
    BLOCKED = "blocked"  # something that it requires failed on this node


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """One component on one node. ``reason`` is short and names the cause: ``ImagePullBackOff: ...``."""

    component: str
    node: str  # empty for components that are not per node
    state: State
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a validation pod printed, its own lines."""

    component: str
    node: str
    pod: str
    passed: bool
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something a run wants to say while it goes: ``component`` on ``node`` is now ``state``."""

    component: str
    node: str
    state: State
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentStatus:
    """One row of the status table."""

    component: str
    title: str
    version: str
    desired: int
    ready: int
    state: State
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """One node of the status table. ``gpus`` and ``allocatable`` are None where nothing is known."""

    node: str
    pool: str
    os: str
    gpu: str
    gpus: int | None
    driver: str
    allocatable: int | None
    state: State
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The stack as it stands: what `gpu-provision status` shows and the library returns."""

    inventory: str
    cluster: str
    release: str
    components: tuple[ComponentStatus, ...]
    nodes: tuple[NodeStatus, ...]
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How an apply ended.

    Attributes:
        changed: Number of objects written.
        requests: Number of API requests.
        findings: What went wrong, and what a reader should know although nothing did.
    """

    changed: int = 0
    requests: int = 0
    seconds: float = 0.0
    states: tuple[NodeState, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    findings: tuple[Finding, ...] = ()
