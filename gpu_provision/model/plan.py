"""Plans, drift and rollout schedules as values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gpu_provision.model.cluster import Manifest, ObjectRef
from gpu_provision.model.findings import Finding


class Action(StrEnum):
    """What a change does to its object."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    RUN = "run"  # a validation pod is started and awaited
    WAIT = "wait"  # the object is as declared, but not ready yet


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One field that changes. ``path`` is written as kubectl users write it: ``spec.containers[dcgm].image``.

    ``old`` is None for a field that is added, ``new`` for one that is removed.
    """

    path: str
    old: Any
    new: Any


NOT_IN_INVENTORY = "no longer in the inventory"
"""Why a node loses the stack."""

FOR_VMS = "its GPUs are for virtual machines now"
"""The other reason: a label gives its GPUs to virtual machines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """What a node that left the inventory loses."""

    pods: int  # number of the stack's pods that end there
    # Pods of others that lose a GPU, as ``namespace/name``; None if they could not be read.
    users: tuple[str, ...] | None = None
    why: str = NOT_IN_INVENTORY


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One object that is not as declared."""

    component: str  # name of the component it belongs to
    action: Action
    ref: ObjectRef
    fields: tuple[FieldChange, ...] = ()  # what differs; empty for create, delete and run
    nodes: tuple[str, ...] = ()  # where pods restart because of it; for wait, which nodes are not ready
    effects: tuple[str, ...] = ()  # further effects: ``runs vectorAdd on t4-1``, ``no driver restart``
    # Field managers of hand edits that this change undoes, such as ``kubectl-edit``.
    takes_back_from: tuple[str, ...] = ()
    certain: bool = True  # false if it depends on an earlier change ("may" instead of "will")
    # The object to apply; None for delete and wait. Of a pod to update: its name, uid and node, and the labels
    # and annotations that change, None for those that go.
    manifest: Manifest | None = None
    departure: Departure | None = None  # of a Node that left the inventory: what it loses with its labels


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceChange:
    """The GPUStack of a stack: an apply changes it, and the controller reconciles it."""

    name: str  # as findings call it: ``gpustack/prod``
    fields: tuple[FieldChange, ...] = ()  # changes of its spec; empty if it is as declared


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that a run would change, in the order of components."""

    inventory: str
    release: str
    cluster: str  # the cluster as people name it: context and version
    components: tuple[str, ...]  # names of all components that are on, in dependency order
    changes: tuple[Change, ...]  # empty if the cluster is as declared
    findings: tuple[Finding, ...] = ()  # conflicts and warnings found while planning
    rollout: Schedule | None = None  # how drivers are replaced; None if none is
    # The GPUStack whose controller carries the plan out; None if none manages the stack.
    resource: ResourceChange | None = None

    def changes_of(self, component: str) -> tuple[Change, ...]:
        """Return the changes of one component."""
        return tuple(change for change in self.changes if change.component == component)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.changes and not (self.resource and self.resource.fields)


class Origin(StrEnum):
    """Why something is not as declared."""

    DRIFT = "drift"  # changed since it was applied
    PENDING = "pending"  # as it was applied; the inventory has changed since
    UNKNOWN = "either"  # one of both: the applied state is unknown
    NOT_READY = "not-ready"  # the object is as declared, but not ready


@dataclass(frozen=True, slots=True)
class Writer:
    """The field manager that wrote a field last, by ``managedFields``."""

    manager: str  # field manager, such as ``kubectl-edit``
    time: str  # of its last write to the object, RFC 3339

    def __str__(self) -> str:
        """Return ``kubectl-edit, 2026-11-21T08:00:00Z``."""
        return ", ".join(filter(None, (self.manager, self.time)))


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldDrift:
    """One field that is not as declared; None for a value that is not there."""

    path: str
    declared: Any
    found: Any
    origin: Origin
    writer: Writer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One object that is not as declared."""

    component: str
    ref: ObjectRef
    action: Action  # what an apply would do about it
    origin: Origin  # the most alarming of its fields' origins
    fields: tuple[FieldDrift, ...] = ()
    notes: tuple[str, ...] = ()  # further remarks
    nodes: tuple[str, ...] = ()  # where it is not ready; empty if that is not about nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Everything in a cluster that is not as declared."""

    inventory: str
    release: str
    cluster: str
    differences: tuple[Difference, ...]
    # The last apply on record: ``run 7, 2026-11-21T08:00:00Z``; empty if there is none.
    applied: str = ""
    resource: ResourceChange | None = None  # as in a plan
    findings: tuple[Finding, ...] = ()
    installed: bool = True  # whether the cluster has anything of the stack, or a record of it

    def with_origin(self, origin: Origin) -> tuple[Difference, ...]:
        """Return the differences of one origin."""
        return tuple(each for each in self.differences if each.origin is origin)

    @property
    def has_drift(self) -> bool:
        """Whether any difference is more than a pending change."""
        return any(each.origin is not Origin.PENDING for each in self.differences)


@dataclass(frozen=True, slots=True, kw_only=True)
class DestroyResult:
    """How a removal ended."""

    cluster: str
    changes: tuple[Change, ...] = ()  # writes in order; in a dry run, the planned ones
    evicted: tuple[str, ...] = ()  # descriptions of pods that were evicted, or would be
    requests: int = 0
    seconds: float = 0.0
    findings: tuple[Finding, ...] = ()  # what stays in the cluster, and why


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """A pod in the way of a driver."""

    namespace: str
    name: str
    owner: str = ""  # its controller as ``Kind name``; empty if nothing would start it again
    use: str = ""  # evidence that it uses GPUs: ``requests GPUs``; empty if it does not
    # False if it may end before its eviction, or is evicted only if something else fails.
    certain: bool = True
    # Whether its successor tolerates cordons, and so may return to the node and block the driver again.
    returns: bool = False
    budgets: tuple[str, ...] = ()  # the PodDisruptionBudgets that allow no disruption right now
    slowed_by: tuple[str, ...] = ()  # those that allow fewer disruptions than the wave needs


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePreview:
    """Preview of the upgrade of one node."""

    node: str
    why: str  # why its driver is replaced or removed
    leaves: bool = False  # whether the node left the inventory, so that its driver is removed
    keeps_driver: bool = False  # whether only its MIG devices change
    waits_for: tuple[Eviction, ...] = ()  # jobs that may end by themselves first
    evicts: tuple[Eviction, ...] = ()  # pods that are evicted, those of a drain that may follow among them
    stays: tuple[Eviction, ...] = ()  # pods that stay although they may use the driver
    cordoned_by: str = ""  # field manager of an earlier cordon, which stays; empty if there is none
    seconds: int = 0  # sum of its timeouts; 0 if one of them is off


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """Nodes that are upgraded at the same time; the next wave follows node by node as these are done."""

    nodes: tuple[NodePreview, ...]
    # Unix seconds of the maintenance window or of the end of a soak time; None for at once.
    not_before: float | None = None
    is_canary: bool = False  # whether the later waves depend on its success


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Forecast of a rollout without failures."""

    under_way: tuple[str, ...] = ()  # nodes with an unfinished upgrade of an earlier run; they come first
    waves: tuple[Wave, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()  # node and why its driver is not replaced
    # Nodes that keep their driver; only their upgrade label and annotations change.
    marked: tuple[str, ...] = ()
    stop_after: int = 1  # number of failed nodes that stops the rollout

    @property
    def nodes(self) -> tuple[NodePreview, ...]:
        """All nodes of all waves, in order."""
        return tuple(outlook for wave in self.waves for outlook in wave.nodes)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do on any node."""
        return not (self.under_way or self.waves or self.skipped or self.marked)
