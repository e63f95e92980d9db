"""What would go wrong when the operator is installed, told before anything is written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpu_provision.cluster.client import Cluster
from gpu_provision.cluster.errors import FieldConflict
from gpu_provision.model.cluster import Manifest, ref_of
from gpu_provision.model.findings import Finding, RunFailed
from gpu_provision.operator import codes
from gpu_provision.operator.stack import STACK, inventory_of

_UNKNOWN_KEY = "GP120"
_HOW_TO_TAKE_OVER = (
    "bring what is applied there to this version (gpu-provision operator render); "
    "or gpu-provision operator install --take-over, if nobody else is to apply it any more"
)


def refuse_losses(cluster: Cluster) -> None:
    """Raise RunFailed if stacks have keys that this version does not know: the API server would drop them unasked."""
    if found := [*_losses(cluster.list(STACK).items)]:
        raise RunFailed(*found)


def _losses(stacks: Iterable[Manifest]) -> Iterator[Finding]:
    for stack in stacks:
        name = stack["metadata"]["name"]
        unknown = (finding for finding in inventory_of(stack)[1] if finding.code == _UNKNOWN_KEY)
        for finding in unknown:
            yield Finding(
                code=codes.UNKNOWN_KEYS,
                where=finding.where,
                what="this version of gpu-provision has no such key; once installed, what is declared there is dropped",
                evidence=finding.what,
                fix=f"kubectl edit gpustack {name} takes it out, then install again. {finding.fix}",
            )


def refuse_conflicts(cluster: Cluster, wanted: Iterable[Manifest], manager: str) -> None:
    """Raise RunFailed if somebody else has set fields otherwise; equal ones are nobody's alone.

    Args:
        manager: Field manager that would apply what is wanted.
    """
    if found := [*_conflicts(cluster, wanted, manager)]:
        raise RunFailed(*found)


def _conflicts(cluster: Cluster, wanted: Iterable[Manifest], manager: str) -> Iterator[Finding]:
    for item in wanted:
        ref = ref_of(item)
        if not cluster.get(ref):
            continue
        try:
            cluster.apply(item, dry_run=True, manager=manager)
        except FieldConflict as conflict:
            yield Finding(
                code=codes.OTHERS_FIELDS,
                where=str(ref),
                what=f"applied by {', '.join(sorted(conflict.managers))}, otherwise than it is to be installed",
                evidence=conflict.findings[0].what.partition(": ")[2],
                fix=_HOW_TO_TAKE_OVER,
            )
