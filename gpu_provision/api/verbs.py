"""The verbs that change hosts and cluster, the plan of them, and the records of runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_provision.api.jobs import ApplyJob, apply_job, destroy_job, ignore
from gpu_provision.api.results import Shown, StackPlan, StackRemoval, StackRun, raise_on_failure
from gpu_provision.model import codes
from gpu_provision.model.cluster import Manifest
from gpu_provision.model.findings import Finding, RunFailedError, Severity
from gpu_provision.model.history import History, Record
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import Action, Plan
from gpu_provision.model.progress import Event, LockHolder
from gpu_provision.output import history as history_view
from gpu_provision.output.findings import document
from gpu_provision.output.text import PLAIN, Style
from gpu_provision.rbac.roles import RbacSubject, roles


@dataclass(frozen=True, kw_only=True)
class StackHistory(History, Shown):
    """The runs of a stack that wrote something: a sequence, the oldest first; it prints the newest first.

    Attributes:
        inventory: Name of the inventory.
        findings: Warnings about records that cannot be read.
        changes: What each run declared otherwise than the one before, by number: ``driver 595.91.07 -> 580.126.20``.
    """

    inventory: str
    findings: tuple[Finding, ...] = ()
    changes: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    def text(self, style: Style = PLAIN) -> str:
        """Return what ``gpu-provision history`` prints on stdout."""
        return history_view.text(self, style, self.changes)

    def document(self) -> dict[str, Any]:
        """Return the document of ``gpu-provision history --json``."""
        runs = [history_view.document(record, self.changes.get(record.number, ())) for record in self.records]
        return document("history", self.findings, inventory=self.inventory, runs=runs)


def history(inventory: Inventory) -> StackHistory:
    """Return the runs of the stack that wrote something, as they are on record in the cluster.

    Raises:
        UnreachableError, ForbiddenError: The cluster cannot be asked.
    """
    from gpu_provision.history import rollback as records
    from gpu_provision.reconcile.session import Session

    found = records.read_history(Session(inventory).cluster, inventory)
    problems = tuple(
        Finding(
            code=codes.DAMAGED_RECORD,
            where=f"ConfigMap {inventory.cluster.namespace}/{inventory.name}-history {name}",
            what="this record of a run cannot be read, so there is no way back to that run",
            fix="nothing; it goes when it is older than the runs that are kept",
            severity=Severity.WARNING,
        )
        for name in found.damaged
    )
    changes = history_view.changes_by_run(found.records, inventory)
    return StackHistory.copy_of(found, inventory=inventory.name, findings=problems, changes=changes)


def going_back(inventory: Inventory, number: int | None = None) -> tuple[Inventory, Record, tuple[Finding, ...]]:
    """Return the inventory with the versions of an earlier run, that run, and what a reader should know.

    Args:
        inventory: As it is now, read from a file: all but versions is as it says.
        number: Of the run; None for the newest that succeeded with another inventory than the last run's.

    Raises:
        UsageError: There is no such run.
        RunFailedError: Its inventory is not on record, or names a version that neither the release catalogue nor the
            inventory has; or the inventory was made in Python.
        InvalidInventoryError: The record cannot be read, or its versions do not fit the inventory.
        UnreachableError, ForbiddenError: The cluster cannot be asked.
    """
    from gpu_provision.history import rollback as records

    found = history(inventory)
    record = records.default_target(found, inventory) if number is None else records.find_run(found, number)
    then, findings = records.restore_inventory(record, inventory)
    return then, record, findings


def rbac(  # noqa: PLR0913 - the options of the command
    inventory: Inventory,
    subjects: Sequence[RbacSubject] = (),
    *,
    read_only: bool = False,
    destroy: bool = False,
    adopt: bool = False,
    operator: bool = False,
) -> list[Manifest]:
    """Return the roles that an account needs for this inventory, and their bindings; no cluster is asked.

    Args:
        subjects: Who gets them; without any, there are roles and no bindings.
        read_only: What ``status`` and ``plan`` need, instead of what ``apply`` needs.
        destroy: What ``destroy`` needs.
        adopt: What ``adopt`` needs, which is all that ``apply`` needs, and more.
        operator: What ``apply`` needs where a controller looks after the stack.
    """
    from gpu_provision.rbac import permissions

    if operator and not (adopt or destroy):
        from gpu_provision.operator.manifests import editor_permissions

        kind, wanted = "-editor", editor_permissions(inventory)
    elif adopt:
        kind, wanted = "-adopter", permissions.for_adopt(inventory)
    elif destroy:
        kind, wanted = "-remover", permissions.for_destroy(inventory)
    elif read_only:
        kind, wanted = "-reader", permissions.for_view(inventory)
    else:
        kind, wanted = "", permissions.for_apply(inventory)
    return roles(f"gpu-provision-{inventory.name}{kind}", wanted, subjects)


def unlock(
    inventory: Inventory,
    *,
    force: bool = False,
    agreed: Callable[[LockHolder], bool] | None = None,
    say: Callable[[str], None] | None = None,
) -> tuple[LockHolder | None, bool]:
    """Release the lock of a dead run.

    Args:
        inventory: From `load`.
        force: Also break the lock of a run that lives; that run ends.
        agreed: Called with the lock before it is released; False leaves it.
        say: Called with what the function waits for: only time tells whether a run on another machine lives.

    Returns:
        The lock as it was, None if it was free; and whether it was released.

    Raises:
        LockedError: The run that holds it lives, or is a controller's, which would take it again.
        UnreachableError, ForbiddenError: The cluster cannot be asked.
    """
    from gpu_provision.kube.lock import unlock
    from gpu_provision.operator import remote_run
    from gpu_provision.reconcile.session import Session

    cluster = Session(inventory).cluster

    def asked(lock: LockHolder) -> bool:
        remote_run.refuse_controllers_lock(cluster, inventory, lock)
        return agreed is None or agreed(lock)

    held, version = unlock(cluster, inventory, force=force, agreed=asked, on_wait=say or ignore)
    return held, bool(version)


def plan(  # noqa: PLR0913 - the options of the command
    inventory: Inventory,
    *,
    hosts_only: bool = False,
    cluster_only: bool = False,
    limit: str | Iterable[str] | None = None,
    targets: str | Iterable[str] | None = None,
    ignored: str | Iterable[str] = (),
    take_over: bool = False,
    offline: bool = False,
    listen: Callable[[Event], None] | None = None,
) -> StackPlan:
    """Return what `apply` would change on hosts and in the cluster; nothing is changed.

    Args:
        inventory: From `load`.
        hosts_only: Leave the cluster out.
        cluster_only: Leave the hosts out: whether a node has a driver of its own is then read off its labels.
        limit: Only these nodes: names, patterns such as ``gpu-0*``, groups, or ``@FILE``; None for all. In the
            cluster: their labels, drivers and validations; objects that serve all nodes are as declared.
        targets: Only these components, and what they require; None for all.
        ignored: Codes of findings of preflight that become warnings, such as ``GP620``.
        take_over: Where a controller looks after the stack: take over fields of its resource that others have set.
        offline: Plan for an empty cluster; neither hosts nor a cluster are asked.
        listen: Called with each `Event`, from this thread.

    Raises:
        UsageError: An argument names no node, component or finding.
        RunFailedError: Hosts cannot be read at all. A host that fails does not raise: see `StackPlan.can_be_applied`.
        UnreachableError, ForbiddenError: The cluster cannot be asked.
    """
    work = apply_job(
        inventory,
        hosts_only=hosts_only,
        cluster_only=cluster_only,
        limit=limit,
        ignored=ignored,
        targets=targets,
        take_over=take_over,
        command="plan",
    )
    return work.plan(listen or ignore, offline=offline)


def apply(  # noqa: PLR0913 - the options of the command
    inventory: Inventory,
    *,
    hosts_only: bool = False,
    cluster_only: bool = False,
    limit: str | Iterable[str] | None = None,
    targets: str | Iterable[str] | None = None,
    ignored: str | Iterable[str] = (),
    timeout: int | None = None,
    lock_timeout: int = 0,
    take_over: bool = False,
    planned: Callable[[Plan], None] | None = None,
    listen: Callable[[Event], None] | None = None,
) -> StackRun:
    """Make hosts and cluster as declared, and wait until the GPUs are validated.

    It does what ``gpu-provision apply --yes`` does: hosts first, and the cluster if no host failed. What is as declared
    already costs no write. It may be called from any thread, in a notebook, and from a script without a ``__main__``
    guard: pyinfra runs in a process of its own, which does not import the caller's program. It sets no signal handler:
    on Ctrl-C the main thread gets KeyboardInterrupt, the run ends its step and releases the lock, and the exception's
    notes name what was done on hosts. In another thread a run goes on to its end. In asyncio: ``asyncio.to_thread``.

    Further arguments are those of `plan`.

    Args:
        timeout: Seconds that a node may take for each component, instead of the inventory's figures.
        lock_timeout: Seconds to wait while another run writes.
        planned: Called with what is going to be changed in the cluster, before anything is; it may raise to stop that.
        listen: Called with each `Event`, one at a time: from this thread for hosts, from another for the cluster.

    Returns:
        What was changed, and the evidence. It has succeeded.

    Raises:
        RunFailedError: A host or the cluster is not as declared; ``findings`` name cause and remedy, ``result`` is
            the StackRun.
        UsageError: As for `plan`.
        LockedError: Another run writes.
        ForbiddenError: Permissions are missing; nothing was written in the cluster.
        UnreachableError, InvalidError: As the API server answers.
    """
    work = apply_job(
        inventory,
        hosts_only=hosts_only,
        cluster_only=cluster_only,
        limit=limit,
        ignored=ignored,
        timeout=timeout,
        targets=targets,
        take_over=take_over,
        lock_timeout=lock_timeout,
    )
    return raise_on_failure(work.carry_out(listen or ignore, planned=planned or ignore))


def rollback(  # noqa: PLR0913 - the options of the command
    inventory: Inventory,
    number: int | None = None,
    *,
    hosts_only: bool = False,
    cluster_only: bool = False,
    limit: str | Iterable[str] | None = None,
    ignored: str | Iterable[str] = (),
    timeout: int | None = None,
    lock_timeout: int = 0,
    take_over: bool = False,
    planned: Callable[[Plan], None] | None = None,
    listen: Callable[[Event], None] | None = None,
) -> StackRun:
    """Apply the inventory with the versions of an earlier run; all other settings stay as they are.

    The file of the inventory is not changed. Arguments, result and errors are those of `apply` and `going_back`.

    Args:
        number: Of the run, as `history` has it; None for the newest that succeeded with another inventory.
    """
    then, record, known = going_back(inventory, number)
    work = apply_job(
        then,
        hosts_only=hosts_only,
        cluster_only=cluster_only,
        limit=limit,
        ignored=ignored,
        timeout=timeout,
        take_over=take_over,
        lock_timeout=lock_timeout,
        back_to=record.number,
        known=known,
        command="rollback",
    )
    return raise_on_failure(work.carry_out(listen or ignore, planned=planned or ignore))


def destroy(  # noqa: PLR0913 - the options of the command
    inventory: Inventory,
    *,
    hosts_only: bool = False,
    cluster_only: bool = False,
    limit: str | Iterable[str] | None = None,
    crds: bool = False,
    evict: bool = False,
    timeout: int = 300,
    lock_timeout: int = 0,
    dry_run: bool = False,
    listen: Callable[[Event], None] | None = None,
) -> StackRemoval:
    """Take the stack off the cluster and its hosts, and look for what is left; what is not there costs no write.

    The cluster comes first, and hosts follow when nothing there needs them: their files are as they were before.
    Threads and signals: as for `apply`. Further arguments are those of `plan`.

    Args:
        limit: Only these hosts, as for `plan`; the cluster is left alone then. None for all.
        crds: Remove CustomResourceDefinitions, too, unless others have objects of them.
        evict: Evict pods that use GPUs, as their budgets allow; without it they forbid the removal.
        timeout: Seconds that each stage may take.
        lock_timeout: As for `apply`.
        dry_run: Return what would be done, and why it would be refused; nothing is changed.
        listen: As for `apply`.

    Raises:
        RunFailedError: Pods use GPUs and nothing was removed, or something is left; ``result`` is the StackRemoval.
        UsageError: ``limit`` names no node.
        LockedError: Another run writes.
        ForbiddenError: Permissions are missing; nothing was written.
        UnreachableError: The API server does not answer.
    """
    removal = destroy_job(
        inventory,
        hosts_only=hosts_only,
        cluster_only=cluster_only,
        limit=limit,
        crds=crds,
        evict=evict,
        timeout=timeout,
        lock_timeout=lock_timeout,
    )
    return removal.look(listen or ignore) if dry_run else raise_on_failure(removal.carry_out(listen or ignore))


def revalidate(
    inventory: Inventory, *, lock_timeout: int = 0, listen: Callable[[Event], None] | None = None
) -> StackRun:
    """Run every vectorAdd again, also those that have passed; nothing else is changed.

    Args:
        lock_timeout: As for `apply`.
        listen: As for `apply`.

    Raises:
        RunFailedError: A validation fails, or the cluster is not as declared, and nothing was run.
        LockedError, ForbiddenError, UnreachableError, InvalidError: As for `apply`.
    """
    from gpu_provision.components import startup_taint  # the end of a taint follows from a validation that passes

    work = ApplyJob(inventory=inventory, hosts=False, revalidate=True, command="validate", lock_timeout=lock_timeout)
    found = work.plan(ignore)
    if errors := [finding for finding in found.findings if finding.severity is Severity.ERROR]:
        raise RunFailedError(*errors)
    changing = {Action.CREATE, Action.UPDATE, Action.DELETE}
    if pending := sum(each.action in changing and each.component != startup_taint.NAME for each in found.changes):
        finding = Finding(
            code=codes.NOT_AS_DECLARED,
            where=inventory.path,
            what=f"the cluster is not as declared: {pending} changes are pending",
            fix=f"gpu-provision plan -i {inventory.path}, then gpu-provision apply",
        )
        raise RunFailedError(finding)
    return raise_on_failure(work.carry_out(listen or ignore))
