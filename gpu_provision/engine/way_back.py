"""Which versions a fleet goes back to if a rollout fails and the policy says so: ``rollout.on_failure: rollback``."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_provision.cluster.client import Cluster
from gpu_provision.engine.history import before, inventory_of, read
from gpu_provision.engine.reading import Reading
from gpu_provision.model.findings import Finding, InvalidInventory, RunFailed
from gpu_provision.model.history import History, Record
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.upgrade import OnFailure
from gpu_provision.planning.between import between
from gpu_provision.planning.prepare import prepare
from gpu_provision.planning.upgrades import DRIVER


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


def way_back(reading: Reading, earlier: History, own: Record) -> tuple[WayBack | None, tuple[Finding, ...]]:
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
    return (WayBack(record, then), ()) if between(old, new) else (None, kept)
