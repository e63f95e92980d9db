"""Results of plans, runs and removals: values with the text and the JSON of the commands.

`views` has those of the other verbs, so that a plan does not import them.
``hosts`` is empty if the hosts took no part; ``cluster`` is None if the cluster took no part or was not reached.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, Self, TypeVar

from gpu_provision.hosts.checks.findings import drop_reported_by_cluster
from gpu_provision.hosts.result import NO_HOSTS, HostsResult
from gpu_provision.model import codes
from gpu_provision.model.findings import Finding, RunFailedError
from gpu_provision.model.plan import Change, DestroyResult, Plan
from gpu_provision.model.progress import Evidence, RunResult
from gpu_provision.output import plan as plan_view
from gpu_provision.output import status as status_view
from gpu_provision.output.findings import document, has_errors
from gpu_provision.output.progress import duration
from gpu_provision.output.text import PLAIN, Style, escape_for_terminal


class Printable(ABC):
    """A value that prints as the command prints it, without colors."""

    __slots__ = ()

    @classmethod
    def copy_of(cls, value: Any, **more: Any) -> Self:
        """Return a copy of a value of the base class, with more fields."""
        return cls(**{field.name: getattr(value, field.name) for field in fields(value)}, **more)

    def __str__(self) -> str:
        """Return the text of the command."""
        return escape_for_terminal(self.text())

    @abstractmethod
    def text(self, style: Style = PLAIN) -> str:
        """Return what the command prints on stdout."""

    @abstractmethod
    def document(self) -> dict[str, Any]:
        """Return the JSON document that the command prints with ``--json``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackPlan(Printable):
    """The pending changes of hosts and cluster.

    Attributes:
        hosts: The hosts, each with its pending changes.
        cluster: The plan of the cluster; empty if it took no part.
        notes: Further findings.
        command: The command in the JSON document: ``plan``, ``apply`` or ``rollback``.
    """

    cluster: Plan
    hosts: HostsResult = NO_HOSTS
    notes: tuple[Finding, ...] = ()
    command: str = "plan"

    @property
    def changes(self) -> tuple[Change, ...]:
        """Pending changes of the cluster, in the order of components."""
        return self.cluster.changes

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Conflicts and warnings, of hosts and of the cluster."""
        of_hosts = drop_reported_by_cluster(self.hosts.all_findings, self.cluster.findings)
        return (*self.cluster.findings, *self.notes, *of_hosts)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do, on hosts and in the cluster."""
        return self.cluster.is_empty and not self.hosts.changed

    @property
    def can_be_applied(self) -> bool:
        """Whether neither a conflict in the cluster nor a failed host blocks an apply."""
        return not (has_errors(self.cluster.findings) or self.hosts.failed)

    def text(self, style: Style = PLAIN) -> str:
        """Return what ``gpu-provision plan`` prints on stdout."""
        return plan_view.text(self.cluster, style, on_hosts=self.hosts)

    def document(self) -> dict[str, Any]:
        """Return the document of ``gpu-provision plan --json``."""
        own = plan_view.document(self.cluster)
        return document(self.command, self.findings, hosts=status_view.hosts_document(self.hosts), **own)


