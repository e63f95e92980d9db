"""What is not as declared, and why: somebody changed it, or the inventory has changed and was not applied."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gpu_provision.model.cluster import ObjectRef
from gpu_provision.model.findings import Finding
from gpu_provision.model.plan import Action, ResourceChange


class Origin(StrEnum):
    """Why something is not as declared."""

    DRIFT = "drift"  # it is not as it was applied
    PENDING = "pending"  # it is as it was applied; the inventory says something else by now
    EITHER = "either"  # one of both: nothing tells what was applied
    NOT_READY = "not-ready"  # the object is as declared, what follows from it is not


@dataclass(frozen=True, slots=True)
class Writer:
    """Who wrote a field last, by the API server's books.

    Attributes:
        manager: Field manager, such as ``kubectl-edit``.
        time: When it wrote last, RFC 3339; the field or another one of its own on this object.
    """

    manager: str
    time: str

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
    """One object that is not as declared.

    Attributes:
        action: What an apply would do about it.
        origin: The most alarming of its fields' origins.
        notes: What else is to be said, in words.
        nodes: Where it is not ready; empty if that is not about nodes.
    """

    component: str
    ref: ObjectRef
    action: Action
    origin: Origin
    fields: tuple[FieldDrift, ...] = ()
    notes: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Everything in a cluster that is not as declared.

    Attributes:
        resource: As in a plan.
        applied: What was known of the last apply: ``run 7, 2026-11-21T08:00:00Z``; empty if only field managers tell.
        installed: Whether the cluster has anything of the stack, or a record of it.
    """

    inventory: str
    release: str
    cluster: str
    differences: tuple[Difference, ...]
    applied: str = ""
    resource: ResourceChange | None = None
    findings: tuple[Finding, ...] = ()
    installed: bool = True

    def of(self, origin: Origin) -> tuple[Difference, ...]:
        """Return the differences of one origin."""
        return tuple(each for each in self.differences if each.origin is origin)

    @property
    def is_worth_a_look(self) -> bool:
        """Whether anything differs besides what is pending."""
        return any(each.origin is not Origin.PENDING for each in self.differences)
