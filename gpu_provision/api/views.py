"""Read-only verbs and the adoption of a cluster, with their results."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from gpu_provision.adopt.plan import Adoption
from gpu_provision.api.jobs import ApplyJob, ignore_event, job_fields, phase_fields, read_only_listener
from gpu_provision.api.lock_wait import lock_waiter
from gpu_provision.api.options import with_ignored
from gpu_provision.api.results import Printable, StackRun, raise_on_failure
from gpu_provision.api.selection import select_nodes
from gpu_provision.hosts.result import NO_HOSTS, HostsResult
from gpu_provision.model import codes
from gpu_provision.model.codes import ExitCode
from gpu_provision.model.findings import Finding, UsageError
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import Difference, Drift
from gpu_provision.model.progress import Event, Status
from gpu_provision.output import status as status_view
from gpu_provision.output import views
from gpu_provision.output.findings import document
from gpu_provision.output.text import PLAIN, Style
from gpu_provision.reconcile.preflight import PreflightReport
from gpu_provision.verify.run import Verification


@dataclass(frozen=True, kw_only=True)
class StackAdoption(Adoption, Printable):
    """The changes of each object of the GPU Operator by an adoption."""

    def text(self, style: Style = PLAIN) -> str:
        """Return what ``gpu-provision adopt --dry-run`` prints on stdout."""
        return views.adoption_text(self, style)

    def document(self) -> dict[str, Any]:
        """Return the document of ``gpu-provision adopt --dry-run --json``."""
        parts = {"inventory": self.inventory, "cluster": self.cluster, "adoption": views.adoption_document(self)}
        return document("adopt", self.findings, **parts)


def adoption(inventory: Inventory) -> StackAdoption:
    """Return what `adopt` would change; read-only.

    Raises:
        RunFailedError: The operator manages the stack.
        UnreachableError, ForbiddenError: The cluster cannot be asked.
    """
    from gpu_provision.adopt.runner import plan as planned_adoption
    from gpu_provision.operator import remote_run
    from gpu_provision.reconcile.session import Session

    session = Session(inventory)
    remote_run.refuse_adoption(session.cluster, inventory)
    return StackAdoption.copy_of(planned_adoption(session))


def adopt(inventory: Inventory, *, lock_timeout: int = 0, listen: Callable[[Event], None] | None = None) -> StackRun:
    """Take over the cluster from the GPU Operator: stop it, take over its objects, apply, and delete the rest.

    Unchanged drivers keep running. Another call resumes an interrupted adoption. Skips the hosts.

    Args:
        lock_timeout: As for `apply`.
        listen: As for `apply`.

    Raises:
        RunFailedError: The adoption was refused before any write, or an object is not as declared afterwards.
        LockedError, ForbiddenError, UnreachableError, InvalidError: As for `apply`.
    """
    from gpu_provision.adopt import runner
    from gpu_provision.operator import remote_run
    from gpu_provision.reconcile.session import Session

    heard = listen or ignore_event
    session = Session(inventory)
    remote_run.refuse_adoption(session.cluster, inventory)
    call = lock_waiter(inventory, lock_timeout, heard)
    call(lambda: runner.transfer_ownership(session, heard))
    job = ApplyJob(inventory=inventory, hosts=False, command="adopt", lock_timeout=lock_timeout)
    result = raise_on_failure(job.execute(heard))
    call(lambda: runner.finalize(Session(inventory), heard))
    return result


_OF_KERNELS = frozenset({"GP630", "GP631", "GP657"})  # another one boots next, without headers, without an image


@dataclass(frozen=True, slots=True, kw_only=True)
class StackDrift(Printable):
    """Differences of hosts and cluster since the last apply, and their field managers.

    Attributes:
        hosts: The hosts, each with its pending changes.
        cluster: Differences in the cluster; none if it took no part.
    """

    cluster: Drift
    hosts: HostsResult = NO_HOSTS

    @property
    def differences(self) -> tuple[Difference, ...]:
        """Differences in the cluster, one per object."""
        return self.cluster.differences

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Errors and warnings; of hosts, the warnings about the kernel that runs or boots next."""
        of_kernels = (each for each in self.hosts.findings if each.code in _OF_KERNELS)
        return (*self.cluster.findings, *self.hosts.errors, *of_kernels)

    @property
    def has_drift(self) -> bool:
        """Whether anything differs besides what is declared and not applied yet."""
        return self.cluster.has_drift or bool(self.hosts.changed)

    def text(self, style: Style = PLAIN) -> str:
        """Return what ``gpu-provision drift`` prints on stdout: one line if nothing differs."""
        if any(each.code == codes.NO_HOST for each in self.findings):
            return status_view.NO_HOST
        changed = self.hosts.changed
        hosts = status_view.hosts_text(HostsResult(hosts=changed), style, done=False)
        return views.drift_text(self.cluster, style, hosts=hosts, changed_hosts=len(changed))

    def document(self) -> dict[str, Any]:
        """Return the document of ``gpu-provision drift --json``."""
        return document(
            "drift", self.findings, hosts=status_view.hosts_document(self.hosts), **views.drift_document(self.cluster)
        )


@dataclass(frozen=True, kw_only=True)
class StackStatus(Status, Printable):
    """The state of the stack, with a row for each component and for each node."""

    @property
    def is_ready(self) -> bool:
        """Whether every component and every GPU node is ready."""
        return status_view.is_ready(self)

    def text(self, style: Style = PLAIN, *, verbose: bool = False) -> str:
        """Return what ``gpu-provision status`` prints on stdout; with ``-v`` if ``verbose``."""
        return status_view.text(self, style, verbose=verbose)

    def document(self) -> dict[str, Any]:
        """Return the document of ``gpu-provision status --json``."""
        return document("status", **status_view.document(self))


