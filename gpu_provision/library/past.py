"""The runs of a stack that are on record, and going back to the versions of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gpu_provision.library.runs import apply
from gpu_provision.model.findings import Finding
from gpu_provision.model.history import History, Record
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.progress import Event, RunResult

if TYPE_CHECKING:
    from gpu_provision.hosts.result import HostsResult


def history(inventory: Inventory) -> History:
    """Return the runs of the stack that wrote something, as they are on record. Raises Unreachable, Refused."""
    from gpu_provision.engine import history as records
    from gpu_provision.engine.session import Session

    return records.read(Session(inventory).cluster, inventory)


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


def rollback(
    inventory: Inventory,
    number: int | None = None,
    *,
    listen: Callable[[Event], None] = lambda _: None,
    hosts: HostsResult | None = None,
    take_over: bool = False,
) -> RunResult:
    """Apply the inventory with the versions of an earlier run, and prove it. Errors: those of `going_back`, `apply`."""
    then, record, _ = going_back(inventory, number)
    return apply(then, listen=listen, hosts=hosts, back_to=record.number, take_over=take_over)
