"""The runs of a stack that are on record, the roles for working on it, and its lock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_provision.api.cluster_phase import ignore
from gpu_provision.api.results import Shown
from gpu_provision.kube.codes import DAMAGED_RECORD
from gpu_provision.model.cluster import Manifest
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.history import History, Record
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.progress import LockHolder
from gpu_provision.output import history as history_view
from gpu_provision.output.documents import document
from gpu_provision.output.text import PLAIN, Style
from gpu_provision.planning.rbac import Subject, roles


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
    from gpu_provision.reconcile import history as records
    from gpu_provision.reconcile.session import Session

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
    from gpu_provision.reconcile import history as records

    found = history(inventory)
    record = records.before_last(found, inventory) if number is None else records.chosen(found, number)
    then, findings = records.inventory_of(record, inventory)
    return then, record, findings


def rbac(  # noqa: PLR0913 - the options of the command
    inventory: Inventory,
    subjects: Sequence[Subject] = (),
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
    from gpu_provision.reconcile import adopt_discovery, destroy_discovery, permissions

    if adopt:
        return roles(f"gpu-provision-{inventory.name}-adopter", adopt_discovery.everything(inventory), subjects)
    if destroy:
        return roles(f"gpu-provision-{inventory.name}-remover", destroy_discovery.everything(inventory), subjects)
    if operator:
        from gpu_provision.operator.leader_election import HOME
        from gpu_provision.operator.manifests import of_editor

        return roles(f"gpu-provision-{inventory.name}-editor", of_editor(inventory, *HOME), subjects)
    name = f"gpu-provision-{inventory.name}{'-reader' if read_only else ''}"
    wanted = permissions.to_look(inventory) if read_only else permissions.everything(inventory)
    return roles(name, wanted, subjects)


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
        Locked: The run that holds it lives, or is a controller's, which would take it again.
        Unreachable, Refused: The cluster cannot be asked.
    """
    from gpu_provision.kube.lock import free
    from gpu_provision.operator import release
    from gpu_provision.reconcile.session import Session

    cluster = Session(inventory).cluster

    def asked(lock: LockHolder) -> bool:
        release.unless_controllers(cluster, inventory, lock)
        return agreed is None or agreed(lock)

    held, version = free(cluster, inventory, force=force, agreed=asked, on_wait=say or ignore)
    return held, bool(version)
