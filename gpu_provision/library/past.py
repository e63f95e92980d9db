"""The runs of a stack that are on record, and the inventory of one of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpu_provision.cluster.codes import DAMAGED_RECORD
from gpu_provision.library.results import Shown
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.history import History, Record
from gpu_provision.model.inventory import Inventory
from gpu_provision.report import history as history_view
from gpu_provision.report.documents import document
from gpu_provision.report.style import PLAIN, Style


@dataclass(frozen=True, kw_only=True)
class StackHistory(History, Shown):
    """The runs of a stack that wrote something: a sequence, the oldest first; it prints the newest first.

    Attributes:
        inventory: Name of the inventory.
        findings: Warnings about records that cannot be read.
    """

    inventory: str
    findings: tuple[Finding, ...] = ()

    def text(self, style: Style = PLAIN) -> str:
        """Return what ``gpu-provision history`` prints on stdout."""
        return history_view.text(self, style)

    def document(self) -> dict[str, Any]:
        """Return the document of ``gpu-provision history --json``."""
        runs = [history_view.document(record) for record in self.records]
        return document("history", self.findings, inventory=self.inventory, runs=runs)


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
