"""Inventories of earlier runs, to go back to."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_provision.cluster import codes
from gpu_provision.cluster import history as kept
from gpu_provision.cluster.client import Cluster
from gpu_provision.engine import journal
from gpu_provision.inventory.again import Again, again
from gpu_provision.inventory.hiding import hidden
from gpu_provision.inventory.sameness import declare_the_same
from gpu_provision.inventory.source import Unreadable
from gpu_provision.model.findings import Finding, InvalidInventory, RunFailed, Severity, UsageError
from gpu_provision.model.history import History, Record
from gpu_provision.model.inventory import Inventory


def read(cluster: Cluster, inventory: Inventory) -> History:
    """Return the stack's runs, with inventories that only the local folder has. Raises Unreachable, Refused."""
    found = kept.read(cluster, inventory)
    return History(tuple(journal.completed(record, inventory.name) for record in found.records), found.damaged)


def chosen(found: History, number: int) -> Record:
    """Return the run of a number. Raises UsageError."""
    record = found.numbered(number)
    if record is None:
        numbers = ", ".join(str(each.number) for each in found.records) or "none"
        raise UsageError(
            Finding(
                code=codes.NO_SUCH_RUN,
                what=f"there is no run {number} on record",
                evidence=f"on record: {numbers}",
                fix="gpu-provision history lists them",
            )
        )
    return record


def before(found: History, record: Record, now: Inventory) -> Record | None:
    """Return the newest run before one that succeeded with what means something else; None if there is none."""
    return found.before(record, lambda one, other: declare_the_same(one, other, now))


def before_last(found: History, now: Inventory) -> Record:
    """Return the run that a rollback without a number goes back to. Raises UsageError."""
    record = before(found, found.last, now) if found.last else None
    if record is None:
        raise UsageError(
            Finding(
                code=codes.NO_SUCH_RUN,
                what="there is nothing to go back to: no other inventory than that of the last run has succeeded",
                fix="gpu-provision history lists the runs, gpu-provision rollback N goes back to a certain one",
            )
        )
    return record


def text_of(source: Record | Inventory) -> str:
    """Return an inventory's text without secrets: of a run, or of now. Raises RunFailed if it is not there."""
    if isinstance(source, Inventory):
        return hidden(source.text) if source.text else ""
    if source.text:
        return source.text
    raise RunFailed(
        Finding(
            code=codes.NOT_ON_RECORD,
            where=f"run {source.number}",
            what="the inventory of this run is not on record",
            evidence=source.lacks,
            fix="take the inventory from where you keep it, such as git, and apply that",
        )
    )


def inventory_of(record: Record, now: Inventory) -> tuple[Inventory, tuple[Finding, ...]]:
    """Return the inventory of an earlier run on the machines of now, and what a reader should know of it.

    Args:
        record: Of an earlier run.
        now: The inventory as it is now: names the machines and the cluster, and has the secrets.

    Raises:
        RunFailed: The inventory is not on record, or lacks secrets that the inventory of now has not either.
        InvalidInventory: It is not valid for this version of the tool.
    """
    name = f"run {record.number}"
    try:
        found = again(text_of(record), now, name=name, of_cluster=record.is_of_resource)
    except Unreadable as error:
        raise InvalidInventory(error.finding, _not_understood(record)) from error
    if found.missing:
        raise RunFailed(*(_hidden(name, path, now) for path in found.missing))
    if found.inventory is None:
        raise InvalidInventory(*found.findings, _not_understood(record))
    return found.inventory, tuple(_machines(name, found))


def _not_understood(record: Record) -> Finding:
    return Finding(
        code=codes.NOT_UNDERSTOOD,
        where=f"run {record.number}",
        what="the inventory of this run is not valid for this version of the tool",
        evidence=f"it was applied by gpu-provision {record.tool or 'of an unknown version'}",
        fix=f"gpu-provision history show {record.number} --text > FILE, correct that, and apply it",
    )


def _hidden(name: str, path: str, now: Inventory) -> Finding:
    return Finding(
        code=codes.HIDDEN_VALUES,
        where=f"{name} {path}",
        what="this value is a secret, which no record has, and the inventory has none that fits at the same place",
        evidence=now.path,
        fix="write it into the inventory at the same place, and run again",
    )


def _machines(name: str, found: Again) -> Iterator[Finding]:
    told = (
        (found.joined, "joined since; they stay, as the inventory has them now"),
        (found.left, "left since; they stay out"),
    )
    for nodes, what in told:
        if nodes:
            yield Finding(
                code=codes.OTHER_MACHINES,
                where=name,
                what=f"{len(nodes)} node{'' if len(nodes) == 1 else 's'} {what}",
                evidence=", ".join(nodes),
                severity=Severity.WARNING,
            )
