"""The runs of a stack that are on record, and the inventory of one of them."""

from __future__ import annotations

from gpu_provision.cluster.codes import DAMAGED_RECORD
from gpu_provision.library.results import StackHistory
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.history import Record
from gpu_provision.model.inventory import Inventory


def history(inventory: Inventory) -> StackHistory:
    """Return the runs of the stack that wrote something, as they are on record in the cluster.

    Raises:
        Unreachable, Refused: The cluster cannot be asked.
    """
    from gpu_provision.engine import history as records
    from gpu_provision.engine.session import Session

    found = records.read(Session(inventory).cluster, inventory)
    problems = tuple(_damaged(name, inventory) for name in found.damaged)
    return StackHistory.copy_of(found, inventory=inventory.name, findings=problems)


def _damaged(name: str, inventory: Inventory) -> Finding:
    return Finding(
        code=DAMAGED_RECORD,
        where=f"ConfigMap {inventory.cluster.namespace}/{inventory.name}-history {name}",
        what="this record of a run cannot be read, so there is no way back to that run",
        fix="nothing; it goes when it is older than the runs that are kept",
        severity=Severity.WARNING,
    )


def going_back(inventory: Inventory, number: int | None = None) -> tuple[Inventory, Record, tuple[Finding, ...]]:
    """Return the inventory with the versions of an earlier run, that run, and what a reader should know.

    Args:
        inventory: As it is now, read from a file: all but versions is as it says.
        number: Of the run; None for the newest that succeeded with another inventory than the last run's.

    Raises:
        UsageError: There is no such run.
        RunFailed: Its inventory is not on record, or names a version that neither the release catalogue nor the
            inventory has; or the inventory was made in Python.
        InvalidInventory: The record cannot be read, or its versions do not fit the inventory.
        Unreachable, Refused: The cluster cannot be asked.
    """
    from gpu_provision.engine import history as records

    found = history(inventory)
    record = records.before_last(found, inventory) if number is None else records.chosen(found, number)
    then, findings = records.inventory_of(record, inventory)
    return then, record, findings
