"""What evicting the users of GPUs will and may mean, said before anything is removed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from gpu_provision.model.cluster import Manifest
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.removal import codes
from gpu_provision.rollout.pods import named
from gpu_provision.rollout.snapshot import Budget, Pod
from gpu_provision.rollout.workloads import budgets_of, pod_of


def foretold(users: Iterable[Manifest], budgets: Iterable[Manifest]) -> Iterator[Finding]:
    """Yield warnings about pods that nobody starts again, and about budgets that keep pods or let them go one by one.

    Args:
        users: The pods that are to be evicted.
        budgets: PodDisruptionBudgets of all namespaces.
    """
    known = budgets_of(budgets)
    pods = [pod for pod in (pod_of(each, budgets=known) for each in users) if not pod.is_terminating]
    if lost := [pod for pod in pods if not pod.owner]:
        yield _lost(lost)
    for (namespace, budget), covered in sorted(_by_budget(pods).items()):
        if budget.allowed < len(covered):
            yield _held(namespace, budget, covered)


def _by_budget(pods: Iterable[Pod]) -> Mapping[tuple[str, Budget], list[Pod]]:
    found: dict[tuple[str, Budget], list[Pod]] = {}
    for pod in pods:
        for budget in pod.budgets:
            found.setdefault((pod.namespace, budget), []).append(pod)
    return found


def _lost(pods: list[Pod]) -> Finding:
    count = f"{len(pods)} pods that have" if len(pods) > 1 else "a pod that has"
    return Finding(
        code=codes.NOBODY_STARTS_AGAIN,
        what=f"--evict takes away {count} no controller: nobody starts {'them' if len(pods) > 1 else 'it'} again",
        where=f"Pod {named(pods)}",
        consequence="whatever is kept in the pod alone is gone with it",
        fix="let it end first, or keep its manifest: kubectl get pod NAME -o yaml",
        severity=Severity.WARNING,
    )


def _held(namespace: str, budget: Budget, pods: list[Pod]) -> Finding:
    now = "no pod" if budget.allowed < 1 else f"{budget.allowed} of {len(pods)} pods"
    will = "the removal will wait, and end" if budget.allowed < 1 else "the removal may wait, and end"
    return Finding(
        code=codes.BUDGET_HOLDS,
        what=f"the budget lets {now} go right now",
        where=f"PodDisruptionBudget {namespace}/{budget.name}",
        evidence=f"pods that use GPUs: {named(pods)}",
        consequence=f"{will} with drivers in place after --timeout, unless others of its pods become ready elsewhere",
        fix="have more replicas run where no driver is removed, or change what the budget allows",
        severity=Severity.WARNING,
    )