@dataclass(frozen=True, kw_only=True)
class StackPreflight(PreflightReport, Printable):
    """Problems that would fail a run; ``findings`` has errors first.

    Attributes:
        inventory: Name of the inventory.
    """

    inventory: str

    def text(self, style: Style = PLAIN) -> str:
        """Return what ``gpu-provision preflight`` prints on stdout."""
        return views.preflight_text(self, style)

    def document(self) -> dict[str, Any]:
        """Return the document of ``gpu-provision preflight --json``."""
        return document(
            "preflight", self.findings, inventory=self.inventory, hosts=status_view.hosts_document(self.hosts)
        )


@dataclass(frozen=True, kw_only=True)
class StackVerification(Verification, Printable):
    """The results of acceptance tests.

    Attributes:
        inventory: Name of the inventory.
    """

    inventory: str

    @property
    def passed(self) -> bool:
        """Whether no test failed, and every host and the cluster answered."""
        return self.exit_code is ExitCode.OK

    def text(self, style: Style = PLAIN) -> str:
        """Return what ``gpu-provision verify`` prints on stdout."""
        return views.verification_text(self, style)

    def document(self) -> dict[str, Any]:
        """Return the document of ``gpu-provision verify --json``."""
        return document("verify", inventory=self.inventory, **views.verification_document(self))


def status(inventory: Inventory) -> StackStatus:
    """Return the state of the stack in the cluster; skips the hosts.

    Raises:
        UnreachableError, ForbiddenError: The cluster cannot be asked.
    """
    from gpu_provision.reconcile.session import Session
    from gpu_provision.reconcile.status import status as read_status

    session = Session(inventory)
    return StackStatus.copy_of(read_status(session.cluster, session.cluster_plan()))


def drift(
    inventory: Inventory,
    *,
    hosts_only: bool = False,
    cluster_only: bool = False,
    limit: str | Iterable[str] | None = None,
    listen: Callable[[Event], None] | None = None,
) -> StackDrift:
    """Return changes of hosts and cluster since the last apply, and their field managers; read-only.

    Further arguments are those of `plan`.

    Args:
        limit: Only these hosts, as for `plan`; skips the cluster. None for all.

    Raises:
        UsageError: ``limit`` names no node.
        RunFailedError: Hosts cannot be read at all.
        UnreachableError, ForbiddenError: The cluster cannot be asked.
    """
    job = ApplyJob(**job_fields(inventory, hosts_only=hosts_only, cluster_only=cluster_only, limit=limit))
    return replace(job, cluster=job.cluster and not job.limit).drift(listen or ignore_event)


def preflight(
    inventory: Inventory,
    *,
    limit: str | Iterable[str] | None = None,
    ignored: str | Iterable[str] = (),
    offline: bool = False,
    listen: Callable[[Event], None] | None = None,
) -> StackPreflight:
    """Check hosts, cluster and registry for problems that would fail a run; read-only.

    Further arguments are those of `plan`.

    Args:
        limit, ignored: As for `plan`.
        offline: Skip the image lookup in registries.

    Raises:
        UsageError: An argument names no node or finding.
        RunFailedError: Hosts cannot be read at all.
        UnreachableError, ForbiddenError: The cluster cannot be asked.
    """
    from gpu_provision.reconcile import preflight as reconcile_preflight

    wanted = with_ignored(inventory, ignored)
    if offline:
        wanted = replace(wanted, preflight=replace(wanted.preflight, registry=False))
    report = reconcile_preflight.preflight(
        wanted, limit=select_nodes(inventory, limit), listen=read_only_listener(listen or ignore_event)
    )
    return StackPreflight.copy_of(report, inventory=inventory.name)


def verify(  # noqa: PLR0913 - the options of the command
    inventory: Inventory,
    *,
    hosts_only: bool = False,
    cluster_only: bool = False,
    limit: str | Iterable[str] | None = None,
    tests: Iterable[str] = (),
    junit: str = "",
    listen: Callable[[Event], None] | None = None,
) -> StackVerification:
    """Run acceptance tests against hosts and cluster, in their own process; read-only.

    The tests read the inventory file, not the value. A failed test does not raise: see
    `StackVerification.passed`. Needs ``pip install 'gpu-provision[verify]'``.
    Further arguments are those of `plan`.

    Args:
        limit: As for `plan`.
        tests: Files or directories with your own pytest tests; docs/verify.md shows how to write them.
        junit: File for JUnit XML; empty for none.
        listen: Called with an `Event` for each test as it ends, from this thread.

    Raises:
        UsageError: The packages of the extra are missing, ``limit`` names no node, or the inventory has no file.
        RunFailedError: pytest could not run the tests.
    """
    from gpu_provision.verify import run

    if not inventory.path:
        what = "acceptance tests read the file of an inventory, and this one was made in Python"
        raise UsageError(Finding(code=codes.USAGE, what=what, fix="write it to a file and load that"))
    wanted = run.VerifyOptions(
        inventory=inventory.path,
        kubeconfig=inventory.cluster.kubeconfig or None,
        context=inventory.cluster.context or None,
        nodes=select_nodes(inventory, limit),
        tests=tuple(tests),
        junit=junit,
        **phase_fields(hosts_only=hosts_only, cluster_only=cluster_only),
    )
    return StackVerification.copy_of(run.verify(wanted, listen or ignore_event), inventory=inventory.name)
