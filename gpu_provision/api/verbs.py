"""The verbs that change hosts and cluster, the plan of them, and the records of runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_provision.api.jobs import ApplyJob, apply_job, destroy_job, ignore_event
from gpu_provision.api.results import Printable, StackPlan, StackRemoval, StackRun, raise_on_failure
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
class StackHistory(History, Printable):
    """The runs of a stack that wrote something: a sequence, the oldest first; it prints the newest first.

    Attributes:
        inventory: Name of the inventory.
        findings: Warnings about records that cannot be read.
        changes: Changes of each run to the one before, by number: ``driver 595.91.07 -> 580.126.20``.
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
    """Return the recorded runs of the stack that wrote something.

    Raises:
        UnreachableError, ForbiddenError: The cluster cannot be asked.
    """
    from gpu_provision.history import rollback as records
    from gpu_provision.reconcile.session import Session

    runs = records.read_history(Session(inventory).cluster, inventory)
    problems = tuple(
        Finding(
            code=codes.DAMAGED_RECORD,
            where=f"ConfigMap {inventory.cluster.namespace}/{inventory.name}-history {name}",
            what="this record of a run cannot be read, so a rollback to the run is not possible",
            fix="nothing; newer runs replace the record",
            severity=Severity.WARNING,
        )
        for name in runs.damaged
    )
    changes = history_view.changes_by_run(runs.records, inventory)
    return StackHistory.copy_of(runs, inventory=inventory.name, findings=problems, changes=changes)


