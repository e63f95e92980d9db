"""Progress of a run: states per component and node, and the events that a run emits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpu_provision.model.findings import Finding, one_line


class State(StrEnum):
    """State of one component on one node, or as a whole."""

    PENDING = "pending"  # a component that it requires is not ready yet
    PROGRESSING = "progressing"  # starting
    READY = "ready"  # runs the declared content; for a validation: it passed
    FAILED = "failed"  # its deadline passed, or its validation failed
    BLOCKED = "blocked"  # a component that it requires failed on this node
    LEAVING = "leaving"  # the stack is still on a node that left the inventory

    __hash__ = str.__hash__  # Enum's own is in Python, and sets of states are on hot paths


_SIGNS = {
    State.PENDING: " ",
    State.PROGRESSING: ".",
    State.READY: "=",
    State.FAILED: "!",
    State.BLOCKED: "x",
    State.LEAVING: ".",
}
_STEP_SUFFIX = "-required"  # suffix of the steps of a node with a driver upgrade in progress


class OutsideState(StrEnum):
    """State of a GPU node outside the stack."""

    UNDECLARED = "undeclared"  # it has a GPU, and no pool of the inventory claims it


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """One component on one node. ``reason`` is short and names the cause: ``ImagePullBackOff: ...``.

    ``step`` is the node's upgrade state, as in its label: ``pod-restart-required``.
    """

    component: str
    node: str  # empty for components that are not per node
    state: State
    reason: str = ""
    step: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The log lines of a validation pod."""

    component: str
    node: str
    pod: str
    passed: bool
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Progress message of a run: ``component`` on ``node`` is now ``state``; ``step`` as above.

    An event without a component is about the run itself. str() is one line, as in a log.
    """

    component: str
    node: str
    state: State
    message: str = ""
    step: str = ""

    def __str__(self) -> str:
        """Return ``= driver t4-1 ready`` or ``. driver t4-1 progressing: pulling the image``."""
        return self.line(self.node, self.state_text)

    def line(self, nodes: str, word: str) -> str:
        """Return the line for one node or several; ``word`` is `word`, which may have a color."""
        about = " ".join(filter(None, (self.component, nodes)))
        text = "" if self.step and self.message == f"is in {self.step}" else one_line(self.message)
        return f"{_SIGNS[self.state]} {': '.join(filter(None, (f'{about} {word}' if about else '', text)))}"

    @property
    def state_text(self) -> str:
        """The step during a driver upgrade of the node; else the state."""
        is_step = self.state is State.PROGRESSING and self.step.endswith(_STEP_SUFFIX)
        return self.step if is_step else self.state.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """A change of a component's state on a node, ``at`` seconds after the beginning of the run."""

    at: float
    component: str
    node: str  # empty for components that are not per node
    state: State
    step: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentStatus:
    """One row of the status table.

    ``version`` is that of the inventory's component; ``versions`` has that of each pool where pools differ.
    """

    component: str
    title: str
    version: str
    desired: int
    ready: int
    state: State
    reason: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """One node of the status table. ``gpus`` and ``allocatable`` are None where nothing is known."""

    node: str
    pool: str
    os: str
    gpu: str
    gpus: int | None
    driver: str  # loaded version according to pods and labels; empty if none
    allocatable: int | None
    state: State | OutsideState
    reason: str = ""
    driver_on_host: bool = False  # whether the driver is the host's own
    cordoned: bool = False
    # Who cordoned the node: a field manager with its time, or a step of a rollout.
    cordoned_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHolder:
    """The holder of the stack's lock. No two clocks are compared, so clock skew does no harm."""

    holder: str  # who holds it
    since: str  # acquire time by the holder's clock, RFC 3339
    held_seconds: float | None = None  # age by the API server's clock; None if unknown
    # Time since the last renewal, by the API server's clock; None if unknown.
    silent_seconds: float | None = None

    def __str__(self) -> str:
        """Return ``root@ci pid 7, since 2026-11-21T08:00:00Z (for 2 min 5 s, renewed 3 s ago)``."""
        ages = [f"for {_format_seconds(self.held_seconds)}"] if self.held_seconds is not None else []
        ages += [f"renewed {_format_seconds(self.silent_seconds)} ago"] if self.silent_seconds is not None else []
        details = f" ({', '.join(ages)})" if ages else ""
        return f"{one_line(self.holder)}, since {one_line(self.since)}{details}"


def _format_seconds(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """State of the stack, as `gpu-provision status` shows it."""

    inventory: str
    cluster: str
    release: str
    components: tuple[ComponentStatus, ...]
    nodes: tuple[NodeStatus, ...]
    evidence: tuple[Evidence, ...] = ()
    lock: LockHolder | None = None  # the run that writes now; None for none
    installed: bool = True  # whether the cluster has anything of the stack


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How an apply ended."""

    changed: int = 0  # number of objects written
    requests: int = 0
    run: int = 0  # number of the run on record; 0 if nothing was written
    seconds: float = 0.0
    states: tuple[NodeState, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    findings: tuple[Finding, ...] = ()  # errors and warnings
    timeline: tuple[Transition, ...] = ()  # all state changes in the order of time
