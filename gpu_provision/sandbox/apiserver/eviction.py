"""Whether pods may be evicted: PodDisruptionBudgets."""

from __future__ import annotations

from collections.abc import Callable

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.item import Item
from gpu_provision.sandbox.apiserver.objects import at, now
from gpu_provision.sandbox.apiserver.registry import Registry, WriteOptions
from gpu_provision.sandbox.apiserver.selectors import all_satisfied, requirements_of
from gpu_provision.sandbox.apiserver.status import Cause, StatusError, too_many_requests
from gpu_provision.sandbox.apiserver.targets import Target

BUDGETS = "policy/poddisruptionbudgets"
_PROCESSING_SECONDS = 10
_BLOCKED = "Cannot evict pod as it would violate the pod's disruption budget."


def _budgets(registry: Registry, pod: Object) -> list[Item]:
    labels = pod["metadata"].get("labels") or {}
    return [
        item
        for item in registry.store.select(BUDGETS, pod["metadata"]["namespace"])
        if all_satisfied(requirements_of(at(item.object, "spec", "selector")), labels)
    ]


def _ready(pod: Object) -> bool:
    conditions = at(pod, "status", "conditions") or ()
    return any(row.get("type") == "Ready" and row.get("status") == "True" for row in conditions)


def checked_budgets(registry: Registry, pod: Object) -> Callable[[], None]:
    """Refuse (429) an eviction that a budget forbids; return what to call when the eviction is done."""
    phase, dying = at(pod, "status", "phase"), pod["metadata"].get("deletionTimestamp")
    budgets = [] if phase in ("Succeeded", "Failed", "Pending") or dying else _budgets(registry, pod)
    if not budgets:
        return _nothing
    if len(budgets) > 1:
        message = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        raise StatusError(500, "", message)
    budget = budgets[0].object
    if not _ready(pod) and not _needs_all(budget):
        return _nothing
    if (at(budget, "status", "observedGeneration") or 0) < (budget["metadata"].get("generation") or 0):
        why = f"The disruption budget {budget['metadata']['name']} is still being processed by the server."
        raise _refused(why, _PROCESSING_SECONDS)
    if (at(budget, "status", "disruptionsAllowed") or 0) <= 0:
        raise _refused(_needs(budget), 0)
    return lambda: _count(registry, budget, pod["metadata"]["name"])


def _nothing() -> None:
    return None


def _needs_all(budget: Object) -> bool:
    """Say whether an unready pod counts: only while the budget is below what it wants."""
    status = budget.get("status") or {}
    return (status.get("currentHealthy") or 0) < (status.get("desiredHealthy") or 0)


def _needs(budget: Object) -> str:
    status = budget.get("status") or {}
    return (
        f"The disruption budget {budget['metadata']['name']} needs {status.get('desiredHealthy', 0)} healthy pods "
        f"and has {status.get('currentHealthy', 0)} currently"
    )


def _refused(why: str, retry_after: int) -> StatusError:
    return too_many_requests(_BLOCKED, retry_after=retry_after, causes=[Cause("DisruptionBudget", why)])


def _count(registry: Registry, budget: Object, pod: str) -> None:
    """Take one from what the budget allows, so that the next eviction sees it before the controller does."""
    info = registry.catalog.of_storage(BUDGETS)
    if info is None:
        return
    metadata = budget["metadata"]

    def fewer(obj: Object) -> Object:
        status: Object = obj["status"]
        status["disruptionsAllowed"] -= 1
        status["disruptedPods"] = {**(status.get("disruptedPods") or {}), pod: now()}
        return obj

    target = Target(info, metadata["namespace"], metadata["name"], "status")
    registry.change(target, fewer, WriteOptions("kube-apiserver"))
