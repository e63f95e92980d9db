"""What the state machine looks at, and what it asks for: one reading of the fleet, and actions, as frozen values.

Each action is idempotent, and right only for the snapshot that it was decided for. The clock is in the snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum

from gpu_provision.model.rollout_policy import RolloutPolicy, UpgradePolicy
from gpu_provision.rollout import states
from gpu_provision.rollout.states import UpgradeState


class GpuUse(StrEnum):
    """How it is known that a pod uses GPUs."""

    NONE = ""
    REQUEST = "requests GPUs"
    CLAIM = "holds a claim to GPUs"
    RUNTIME_CLASS = "runs with the NVIDIA runtime class"
    HOST_PATH = "mounts NVIDIA devices of the host"
    ENVIRONMENT = "sets NVIDIA_VISIBLE_DEVICES"
    SOME_CLAIM = "holds a ResourceClaim, and whether it is to GPUs is not known"


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """A PodDisruptionBudget that covers a pod. ``allowed`` is how many pods may go right now."""

    name: str
    allowed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod on a node that is none of our own."""

    namespace: str
    name: str
    uid: str
    owner: str = ""  # its controller as ``Kind name``; empty if nothing would start it again
    labels: Mapping[str, str] = field(default_factory=dict)
    use: GpuUse = GpuUse.NONE
    is_daemon: bool = False  # whether a DaemonSet or the kubelet itself starts it again on the same node at once
    is_over: bool = False  # succeeded or failed: it holds nothing any more
    has_empty_dir: bool = False  # whether data goes with it
    tolerates_cordons: bool = False  # whether its successor may come to the same node although that is cordoned
    is_terminating: bool = False  # whether it is already being deleted
    refusal: str = ""  # what the API server last answered to its eviction; empty if it did not refuse
    budgets: tuple[DisruptionBudget, ...] = ()  # those that cover it

    def __str__(self) -> str:
        """Return the pod as findings name it."""
        return f"{self.namespace}/{self.name}" + (f" ({self.owner})" if self.owner else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverPod:
    """The driver pod of a node."""

    uid: str
    digest: str  # names all that the installation depends on, contents of ConfigMaps and Secrets included
    is_ready: bool
    is_terminating: bool = False
    restarts: int = 0  # the most restarts of any of its containers that is not ready
    has_owner: bool = True  # whether a DaemonSet would start it again
    is_held_up: bool = False  # whether it cannot install, since pods on the node still use the driver that is loaded

    @property
    def has_crashed(self) -> bool:
        """Whether it is not ready, and has restarted."""
        return not self.is_ready and self.restarts > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationResult:
    """What validation showed of the driver pod that is there now."""

    passed: bool
    version: str = ""  # version of the driver as the validation saw it; empty if it did not look
    reason: str = ""  # why it failed


@dataclass(frozen=True, slots=True)
class DesiredContent:
    """The driver that a node is to have: the digest of a pod that is as wanted, and the driver's version."""

    digest: str
    version: str = ""


NO_DRIVER = DesiredContent("none")
"""What a node is to have that left the inventory, or that has a driver of its own."""


class StackPresence(Enum):
    """Whether a node keeps the stack, and how far it is off one that left the inventory."""

    STAYS = "the node is in the inventory"
    LABELLED = "the node has the stack's labels"
    ENDING = "the labels are off, and pods of the stack have yet to end"
    BARE = "nothing but the stack's mark is left"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetNode:
    """One node with the stack's driver, or one that left the inventory.

    Until the DaemonSet controller has observed the wanted template, it replaces a deleted driver pod by the same one. A
    node is unavailable that takes no work, or is about to: cordoned by anybody, NotReady, under way, or failed. One
    without a driver pod is available: a pod that a taint keeps away must not stop the fleet.
    """

    name: str
    domain: str  # names the nodes that share limits; a key of ``Policy.domains``
    wanted: DesiredContent
    position: int = 0  # its place in the inventory
    revision: str = ""  # the Node's resourceVersion; what was decided by it holds for no other
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    is_cordoned: bool = False
    cordoned_by: str = ""  # field manager of ``spec.unschedulable``; empty if unknown
    is_ready: bool = True
    driver: DriverPod | None = None
    proof: ValidationResult | None = None
    pods: tuple[Pod, ...] = ()  # other people's pods on it
    offers_gpus: bool = True  # whether pods can have its GPUs. True where no device plugin is to offer them
    left_out: str = ""  # why this run leaves it alone, whatever state it is in; empty if it does not. Limits count it
    is_template_observed: bool = True
    stack: StackPresence = StackPresence.STAYS  # how far the stack is off it, if it left the inventory
    state: UpgradeState = field(init=False, repr=False, compare=False)  # kept: it is asked for a dozen times a look
    is_unavailable: bool = field(init=False, repr=False, compare=False)  # the same

    def __post_init__(self) -> None:
        """Read the label."""
        state = states.parse_state(self.labels.get(states.STATE, ""))
        is_busy = state in states.UNDER_WAY or state is UpgradeState.FAILED
        object.__setattr__(self, "state", state)
        object.__setattr__(self, "is_unavailable", is_busy or self.is_cordoned or not self.is_ready)

    @property
    def is_under_way(self) -> bool:
        """Whether this run is in the middle of its upgrade."""
        return self.state in states.UPGRADING and not self.left_out

    @property
    def is_leaving(self) -> bool:
        """Whether it left the inventory, and the stack is to go."""
        return self.stack is not StackPresence.STAYS

    def says(self, annotation: str) -> bool:
        """Whether an annotation is ``true``."""
        return self.annotations.get(annotation) == "true"

    def since(self) -> float | None:
        """When it entered its state, in unix seconds; None if that is not written down."""
        try:
            return float(self.annotations[states.SINCE])
        except (KeyError, ValueError):
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The fleet at one moment."""

    now: float  # unix seconds
    target: str  # names the wanted content of the whole fleet
    nodes: tuple[FleetNode, ...]
    previous: str = ""  # names the content that a rollback would bring back; empty if there is none on record
    is_rolling_back: bool = False  # whether ``target`` is what an earlier run has left behind


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetDomain:
    """Nodes with limits in common: those of all pools without an upgrade policy of their own, or those of one pool."""

    policy: UpgradePolicy = field(default_factory=UpgradePolicy)
    restart_seconds: int = 1200  # how long a driver pod may take until it is ready
    validation_seconds: int = 600  # how long the proof may take


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Everything that the inventory says about rollouts. ``domains`` has every ``Node.domain``."""

    fleet: RolloutPolicy = field(default_factory=RolloutPolicy)
    domains: Mapping[str, BudgetDomain]


class Cordon(StrEnum):
    """What a move does to ``spec.unschedulable``."""

    KEEP = "keep"
    SET = "set"
    LIFT = "lift"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTransition:
    """Write state, memory and cordon of a node in one patch, refused if the node is of another ``revision``."""

    node: str
    revision: str
    to: UpgradeState
    cordon: Cordon = Cordon.KEEP
    annotations: tuple[tuple[str, str | None], ...] = ()  # what to write; None removes
    reason: str = ""  # why, for people and for the event on the node


@dataclass(frozen=True, slots=True, kw_only=True)
class Evict:
    """Ask the Eviction API for a pod, by its uid; again later if it refuses."""

    node: str
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Delete the driver pod of a node, by its uid; its DaemonSet makes another."""

    node: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Validate:
    """See to it that a validation runs on the node for this driver pod."""

    node: str
    driver: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RollBack:
    """Make ``to`` the wanted content of the fleet again."""

    to: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveLabels:
    """Take the stack's labels off a node, but for its mark; the stack's pods there then end."""

    node: str


Action = StateTransition | Evict | Restart | Validate | RollBack | RemoveLabels


def move(
    node: FleetNode, to: UpgradeState, now: float, *, reason: str = "", also: Mapping[str, str | None] | None = None
) -> StateTransition:
    """Return the move of a node into a state, with all that has to be remembered or forgotten there."""
    notes: dict[str, str | None] = dict.fromkeys(states.STATE_ANNOTATIONS)
    notes |= {states.ENABLED: "true", states.SINCE: str(int(now)), states.TARGET: node.wanted.digest}
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
    return write_marks(node, to, {**notes, **(also or {})}, reason=reason)


def release_node(node: FleetNode, cordon: Cordon, reason: str) -> StateTransition:
    """Return the move that takes everything back that a rollout has written on a node."""
    notes: dict[str, str | None] = dict.fromkeys(states.ALL_ANNOTATIONS)
    return replace(write_marks(node, UpgradeState.UNKNOWN, notes, reason=reason), cordon=cordon)


def write_marks(node: FleetNode, to: UpgradeState, notes: Mapping[str, str | None], *, reason: str) -> StateTransition:
    """Return a move that writes only what is not there already."""
    changed = {key: value for key, value in notes.items() if node.annotations.get(key) != value}
    return StateTransition(
        node=node.name, revision=node.revision, to=to, annotations=tuple(sorted(changed.items())), reason=reason
    )


def apply_transition(node: FleetNode, action: StateTransition) -> FleetNode:
    """Return the node as it is once a move has been written: what we wrote ourselves need not be read to be known."""
    labels = {**node.labels, states.STATE: action.to.value}
    if action.to is UpgradeState.UNKNOWN:
        del labels[states.STATE]
    notes = {**node.annotations, **dict(action.annotations)}
    return replace(
        node,
        labels=labels,
        annotations={key: value for key, value in notes.items() if value is not None},
        is_cordoned=(node.is_cordoned or action.cordon is Cordon.SET) and action.cordon is not Cordon.LIFT,
        cordoned_by=states.MANAGER if action.cordon is Cordon.SET else node.cordoned_by,
    )


def cordon_node(node: FleetNode, state: UpgradeState, now: float, reason: str) -> StateTransition:
    """Return the move that cordons a node and marks the cordon as ours."""
    marks = {states.CORDONED: states.MANAGER, states.WAS_CORDONED: None, states.CORDONED_BY: None}
    return replace(move(node, state, now, reason=reason, also=marks), cordon=Cordon.SET)
