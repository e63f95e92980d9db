"""Earlier runs, what a stack rolls back to, and the warning about another version of the tool."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from typing import NamedTuple

from gpu_provision.history import store
from gpu_provision.history.restore import declares_same, redact, restore
from gpu_provision.inventory.document import SourceError
from gpu_provision.kube.client import KubeClient
from gpu_provision.model import codes
from gpu_provision.model.cluster import RenderContext
from gpu_provision.model.codes import OTHER_TOOL
from gpu_provision.model.findings import (
    Finding,
    ForbiddenError,
    InvalidInventoryError,
    RunFailedError,
    Severity,
    UsageError,
)
from gpu_provision.model.history import History, Record
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.rollout_policy import OnFailure
from gpu_provision.model.text import join_limited
from gpu_provision.planning.diff import diff_manifests
from gpu_provision.planning.prepare import prepare
from gpu_provision.planning.states import Desired
from gpu_provision.planning.upgrades import DRIVER

_MAX_SETTINGS = 8  # in one line


@dataclass(frozen=True, slots=True)
class RollbackTarget:
    """An earlier run, and the present inventory with its versions."""

    record: Record
    inventory: Inventory

    @property
    def name(self) -> str:
        """What a snapshot calls it."""
        return f"run {self.record.number}"


class ActiveInventory(NamedTuple):
    """What a stack was rolled back to, and the number of the run that had its versions first."""

    run: int
    inventory: Inventory


def read_history(cluster: KubeClient, inventory: Inventory) -> History:
    """Return the stack's runs, with inventories of the local folder. Raises UnreachableError, ForbiddenError."""
    found = store.read_records(cluster, inventory)
    return History(tuple(store.complete_from_local(each, inventory.name) for each in found.records), found.damaged)


def find_run(history: History, number: int) -> Record:
    """Return the run of a number. Raises UsageError."""
    if (record := history.find(number)) is not None:
        return record
    what, fix = f"there is no run {number} on record", "gpu-provision history lists them"
    said = f"on record: {', '.join(str(each.number) for each in history.records) or 'none'}"
    raise UsageError(Finding(code=codes.NO_SUCH_RUN, what=what, evidence=said, fix=fix))


def previous_run(history: History, record: Record, now: Inventory) -> Record | None:
    """Return the newest run before one that succeeded and declared something else; None if there is none."""
    return history.find_previous(record, lambda one, other: declares_same(one, other, now))


def default_target(history: History, now: Inventory) -> Record:
    """Return the run that a rollback without a number goes back to. Raises UsageError."""
    if history.last and (record := previous_run(history, history.last, now)):
        return record
    what = "there is no run to roll back to: no other inventory than that of the last run has succeeded"
    fix = "gpu-provision history lists the runs, gpu-provision rollback N rolls back to run N"
    raise UsageError(Finding(code=codes.NO_SUCH_RUN, what=what, fix=fix))


def inventory_text(source: Record | Inventory) -> str:
    """Return the redacted text of a run's inventory, or of the present one. Raises RunFailedError without it."""
    if isinstance(source, Inventory):
        return redact(source.text) if source.text else ""
    if source.text:
        return source.text
    what, where = "the inventory of this run is not on record", f"run {source.number}"
    fix = "take the inventory from where you keep it, such as git, and apply that"
    raise RunFailedError(Finding(code=codes.NOT_ON_RECORD, where=where, what=what, evidence=source.lacks, fix=fix))


