"""Input and output of the state machine: a snapshot of the fleet, and actions, as frozen values.

Each action is idempotent, and valid only for its snapshot. The snapshot has the clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from math import inf

from gpu_provision.model.plan import NOT_IN_INVENTORY
from gpu_provision.model.rollout_policy import RolloutPolicy, UpgradePolicy
from gpu_provision.rollout import states
from gpu_provision.rollout.states import UpgradeState


class GpuUse(StrEnum):
    """Evidence that a pod uses GPUs."""

    NONE = ""
    REQUEST = "requests GPUs"
    CLAIM = "holds a claim to GPUs"
    RUNTIME_CLASS = "runs with the NVIDIA runtime class"
    HOST_PATH = "mounts NVIDIA devices of the host"
    ENVIRONMENT = "sets NVIDIA_VISIBLE_DEVICES"
    SOME_CLAIM = "holds a ResourceClaim, and whether it is to GPUs is not known"


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """A PodDisruptionBudget that covers a pod. ``allowed``: its current ``disruptionsAllowed``."""

    name: str
    allowed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod on a node that is not of the stack."""

    namespace: str
    name: str
    uid: str
    owner: str = ""  # its controller as ``Kind name``; empty if no controller would recreate it
    labels: Mapping[str, str] = field(default_factory=dict)
    use: GpuUse = GpuUse.NONE
    is_daemon: bool = False  # whether a DaemonSet or the kubelet recreates it on the same node at once
    is_finished: bool = False  # whether it has succeeded or failed
    has_empty_dir: bool = False
    tolerates_cordons: bool = False  # whether its successor may start on the same, cordoned node
    is_terminating: bool = False
    refusal: str = ""  # the API server's last refusal of its eviction
    budgets: tuple[DisruptionBudget, ...] = ()  # those that cover it

    def __str__(self) -> str:
        """Return the pod as findings name it."""
        return f"{self.namespace}/{self.name}" + (f" ({self.owner})" if self.owner else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverPod:
    """The driver pod of a node."""

    uid: str
    digest: str  # of everything that the installation depends on, including ConfigMaps and Secrets
    is_ready: bool
    is_terminating: bool = False
    restarts: int = 0  # maximum of the restarts of containers that are not ready
    has_owner: bool = True  # whether a DaemonSet would recreate it
    is_held_up: bool = False  # whether pods that use the loaded driver block the installation

    @property
    def has_crashed(self) -> bool:
        """Whether the pod is not ready, and has restarted."""
        return not self.is_ready and self.restarts > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationResult:
    """The validation result of the current driver pod."""

    passed: bool
    version: str = ""  # version of the loaded driver; empty if unknown
    reason: str = ""  # why it failed


@dataclass(frozen=True, slots=True)
class DesiredContent:
    """The desired driver of a node: the installation digest of its pod, and the driver's version; MIG devices."""

    digest: str
    version: str = ""
    mig: str = ""  # the MIG configuration that the node requests; empty if its GPUs stay as they are

    @property
    def target(self) -> str:
        """Name of the content as a whole."""
        return f"{self.digest}-{self.mig}" if self.mig else self.digest


NO_DRIVER = DesiredContent("none")
"""Desired content of a node that left the inventory, or that has a host driver and no MIG configuration."""


class StackPresence(Enum):
    """Whether a node is in the inventory, and how much of the stack a leaving node still has."""

    STAYS = "the node is in the inventory"
    LABELLED = "the node has the stack's labels"
    ENDING = "the labels are off, and pods of the stack have yet to end"
    BARE = "nothing but the stack's mark is left"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetNode:
    """One node with the stack's driver, or one that left the inventory.

    Before the DaemonSet controller has observed the new template, it replaces a deleted driver pod by the same one. A
    node is unavailable if it is cordoned, NotReady, under way, or failed. A node without a driver pod is available, so
    that a taint does not stop the fleet.
    """

    name: str
    domain: str  # of nodes that share limits; a key of ``Policy.domains``
    desired: DesiredContent
    position: int = 0  # its place in the inventory
    revision: str = ""  # the Node's resourceVersion; decisions are valid for this one only
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    is_cordoned: bool = False
    cordoned_by: str = ""  # field manager of ``spec.unschedulable``; empty if unknown
    is_ready: bool = True
    driver: DriverPod | None = None
    validation_result: ValidationResult | None = None
    pods: tuple[Pod, ...] = ()  # pods on it that are not of the stack
    offers_gpus: bool = True  # whether pods can request its GPUs; true without a device plugin of the stack
    exclusion_reason: str = ""  # why this run does not change the node, which still counts in limits
    is_template_observed: bool = True
    mig_manager: str = ""  # uid of the pod of a ready MIG manager that knows the desired configuration
    stack: StackPresence = StackPresence.STAYS
    leaves_because: str = NOT_IN_INVENTORY  # why a leaving node loses the stack
    state: UpgradeState = field(init=False, repr=False, compare=False)  # computed once, for speed
    is_unavailable: bool = field(init=False, repr=False, compare=False)  # the same

    def __post_init__(self) -> None:
        """Read the label."""
        state = states.parse_state(self.labels.get(states.STATE, ""))
        is_busy = state in states.UNDER_WAY or state is UpgradeState.FAILED
        object.__setattr__(self, "state", state)
        object.__setattr__(self, "is_unavailable", is_busy or self.is_cordoned or not self.is_ready)

    @property
    def is_under_way(self) -> bool:
        """Whether this run upgrades the node."""
        return self.state in states.UPGRADING and not self.exclusion_reason

    @property
    def is_leaving(self) -> bool:
        """Whether the node left the inventory, and loses the stack."""
        return self.stack is not StackPresence.STAYS

    @property
    def has_host_driver(self) -> bool:
        """Whether the node stays, with a driver of its own; the rollout then changes its MIG devices alone."""
        return self.desired.digest == NO_DRIVER.digest and not self.is_leaving

    def has_flag(self, annotation: str) -> bool:
        """Whether an annotation is ``true``."""
        return self.annotations.get(annotation) == "true"

    def state_since(self) -> float | None:
        """When the node entered its state, in unix seconds; None without the annotation."""
        try:
            return float(self.annotations[states.SINCE])
        except (KeyError, ValueError):
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The fleet at one moment."""

    now: float  # unix seconds
    target: str  # digest of the desired content of the whole fleet
    nodes: tuple[FleetNode, ...]
    previous: str = ""  # digest of the content of a rollback; empty if the history has none
    is_rolling_back: bool = False  # whether ``target`` is the content of an earlier run


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetDomain:
    """Nodes with common limits: those of one pool with its own upgrade policy, or those of all other pools."""

    policy: UpgradePolicy = field(default_factory=UpgradePolicy)
    restart_seconds: int = 1200  # timeout of a driver pod until it is ready
    validation_seconds: int = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The inventory's rules for rollouts. ``domains`` has every ``FleetNode.domain``."""

    fleet: RolloutPolicy = field(default_factory=RolloutPolicy)
    domains: Mapping[str, BudgetDomain]


class HoldReason(StrEnum):
    """Why nodes may not start."""

    NOTHING = "nothing"
    FAILURES = "failures"
    WINDOW = "window"
    CANARIES = "canaries"


@dataclass(frozen=True, slots=True)
class Admission:
    """The nodes that may start."""

    hold_reason: HoldReason
    wait_reason: str = ""  # why the others wait
    until: float = inf  # when the others may start by themselves, in unix seconds
    # The candidates that may start, in order; as canaries if these are the barrier.
    admitted: tuple[FleetNode, ...] = ()


class Cordon(StrEnum):
    """The change of ``spec.unschedulable`` in a transition."""

    KEEP = "keep"
    SET = "set"
    LIFT = "lift"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTransition:
    """Write state, annotations and cordon of a node in one patch, with its ``revision`` as precondition."""

    node: str
    revision: str
    state: UpgradeState
    cordon: Cordon = Cordon.KEEP
    annotations: tuple[tuple[str, str | None], ...] = ()  # None removes
    labels: tuple[tuple[str, str | None], ...] = ()  # besides that of the state; None removes
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evict:
    """Evict a pod, by its uid, through the Eviction API; retry later if refused."""

    node: str
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Delete the driver pod of a node, by its uid; its DaemonSet creates a new one."""

    node: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartMigManager:
    """Delete the pod of the MIG manager of a node, by its uid; the next one applies what the node requests."""

    node: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Validate:
    """Run a validation on the node for this driver pod."""

    node: str
    driver: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RollBack:
    """Roll the fleet back to the content ``to``."""

    target: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveLabels:
    """Remove the stack's labels from a node, except that of its inventory; the stack's pods there then end."""

    node: str


Action = StateTransition | Evict | Restart | RestartMigManager | Validate | RollBack | RemoveLabels


def transition_to(
    node: FleetNode, to: UpgradeState, now: float, *, reason: str = "", also: Mapping[str, str | None] | None = None
) -> StateTransition:
    """Return the transition of a node into a state, with the annotations of that state."""
    notes: dict[str, str | None] = dict.fromkeys(states.STATE_ANNOTATIONS)
    notes |= {states.ENABLED: "true", states.SINCE: str(int(now)), states.TARGET: node.desired.target}
    match to:
        case UpgradeState.WAIT_FOR_JOBS_REQUIRED:
            notes[states.JOBS_SINCE] = str(int(now))
        case UpgradeState.VALIDATION_REQUIRED:
            notes[states.VALIDATION_SINCE] = str(int(now))
        case UpgradeState.FAILED:
            pod = node.driver.uid if node.driver else None
            notes |= {states.REASON: reason, states.FAILED_IN: node.state.value, states.FAILED_WITH: pod}
        case UpgradeState.DONE:
            notes |= dict.fromkeys(states.UPGRADE_ANNOTATIONS)
        case _:
            pass
    return write_annotations(node, to, {**notes, **(also or {})}, reason=reason)


def release_node(node: FleetNode, cordon: Cordon, reason: str) -> StateTransition:
    """Return the transition that removes everything that a rollout has written on a node."""
    notes: dict[str, str | None] = dict.fromkeys(states.ALL_ANNOTATIONS)
    return replace(write_annotations(node, UpgradeState.UNKNOWN, notes, reason=reason), cordon=cordon)


def write_annotations(
    node: FleetNode, to: UpgradeState, notes: Mapping[str, str | None], *, reason: str
) -> StateTransition:
    """Return a transition that writes only the annotations that differ."""
    changed = {key: value for key, value in notes.items() if node.annotations.get(key) != value}
    return StateTransition(
        node=node.name, revision=node.revision, state=to, annotations=tuple(sorted(changed.items())), reason=reason
    )


def apply_transition(node: FleetNode, action: StateTransition) -> FleetNode:
    """Return the node as it is after the write of a transition."""
    labels = {**node.labels, **dict(action.labels), states.STATE: action.state.value or None}
    notes = {**node.annotations, **dict(action.annotations)}
    return replace(
        node,
        labels={key: value for key, value in labels.items() if value is not None},
        annotations={key: value for key, value in notes.items() if value is not None},
        is_cordoned=(node.is_cordoned or action.cordon is Cordon.SET) and action.cordon is not Cordon.LIFT,
        cordoned_by=states.MANAGER if action.cordon is Cordon.SET else node.cordoned_by,
    )


def cordon_node(node: FleetNode, state: UpgradeState, now: float, reason: str) -> StateTransition:
    """Return the transition that cordons a node and marks the cordon as the rollout's."""
    marks = {states.CORDONED: states.MANAGER, states.WAS_CORDONED: None, states.CORDONED_BY: None}
    return replace(transition_to(node, state, now, reason=reason, also=marks), cordon=Cordon.SET)