@dataclass(frozen=True, slots=True, kw_only=True)
class StackRun(Printable):
    """The result of a run on hosts and cluster.

    Attributes:
        inventory: Name of the inventory.
        hosts: The hosts, each with its changes.
        cluster: Result of the cluster phase; None also if failed hosts skipped it.
        notes: Further findings, such as a skipped cluster phase.
        command: As in `StackPlan`; also ``adopt`` and ``validate``.
        plan: The plan of the cluster; None if it took no part.
    """

    inventory: str
    hosts: HostsResult = NO_HOSTS
    cluster: RunResult | None = None
    notes: tuple[Finding, ...] = ()
    command: str = "apply"
    plan: Plan | None = None

    @property
    def changed(self) -> int:
        """Number of objects written in the cluster."""
        return self.cluster.changed if self.cluster else 0

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """Output of the validations."""
        return self.cluster.evidence if self.cluster else ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Errors and warnings of hosts and cluster."""
        in_cluster = self.cluster.findings if self.cluster else ()
        return (*drop_reported_by_cluster(self.hosts.all_findings, in_cluster), *self.notes, *in_cluster)

    @property
    def succeeded(self) -> bool:
        """Whether the hosts and the cluster that took part are as declared."""
        in_cluster = self.cluster is None or status_view.has_succeeded(self.cluster)
        return in_cluster and not (self.hosts.failed or has_errors(self.notes))

    def text(self, style: Style = PLAIN) -> str:
        """Return what ``gpu-provision apply`` prints on stdout."""
        on_hosts = status_view.hosts_text(self.hosts, style)
        in_cluster = status_view.run_text(self.cluster, style) if self.cluster else ""
        done = plan_view.upgrades(self.plan) if self.plan and self.succeeded else []
        took = duration(self.cluster.seconds) if self.cluster else ""
        closing = f"Done: {', '.join(done)}, {took}." if done else ""
        if self.cluster is None and _is_without_hosts(self):
            closing = status_view.NO_HOST
        return "\n\n".join(filter(None, (on_hosts, in_cluster, closing)))

    def document(self) -> dict[str, Any]:
        """Return the document of ``gpu-provision apply --json``."""
        own = status_view.run_document(self.cluster or RunResult())
        hosts = status_view.hosts_document(self.hosts)
        return document(self.command, self.findings, inventory=self.inventory, hosts=hosts, **own)


@dataclass(frozen=True, slots=True, kw_only=True)
class StackRemoval(Printable):
    """The result of a removal, or its preview.

    Attributes:
        inventory: Name of the inventory.
        dry_run: Whether this is a preview.
        hosts: The hosts; empty also if the cluster still needs them.
        cluster: Deleted objects, or those to delete.
        notes: Why a phase was skipped.
    """

    inventory: str
    dry_run: bool
    hosts: HostsResult = NO_HOSTS
    cluster: DestroyResult | None = None
    notes: tuple[Finding, ...] = ()

    @property
    def changes(self) -> tuple[Change, ...]:
        """Writes in the cluster, in order; of a dry run, pending writes."""
        return self.cluster.changes if self.cluster else ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Objects that are left or stay, with reasons."""
        return (*(self.cluster.findings if self.cluster else ()), *self.notes, *self.hosts.all_findings)

    @property
    def is_empty(self) -> bool:
        """Whether there was nothing to remove."""
        return not (self.changes or self.hosts.changed)

    @property
    def succeeded(self) -> bool:
        """Whether nothing is left; of a dry run, whether nothing blocks the removal."""
        return not (has_errors(self.findings) or self.hosts.failed)

    def text(self, style: Style = PLAIN) -> str:
        """Return what ``gpu-provision destroy`` prints on stdout."""
        on_hosts = status_view.hosts_text(self.hosts, style, done=not self.dry_run)
        in_cluster = ""
        if self.cluster:
            from gpu_provision.output import views

            in_cluster = views.removal_text(self.cluster, self.inventory, style, dry_run=self.dry_run)
        elif _is_without_hosts(self):
            in_cluster = status_view.NO_HOST
        return "\n\n".join(filter(None, (on_hosts, in_cluster)))

    def document(self) -> dict[str, Any]:
        """Return the document of ``gpu-provision destroy --json``."""
        from gpu_provision.output import views

        own = views.removal_document(self.cluster or DestroyResult(cluster="not asked"), self.inventory)
        parts = {"inventory": self.inventory, "dry_run": self.dry_run, "hosts": status_view.hosts_document(self.hosts)}
        return document("destroy", self.findings, **parts, **own)


def _is_without_hosts(result: StackRun | StackRemoval) -> bool:
    """Whether the hosts took part alone, and there were none."""
    return not result.hosts.hosts and all(each.code == codes.NO_HOST for each in result.notes)


_Result = TypeVar("_Result", StackRun, StackRemoval, RunResult, DestroyResult)


def raise_on_failure(result: _Result) -> _Result:
    """Return a result. Raises RunFailedError with the result if the result has errors."""
    if getattr(result, "succeeded", not has_errors(result.findings)):
        return result
    failure = RunFailedError(*result.findings)
    failure.result = result
    raise failure