def restore_inventory(record: Record, now: Inventory) -> tuple[Inventory, tuple[Finding, ...]]:
    """Return the present inventory with the versions of an earlier run, and warnings about it.

    Raises:
        RunFailedError: The inventory of either is not there, or a version on record is not known.
        InvalidInventoryError: The record cannot be read, or its versions do not fit the present inventory.
    """
    name, text = f"run {record.number}", inventory_text(record)
    if not now.text:
        what = "a rollback changes versions in the text of the current inventory, which was made in Python and has none"
        fix = "set the versions in the program and apply; or load() the inventory from a file"
        raise RunFailedError(Finding(code=codes.NOT_ON_RECORD, where=name, what=what, fix=fix))
    try:
        found = restore(text, now, name=name, release=record.release, of_cluster=record.is_of_resource)
    except SourceError as error:
        what = "the inventory of this run is not valid for this version of the tool"
        raise InvalidInventoryError(error.finding, _unusable_finding(record, what)) from error
    if found.unknown:
        what = "neither the release catalogue nor the inventory as it is now names this version, so it may be planted"
        unknown = Finding(
            code=codes.UNKNOWN_VERSION,
            where=f"{name} {', '.join(found.unknown)}",
            what=what,
            evidence="; ".join(f"{path}: {value}" for path, value in found.unknown.items()),
            consequence="nothing of this run is brought back",
            fix=f"if the version is right, write it into {now.path or 'the resource'} and apply that",
        )
        raise RunFailedError(unknown)
    if found.inventory is None:
        what = "the inventory as it is now is not valid with the versions of this run"
        raise InvalidInventoryError(*found.findings, _unusable_finding(record, what))
    kept = Finding(
        code=codes.OTHER_SETTINGS_STAY,
        where=name,
        what="a rollback restores versions only; these settings differ from that run and stay as they are now",
        evidence=join_limited(found.kept, _MAX_SETTINGS),
        fix=f"gpu-provision diff {record.number} shows them; to have one back, write it and apply",
        severity=Severity.WARNING,
    )
    return found.inventory, (kept,) if found.kept else ()


def _unusable_finding(record: Record, what: str) -> Finding:
    said = f"it was applied by gpu-provision {record.tool or 'of an unknown version'}"
    fix = f"gpu-provision history show {record.number} --text > FILE, correct that, and apply it"
    return Finding(code=codes.NOT_UNDERSTOOD, where=f"run {record.number}", what=what, evidence=said, fix=fix)


def active_inventory(cluster: KubeClient, inventory: Inventory) -> ActiveInventory | None:
    """Return the present inventory with the versions that the last rollback brought back; None without a rollback.

    Raises as `restore_inventory`, UnreachableError, ForbiddenError.
    """
    runs = reversed(read_history(cluster, inventory).records)
    record = next((each for each in runs if each.back_to and not each.only), None)
    return ActiveInventory(record.back_to, restore_inventory(record, inventory)[0]) if record else None


def find_rollback_target(
    context: RenderContext, desired: Desired, earlier: History, own: Record
) -> tuple[RollbackTarget | None, tuple[Finding, ...]]:
    """Return the newest run that succeeded with another inventory, if its versions mean other drivers.

    None without the policy, and after a rollback, which is not rolled back in its turn. None as well if the run's
    versions cannot be used, or bring back the same drivers; then findings say why: an older run would undo more than
    what failed. ``desired`` and ``own`` are what the failed run declared, and its record.
    """
    inventory = context.inventory
    if inventory.rollout.on_failure is not OnFailure.ROLLBACK or own.back_to:
        return None, ()
    record = previous_run(earlier, own, inventory)
    if record is None:
        return None, ()
    try:
        then, kept = restore_inventory(record, inventory)
    except (RunFailedError, InvalidInventoryError) as error:
        return None, error.findings
    old, new = ({DRIVER: each.get(DRIVER, ())} for each in (prepare(then, context.facts)[1], desired))
    return (RollbackTarget(record, then), ()) if diff_manifests(old, new) else (None, kept)


def version_warning(cluster: KubeClient, inventory: Inventory) -> tuple[Finding, ...]:
    """Return the warning that the last run was of another version of the tool, which may make other objects.

    For a plan in which something differs. Raises UnreachableError.
    """
    try:
        last = store.read_records(cluster, inventory).last
    except ForbiddenError:
        return ()
    ours = version("gpu-provision")
    if last is None or last.tool in {"", ours}:
        return ()
    is_same = bool(last.text) and last.text == redact(inventory.text)
    cause, fix = "some of this may differ for that", "look at what differs; CHANGELOG.md says what has changed"
    if is_same:
        cause = "the inventory is the same, so that is why something differs"
        fix += ", and gpu-provision drift shows whether the cluster was changed"
    what, where = f"the last run was of gpu-provision {last.tool}, and this is {ours}: {cause}", f"run {last.number}"
    return (Finding(code=OTHER_TOOL, what=what, where=f"{where}, {last.began}", fix=fix, severity=Severity.WARNING),)