def prepare_rollback(inventory: Inventory, number: int | None = None) -> tuple[Inventory, Record, tuple[Finding, ...]]:
    """Return the inventory with the versions of an earlier run, that run, and findings.

    Args:
        inventory: The current one, read from a file; it has all settings but versions.
        number: Number of the run; None for the newest that succeeded with another inventory than the last run's.

    Raises:
        UsageError: There is no such run.
        RunFailedError: Its inventory is not on record, or names a version that neither the release catalogue nor the
            inventory has; or the inventory was made in Python.
        InvalidInventoryError: The record cannot be read, or its versions do not fit the inventory.
        UnreachableError, ForbiddenError: The cluster cannot be asked.
    """
    from gpu_provision.history import rollback as records

    runs = history(inventory)
    record = records.default_target(runs, inventory) if number is None else records.find_run(runs, number)
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
    """Return the roles that an account needs for this inventory, and their bindings; makes no API calls.

    The default is roles for ``apply``.

    Args:
        subjects: Accounts to bind; without any, there are roles and no bindings.
        read_only: Roles for ``status``, ``plan`` and other read-only verbs.
        destroy: Roles for ``destroy``.
        adopt: Roles for ``adopt``, which include those for ``apply``.
        operator: Roles for ``apply`` where the operator manages the stack.
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
        force: Also break the lock of a live run; that run aborts.
        agreed: Called with the lock before it is released; False leaves it.
        say: Called with progress messages: the function has to wait for a lease renewal of a run on another machine.

    Returns:
        The lock as it was, None if it was free; and whether it was released.

    Raises:
        LockedError: The holder is a live run, or a controller, which would acquire the lock again.
        UnreachableError, ForbiddenError: The cluster cannot be asked.
    """
    from gpu_provision.kube.lock import unlock
    from gpu_provision.operator import remote_run
    from gpu_provision.reconcile.session import Session

    cluster = Session(inventory).cluster

    def check_lock(lock: LockHolder) -> bool:
        remote_run.refuse_controllers_lock(cluster, inventory, lock)
        return agreed is None or agreed(lock)

    held, version = unlock(cluster, inventory, force=force, agreed=check_lock, on_wait=say or ignore_event)
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
    """Return what `apply` would change on hosts and in the cluster; read-only.

    Args:
        inventory: From `load`.
        hosts_only: Skip the cluster.
        cluster_only: Skip the hosts; node labels then tell whether a node has a host driver.
        limit: Only these nodes: names, patterns such as ``gpu-0*``, groups, or ``@FILE``; None for all.
            Limits hosts, node labels, drivers and validations; cluster-wide objects are always included.
        targets: Only these components and those that they require; None for all.
        ignored: Codes of preflight, such as ``GP620``: errors become warnings, warnings are hidden.
        take_over: Take over GPUStack fields from other field managers, if the operator manages the stack.
        offline: Plan for an empty cluster; connects to neither hosts nor a cluster.
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
    return work.plan(listen or ignore_event, offline=offline)


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
    """Apply the inventory to hosts and cluster, and wait until the GPUs are validated.

    Does the same as ``gpu-provision apply --yes``: hosts first, and the cluster if no host failed. Writes only changes.
    Any thread may call it, a notebook and a script without a ``__main__`` guard: pyinfra runs in its own process, which
    does not import the caller's program. It sets no signal handler. On Ctrl-C the main thread gets KeyboardInterrupt:
    the run ends its step and releases the lock, and the exception's notes list the changes of hosts. A run in another
    thread continues to its end. In asyncio: ``asyncio.to_thread``.

    Further arguments are those of `plan`.

    Args:
        timeout: Seconds for each component on a node, instead of the inventory's timeouts.
        lock_timeout: Seconds to wait for the lock of another run.
        planned: Called with the plan of the cluster, before the first write; an exception stops the run.
        listen: Called with each `Event`, one at a time: from this thread for hosts, from another for the cluster.

    Returns:
        The changes and the evidence of a successful run.

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
    return raise_on_failure(work.execute(listen or ignore_event, planned=planned or ignore_event))


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
    """Apply the inventory with the versions of an earlier run and all other current settings.

    The inventory file stays unchanged. Arguments, result and errors are those of `apply` and `prepare_rollback`.

    Args:
        number: Number of the run in `history`; None for the newest that succeeded with another inventory.
    """
    then, record, known = prepare_rollback(inventory, number)
    work = apply_job(
        then,
        hosts_only=hosts_only,
        cluster_only=cluster_only,
        limit=limit,
        ignored=ignored,
        timeout=timeout,
        take_over=take_over,
        lock_timeout=lock_timeout,
        rollback_to=record.number,
        extra_findings=known,
        command="rollback",
    )
    return raise_on_failure(work.execute(listen or ignore_event, planned=planned or ignore_event))


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
    """Uninstall the stack from the cluster and its hosts, and verify that nothing is left.

    The cluster comes first. Hosts follow when no object needs them: their original files are restored.
    Threads and signals: as for `apply`. Further arguments are those of `plan`.

    Args:
        limit: Only these hosts, as for `plan`; skips the cluster. None for all.
        crds: Also delete CustomResourceDefinitions that no other objects use.
        evict: Evict GPU pods, respecting PodDisruptionBudgets; without it GPU pods block the removal.
        timeout: Timeout of each stage in seconds.
        lock_timeout: As for `apply`.
        dry_run: Only return the changes and the findings that would block them.
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
    return (
        removal.preview(listen or ignore_event)
        if dry_run
        else raise_on_failure(removal.carry_out(listen or ignore_event))
    )


def revalidate(
    inventory: Inventory, *, lock_timeout: int = 0, listen: Callable[[Event], None] | None = None
) -> StackRun:
    """Repeat every vectorAdd validation, also those that have passed; changes nothing else.

    Args:
        lock_timeout: As for `apply`.
        listen: As for `apply`.

    Raises:
        RunFailedError: A validation fails, or the cluster is not as declared, and nothing was run.
        LockedError, ForbiddenError, UnreachableError, InvalidError: As for `apply`.
    """
    from gpu_provision.components import startup_taint  # a validation that passes removes the taint

    work = ApplyJob(inventory=inventory, hosts=False, revalidate=True, command="validate", lock_timeout=lock_timeout)
    plan = work.plan(ignore_event)
    if errors := [finding for finding in plan.findings if finding.severity is Severity.ERROR]:
        raise RunFailedError(*errors)
    changing = {Action.CREATE, Action.UPDATE, Action.DELETE}
    if pending := sum(each.action in changing and each.component != startup_taint.NAME for each in plan.changes):
        finding = Finding(
            code=codes.NOT_AS_DECLARED,
            where=inventory.path,
            what=f"the cluster is not as declared: {pending} changes are pending",
            fix=f"gpu-provision plan -i {inventory.path}, then gpu-provision apply",
        )
        raise RunFailedError(finding)
    return raise_on_failure(work.execute(listen or ignore_event))
