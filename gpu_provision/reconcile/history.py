"""Earlier runs, their versions to go back to, and what a fleet goes back to after a failed rollout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpu_provision.inventory.again import again
from gpu_provision.inventory.document import SourceError
from gpu_provision.inventory.hiding import hidden
from gpu_provision.inventory.sameness import declare_the_same
from gpu_provision.kube import records
from gpu_provision.kube.client import Cluster
from gpu_provision.model import codes
from gpu_provision.model.findings import Finding, InvalidInventory, RunFailed, Severity, UsageError
from gpu_provision.model.history import History, Record
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.rollout_policy import OnFailure
from gpu_provision.planning.diff import diff_manifests
from gpu_provision.planning.prepare import prepare
from gpu_provision.planning.upgrades import DRIVER
from gpu_provision.reconcile import local_records
from gpu_provision.reconcile.plan import ClusterPlan

_MOST_NAMED = 8  # settings in one line


def read(cluster: Cluster, inventory: Inventory) -> History:
    """Return the stack's runs, with inventories that only the local folder has. Raises Unreachable, Refused."""
    found = records.read_history(cluster, inventory)
    return History(tuple(local_records.completed(record, inventory.name) for record in found.records), found.damaged)


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
    """Return the inventory of now with the versions of an earlier run, and what a reader should know of it.

    Args:
        record: Of an earlier run.
        now: The inventory as it is now.

    Raises:
        RunFailed: The inventory of either is not there, or a version on record is not known.
        InvalidInventory: The record cannot be read, or its versions do not fit the inventory of now.
    """
    name, text = f"run {record.number}", text_of(record)
    if not now.text:
        raise RunFailed(_made_in_python(name))
    try:
        found = again(text, now, name=name, release=record.release, of_cluster=record.is_of_resource)
    except SourceError as error:
        what = "the inventory of this run is not valid for this version of the tool"
        raise InvalidInventory(error.finding, _not_usable(record, what)) from error
    if found.unknown:
        raise RunFailed(_unknown(record, found.unknown, now))
    if found.inventory is None:
        what = "the inventory as it is now is not valid with the versions of this run"
        raise InvalidInventory(*found.findings, _not_usable(record, what))
    return found.inventory, (_kept(name, found.kept),) if found.kept else ()


def _not_usable(record: Record, what: str) -> Finding:
    return Finding(
        code=codes.NOT_UNDERSTOOD,
        where=f"run {record.number}",
        what=what,
        evidence=f"it was applied by gpu-provision {record.tool or 'of an unknown version'}",
        fix=f"gpu-provision history show {record.number} --text > FILE, correct that, and apply it",
    )


def _made_in_python(name: str) -> Finding:
    return Finding(
        code=codes.NOT_ON_RECORD,
        where=name,
        what="a rollback changes versions in the text of the present inventory, which was made in Python and has none",
        fix="set the versions in the program and apply; or load() the inventory from a file",
    )


def _unknown(record: Record, versions: Mapping[str, str], now: Inventory) -> Finding:
    return Finding(
        code=codes.UNKNOWN_VERSION,
        where=f"run {record.number} {', '.join(versions)}",
        what="neither the release catalogue nor the inventory as it is now names this version, so it may be planted",
        evidence="; ".join(f"{path}: {value}" for path, value in versions.items()),
        consequence="nothing of this run is brought back",
        fix=f"if the version is right, write it into {now.path or 'the resource'} and apply that",
    )


def _kept(name: str, paths: Sequence[str]) -> Finding:
    more = f" and {len(paths) - _MOST_NAMED} more" if len(paths) > _MOST_NAMED else ""
    return Finding(
        code=codes.KEPT_AS_NOW,
        where=name,
        what="a rollback brings back versions only; these settings differ from that run and stay as they are now",
        evidence=f"{', '.join(paths[:_MOST_NAMED])}{more}",
        fix=f"gpu-provision diff {name.removeprefix('run ')} shows them; to have one back, write it and apply",
        severity=Severity.WARNING,
    )


@dataclass(frozen=True, slots=True)
class WayBack:
    """An earlier run, and the inventory of now with its versions."""

    record: Record
    inventory: Inventory

    @property
    def name(self) -> str:
        """What a snapshot calls it."""
        return f"run {self.record.number}"


@dataclass(frozen=True, slots=True)
class InForce:
    """What a stack has gone back to.

    Attributes:
        run: Number of the run that had its versions first.
    """

    run: int
    inventory: Inventory


def in_force(cluster: Cluster, inventory: Inventory) -> InForce | None:
    """Return the inventory of now with the versions that the last rollback of a stack brought back; None without one.

    Raises:
        RunFailed, InvalidInventory: As of `inventory_of`.
        Unreachable, Refused: The cluster cannot be asked.
    """
    back = (each for each in reversed(read(cluster, inventory).records) if each.back_to and not each.only)
    record = next(back, None)
    return InForce(record.back_to, inventory_of(record, inventory)[0]) if record else None


def way_back(reading: ClusterPlan, earlier: History, own: Record) -> tuple[WayBack | None, tuple[Finding, ...]]:
    """Return the newest run that succeeded with another inventory, if its versions mean other drivers.

    None if the policy does not ask for it, or if this is a rollback: one that fails is not rolled back in its turn.
    None as well if the run's versions cannot be used, or bring back the same drivers; then the findings say why. No
    older run is used in its place, as that would undo more than what failed.
    """
    inventory = reading.context.inventory
    if inventory.rollout.on_failure is not OnFailure.ROLLBACK or own.back_to:
        return None, ()
    record = before(earlier, own, inventory)
    if record is None:
        return None, ()
    try:
        then, kept = inventory_of(record, inventory)
    except (RunFailed, InvalidInventory) as error:
        return None, error.findings
    _, desired = prepare(then, reading.context.facts)
    old, new = ({DRIVER: each.get(DRIVER, ())} for each in (desired, reading.desired))
    return (WayBack(record, then), ()) if diff_manifests(old, new) else (None, kept)
