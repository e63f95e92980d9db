"""What would go wrong when the operator is installed, found before anything is written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpu_provision.cluster.client import Cluster
from gpu_provision.cluster.errors import FieldConflict
from gpu_provision.model.cluster import Manifest, ref_of
from gpu_provision.model.findings import Finding, Rejected, RunFailed, Severity
from gpu_provision.operator import codes
from gpu_provision.operator.definition import definition
from gpu_provision.operator.stack import STACK, inventory_of
from gpu_provision.operator.structural import RULES_KEY

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


def acceptable(cluster: Cluster, wanted: Manifest, manager: str) -> tuple[Manifest, tuple[Finding, ...]]:
    """Return the definition as the API server takes it, and a warning if that is without its rules.

    Raises:
        Rejected: Something else of it is refused.
    """
    plain = definition()
    if wanted == plain:
        return wanted, ()
    try:
        cluster.apply(wanted, dry_run=True, take_back=True, manager=manager)
    except Rejected as refusal:
        why = refusal.findings[0].evidence
        if RULES_KEY not in why:
            raise
        return plain, (_without_rules(wanted, why),)
    return wanted, ()


def _without_rules(wanted: Manifest, why: str) -> Finding:
    return Finding(
        code=codes.RULES_REFUSED,
        where=str(ref_of(wanted)),
        what="installed without rules in CEL, which this API server refuses; "
        "what is wrong with a stack is not told by kubectl apply, but in the stack's status",
        evidence=why,
        fix="nothing has to be done; in a repository that GitOps applies, have it so as well: "
        "gpu-provision operator render --kubernetes 1.28. Please report it with the version of the cluster",
        severity=Severity.WARNING,
    )
