"""A run that changed hosts and found the cluster as declared: on record as well, for there is a way back from it."""

from __future__ import annotations

from gpu_provision.cluster.client import Cluster
from gpu_provision.cluster.lock import WriteLock
from gpu_provision.engine.book import Book, unrecorded
from gpu_provision.engine.reading import Reading
from gpu_provision.model.findings import Finding, ProvisionError
from gpu_provision.model.history import Ending
from gpu_provision.model.progress import RunResult


def put_on_record(
    cluster: Cluster, reading: Reading, hosts: int, *, back_to: int = 0
) -> tuple[int, tuple[Finding, ...]]:
    """Write down that hosts were changed; return the number of the run, and what kept it from being on record."""
    book = Book(cluster, reading, back_to=back_to, say=_nobody, reached=RunResult)
    lock = WriteLock(cluster, reading.context.inventory, on_wait=_nobody, planned_at=reading.observed.lock_version)
    try:
        with lock, book:
            book.end(Ending.SUCCEEDED, reason=f"changed {hosts} host{'' if hosts == 1 else 's'}, and nothing else")
    except ProvisionError as error:
        return book.record.number, (unrecorded(error),)
    return book.record.number, tuple(filter(None, [book.problem]))


def _nobody(_message: str) -> None:
    """Nobody waits for this; it is over in a moment, or did not happen."""
