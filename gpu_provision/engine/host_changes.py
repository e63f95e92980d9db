"""Runs that changed hosts and nothing in the cluster: on record as well."""

from __future__ import annotations

from gpu_provision.cluster.client import Cluster, connect
from gpu_provision.cluster.locate import located
from gpu_provision.cluster.lock import WriteLock
from gpu_provision.engine import journal
from gpu_provision.engine.book import Book, Task, ended, new_record, task_of, unrecorded
from gpu_provision.engine.reading import Reading
from gpu_provision.model.cluster import ObjectRef
from gpu_provision.model.findings import Finding, ProvisionError
from gpu_provision.model.history import Ending
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import Plan
from gpu_provision.model.progress import RunResult

HOSTS = "hosts"
"""As Record.only: what a run with --hosts-only looked after."""


def put_on_record(
    cluster: Cluster, reading: Reading, hosts: int, *, back_to: int = 0
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
    journal.write(ended(new_record(task), ending, reason=reason))
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
        journal.write(ended(book.record, ending, reason=reason))
        return book.record.number, (unrecorded(error),)
    return book.record.number, tuple(filter(None, [book.problem]))


def _nobody(_message: str) -> None:
    """Nobody waits for this; it is over in a moment, or did not happen."""


def _changed(hosts: int) -> str:
    return f"changed {hosts} host{'' if hosts == 1 else 's'}"
