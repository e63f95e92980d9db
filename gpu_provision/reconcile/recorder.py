"""The record of a run, kept while it goes, in the cluster and in the local folder; also of hosts alone."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from types import TracebackType
from typing import Self

from gpu_provision.inventory.hiding import hidden
from gpu_provision.inventory.redaction import without_users
from gpu_provision.kube import codes, run_records
from gpu_provision.kube.client import Cluster, connect
from gpu_provision.kube.fence import identity
from gpu_provision.kube.locate import located
from gpu_provision.kube.lock import WriteLock
from gpu_provision.model.cluster import ObjectRef, ref_of
from gpu_provision.model.findings import Finding, ProvisionError, Refused, Rejected, Severity, Unreachable
from gpu_provision.model.history import OF_RESOURCE, Ending, History, Record
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import Plan
from gpu_provision.model.progress import NodeState, RunResult, State
from gpu_provision.planning.history import encode, expired, fit_to_size, history_of, plan_digest, unfinished
from gpu_provision.reconcile import local_records
from gpu_provision.reconcile.plan import ClusterPlan

_MADE_IN_PYTHON = "its inventory was made in Python, not read from a file"
_LONGEST = 300  # characters of a reason; the local record has all of them
_PART_OF_TIME = 0.01  # that a run spends on writing down how far it has come

KEEP_SECONDS = 5.0
"""How old the local record of a run that goes on may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a run is about.

    Attributes:
        plan: What it changes in the cluster.
        is_first: Whether the stack probably has no record yet.
        back_to: Number of the run whose inventory this is; 0 if it is no rollback.
        only: As in Record.
    """

    inventory: Inventory
    plan: Plan
    is_first: bool = False
    back_to: int = 0
    only: str = ""


def task_of(reading: ClusterPlan, *, back_to: int = 0) -> Task:
    """Return the task that a reading of the cluster makes."""
    is_first = ref_of(reading.desired["prerequisites"][-1]) not in reading.observed.members
    return Task(inventory=reading.context.inventory, plan=reading.plan, is_first=is_first, back_to=back_to)


def new_record(task: Task) -> Record:
    """Return the record of a run that begins now."""
    inventory, now = task.inventory, datetime.now(UTC)
    return Record(
        id=f"{now:%Y%m%dT%H%M%S.%fZ}-{secrets.token_hex(3)}",
        began=_told(now),
        holder=identity(),
        tool=version("gpu-provision"),
        inventory=inventory.name,
        release=inventory.release,
        plan=plan_digest(task.plan),
        back_to=task.back_to,
        only=task.only,
        source=OF_RESOURCE if inventory.is_of_resource else "",
        text=hidden(inventory.text) if inventory.text else "",
        lacks="" if inventory.text else _MADE_IN_PYTHON,
    )


def _told(now: datetime) -> str:
    return f"{now:%Y-%m-%dT%H:%M:%SZ}"


def ended(record: Record, ending: Ending, *, changed: int = 0, reason: str = "") -> Record:
    """Return the record of a run that ends now."""
    reason, now = without_users(reason)[:_LONGEST], _told(datetime.now(UTC))
    return replace(record, ending=ending, changed=changed, reason=reason, ended=now)


class Book:
    """Keeps the record of one run from its begin to its end; a context manager.

    A record that cannot be written fails no run.

    Attributes:
        record: As it stands.
        earlier: The runs before it.
        problem: Why it is not all in the cluster; None if it is.
    """

    def __init__(
        self, cluster: Cluster, task: Task, *, say: Callable[[str], None], reached: Callable[[], RunResult]
    ) -> None:
        """Prepare; nothing is written.

        Args:
            say: Told of runs before this one that never ended.
            reached: Asked now and then how far the run has come.
        """
        self._plan, self._reached = task.plan, reached
        self._cluster, self._inventory, self._say = cluster, task.inventory, say
        self._is_first = task.is_first
        self._kept_until = 0.0
        self.earlier = History(())
        self.record = new_record(task)
        self.problem: Finding | None = None

    def __enter__(self) -> Self:
        """Write down that the run has begun. Raises Unreachable."""
        found = history_of(self._write((self.record,), is_first=self._is_first), holder="")  # nobody else has the lock
        number = next((each.number for each in found.records if each.id == self.record.id), 0)
        self.record = replace(self.record, number=number)
        self.earlier = replace(found, records=tuple(each for each in found.records if each.id != self.record.id))
        self.keep(time.monotonic())
        for each in unfinished(self.earlier):
            self._say(f"run {each.number} of {each.who}, begun {each.began}, never ended; this one goes on from there")
        if gone := expired(self.earlier, self._inventory.kept_runs + 1):  # several were killed in a row
            self._write((*unfinished(self.earlier), self.record), gone)
        return self

    def keep(self, now: float) -> None:
        """Write down locally how far the run has come, if it is time: a large fleet's record is long."""
        if now < self._kept_until:
            return
        local_records.write(self.record, lambda: local_records.details_of(self._plan, self._reached(), ()))
        took = time.monotonic() - now
        self._kept_until = now + max(KEEP_SECONDS, took / _PART_OF_TIME)

    def end(self, ending: Ending, *, changed: int = 0, reason: str = "") -> None:
        """Say how the run ended; it is written on leaving."""
        self.record = ended(self.record, ending, changed=changed, reason=reason)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write down how the run ended, and let go of what is too old."""
        if isinstance(error, ProvisionError):
            self.end(Ending.FAILED, changed=self._reached().changed, reason=str(error.findings[0].what))
        elif error is not None:
            self.end(Ending.INTERRUPTED, changed=self._reached().changed)
        if isinstance(error, Unreachable) or (error is not None and not isinstance(error, Exception)):
            self._cluster.retry_seconds = 0.0  # the server was waited for already, or a person ends the run
        findings = error.findings if isinstance(error, ProvisionError) else ()
        local_records.write(self.record, lambda: local_records.details_of(self._plan, self._reached(), findings))
        all_of_them = History((*self.earlier.records, self.record), self.earlier.damaged)
        gone = expired(all_of_them, self._inventory.kept_runs)
        try:
            self._write((*unfinished(self.earlier), self.record), gone)
        except ProvisionError as failure:  # the lock may be gone as well
            self.problem = unrecorded(failure)

    def _write(
        self, records: Iterable[Record], gone: Iterable[str] = (), *, is_first: bool = False
    ) -> Mapping[str, str]:
        texts = {each.id: encode(fit_to_size(each, self._inventory.kept_runs)) for each in records}
        changes = {**texts, **dict.fromkeys(gone)}
        try:
            return run_records.write(self._cluster, self._inventory, changes, is_first=is_first)
        except (Rejected, Refused) as refused:
            self.problem = unrecorded(refused)
            return {}


def unrecorded(error: ProvisionError) -> Finding:
    """Return the warning that a run is not on record, and why."""
    first = error.findings[0]
    return Finding(
        code=codes.UNRECORDED,
        what="this run is not, or not completely, on record in the cluster; the local record has all of it",
        where=first.where,
        evidence=first.evidence or first.what,
        consequence="gpu-provision history tells it as interrupted, or not at all",
        fix=first.fix,
        severity=Severity.WARNING,
    )


def reason_of(states: Iterable[NodeState]) -> str:
    """Return the first cause of a failure, and how many there are: empty if everything is ready."""
    found = tuple(states)
    failed = [state for state in found if state.state is State.FAILED]
    failed = failed or [state for state in found if state.state is State.BLOCKED]  # a rollout that may not begin
    if not failed:
        return ""
    first = failed[0]
    where = f"{first.component} on {first.node}" if first.node else first.component
    more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
    return f"{where}: {first.reason}{more}"


HOSTS = "hosts"
"""As Record.only: what a run with --hosts-only looked after."""


def put_on_record(
    cluster: Cluster, reading: ClusterPlan, hosts: int, *, back_to: int = 0
) -> tuple[int, tuple[Finding, ...]]:
    """Write down that hosts were changed where the cluster was as declared: there is a way back from it.

    Return the number of the run, and what kept it from being on record.
    """
    task = task_of(reading, back_to=back_to)
    reason = f"{_changed(hosts)}, and nothing else"
    return _written(cluster, task, Ending.SUCCEEDED, reason, planned_at=reading.observed.lock_version)


def put_alone_on_record(
    inventory: Inventory, hosts: int, *, failure: str = "", back_to: int = 0
) -> tuple[int, tuple[Finding, ...]]:
    """Write down that hosts were changed, and the cluster left alone: on this machine, and where the stack is.

    A cluster that is not there, or has nothing of the stack, is no problem: hosts may come first. Return the number of
    the run, 0 if it is on record here alone, and what kept it from being on record in a cluster with the stack.

    Args:
        hosts: How many were changed.
        failure: Why a host is not as declared; empty if all are.
    """
    plan = Plan(inventory=inventory.name, release=inventory.release, cluster="not asked", components=(), changes=())
    task = Task(inventory=inventory, plan=plan, back_to=back_to, only=HOSTS)
    reason = "; ".join(filter(None, (f"{_changed(hosts)}, and left the cluster alone", failure)))
    ending = Ending.FAILED if failure else Ending.SUCCEEDED
    if (cluster := _cluster_with_the_stack(inventory)) is not None:
        return _written(cluster, task, ending, reason)
    local_records.write(ended(new_record(task), ending, reason=reason))
    return 0, ()


def _cluster_with_the_stack(inventory: Inventory) -> Cluster | None:
    """Return the cluster if it answers, and has the namespace in which records are kept."""
    try:
        if (place := located(inventory)) is None:
            return None
        cluster = connect(*place)
        home = cluster.get(ObjectRef("v1", "Namespace", "", inventory.cluster.namespace))
    except ProvisionError:
        return None
    return cluster if home and not home["metadata"].get("deletionTimestamp") else None


def _written(
    cluster: Cluster, task: Task, ending: Ending, reason: str, *, planned_at: str | None = None
) -> tuple[int, tuple[Finding, ...]]:
    book = Book(cluster, task, say=_nobody, reached=RunResult)
    lock = WriteLock(cluster, task.inventory, on_wait=_nobody, planned_at=planned_at)
    try:
        with lock, book:
            book.end(ending, reason=reason)
    except ProvisionError as error:
        local_records.write(ended(book.record, ending, reason=reason))
        return book.record.number, (unrecorded(error),)
    return book.record.number, tuple(filter(None, [book.problem]))


def _nobody(_message: str) -> None:
    """Nobody waits for this; it is over in a moment, or did not happen."""


def _changed(hosts: int) -> str:
    return f"changed {hosts} host{'' if hosts == 1 else 's'}"
