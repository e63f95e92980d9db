"""Whether a difference may come from the tool: another version of it may make other objects of the same inventory."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from gpu_provision.kube import records
from gpu_provision.kube.client import Cluster
from gpu_provision.model import codes
from gpu_provision.model.findings import Finding, Refused, Severity
from gpu_provision.model.inventory import Inventory
from gpu_provision.reconcile.plan import ClusterPlan

if TYPE_CHECKING:
    from gpu_provision.model.history import Record


def told(cluster: Cluster, reading: ClusterPlan) -> tuple[Finding, ...]:
    """Return the warning that the last run was of another version of the tool, where something differs.

    Asks for the records only if something differs from what is applied. Raises Unreachable.
    """
    if reading.plan.is_empty or not reading.observed.members:
        return ()

    inventory = reading.context.inventory
    try:
        last = records.read_history(cluster, inventory).last
    except Refused:
        return ()
    ours = version("gpu-provision")
    return () if last is None or last.tool in {"", ours} else (_finding(last, inventory, ours),)


def _finding(last: Record, inventory: Inventory, ours: str) -> Finding:
    from gpu_provision.inventory.hiding import hidden

    alike = bool(last.text) and last.text == hidden(inventory.text)
    cause = (
        "the inventory is the same, so that is why something differs" if alike else "some of this may differ for that"
    )
    return Finding(
        code=codes.OTHER_TOOL,
        what=f"the last run was of gpu-provision {last.tool}, and this is {ours}: {cause}",
        where=f"run {last.number}, {last.began}",
        fix="look at what differs; CHANGELOG.md says what has changed"
        + (", and gpu-provision drift tells whether somebody has changed the cluster" if alike else ""),
        severity=Severity.WARNING,
    )
