"""The plan as a value: printing, JSON, drift, pruning and applying are views or uses of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gpu_provision.model.cluster import Manifest, ObjectRef
from gpu_provision.model.findings import Finding
from gpu_provision.model.rollout import Schedule


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

    ``old`` is None for a field that is added, ``new`` for one that goes.
    """

    path: str
    old: Any
    new: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """What a node that left the inventory loses.

    Attributes:
        pods: How many pods of the stack end there.
        users: Pods of others that lose a GPU, as ``namespace/name``; None if they could not be read.
    """

    pods: int
    users: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One object that is not as declared.

    Attributes:
        component: Name of the component it belongs to.
        fields: What differs; empty for create, delete and run.
        nodes: Where pods restart because of it; for wait, which nodes are not ready.
        effects: What else happens, in words: ``runs vectorAdd on t4-1``, ``no driver restart``.
        takes_back_from: Field managers of hand edits that this change undoes, such as ``kubectl-edit``.
        certain: False if it depends on what an earlier change brings about ("may" instead of "will").
        manifest: The object to apply; None for delete and wait. Of a pod to update: its name, uid and node, and the
            labels and annotations that change, None for those that go.
        departure: Of a Node that left the inventory: what it loses with its labels.
    """

    component: str
    action: Action
    ref: ObjectRef
    fields: tuple[FieldChange, ...] = ()
    nodes: tuple[str, ...] = ()
    effects: tuple[str, ...] = ()
    takes_back_from: tuple[str, ...] = ()
    certain: bool = True
    manifest: Manifest | None = None
    departure: Departure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceChange:
    """The resource that a controller keeps a stack by: whoever applies changes that, and the controller does the rest.

    Attributes:
        name: As findings call it: ``gpustack/prod``.
        fields: What an apply changes in its spec; empty if it says all of it already.
    """

    name: str
    fields: tuple[FieldChange, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that a run would change, in the order of components.

    Attributes:
        inventory: Name of the inventory.
        release: Name of the release.
        cluster: The cluster as people name it: context and version.
        components: Names of all components that are on, in dependency order.
        changes: Empty if the cluster is as declared.
        findings: Conflicts and warnings found while planning.
        rollout: How drivers are replaced; None if none is.
        resource: What the plan is carried out by if a controller looks after the stack; None if none does.
    """

    inventory: str
    release: str
    cluster: str
    components: tuple[str, ...]
    changes: tuple[Change, ...]
    findings: tuple[Finding, ...] = ()
    rollout: Schedule | None = None
    resource: ResourceChange | None = None

    def of(self, component: str) -> tuple[Change, ...]:
        """Return the changes of one component."""
        return tuple(change for change in self.changes if change.component == component)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.changes and not (self.resource and self.resource.fields)
