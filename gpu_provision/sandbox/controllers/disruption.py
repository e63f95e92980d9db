"""The disruption controller: how many pods of a PodDisruptionBudget may be evicted now."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import DEPLOYMENTS, DISRUPTION_BUDGETS, PODS, REPLICA_SETS, Object
from gpu_provision.sandbox.controllers.deployment import replicas
from gpu_provision.sandbox.controllers.manager import ControllerManager, QueueController
from gpu_provision.sandbox.objects import ConditionUpdate, Key

_EVICTION_SECONDS = 120.0


class UncountableError(Exception):
    """How many pods there should be cannot be told: a pod has a controller without replicas, such as a DaemonSet."""


def pending_evictions(budget: Object, pods: Sequence[Object], moment: datetime) -> dict[str, str]:
    """Return those of status.disruptedPods whose deletion has been allowed and is still to be seen."""
    waiting = {objects.name(pod) for pod in pods if not objects.is_deleting(pod)}
    disrupted: dict[str, str] = objects.status(budget).get("disruptedPods") or {}
    return {
        name: since
        for name, since in disrupted.items()
        if name in waiting and objects.seconds_since(since, moment) < _EVICTION_SECONDS
    }


class DisruptionBudgets(QueueController[Key]):
    """Keeps the status of every PodDisruptionBudget."""

    name = "disruption"
    watches = (DISRUPTION_BUDGETS, PODS, DEPLOYMENTS, REPLICA_SETS)

    def __init__(self, cluster: ControllerManager) -> None:
        """Follow budgets, pods and the controllers whose replicas count."""
        super().__init__(cluster)
        self._budgets, self._pods = cluster.informer(DISRUPTION_BUDGETS), cluster.informer(PODS)
        self._sets, self._deployments = cluster.informer(REPLICA_SETS), cluster.informer(DEPLOYMENTS)
        for informer in (self._budgets, self._pods):
            informer.index("namespace", lambda obj: [objects.namespace(obj)])
        for informer in (self._sets, self._deployments):
            informer.index("uid", lambda obj: [objects.uid(obj)])
            informer.on_change(self._on_owner_change)
        self._budgets.on_event(lambda _, obj: self.queue.add(objects.key_of(obj)))
        self._pods.on_change(self._pod_changed)

    def _pod_changed(self, old: Object | None, new: Object | None) -> None:
        present = [obj for obj in (old, new) if obj is not None]
        for budget in self._budgets.by_index("namespace", objects.namespace(present[0])):
            if any(objects.matches_selector(budget["spec"].get("selector"), objects.labels(obj)) for obj in present):
                self.queue.add(objects.key_of(budget))

    def _on_owner_change(self, old: Object | None, new: Object | None) -> None:
        if old is not None and new is not None and replicas(old) != replicas(new):
            for budget in self._budgets.by_index("namespace", objects.namespace(new)):
                self.queue.add(objects.key_of(budget))

    async def sync(self, key: Key) -> None:
        """Write the status if it has changed."""
        budget = self._budgets.objects.get(key)
        if budget is None or objects.is_deleting(budget):
            return
        selector = budget["spec"].get("selector")
        pods = [
            pod
            for pod in self._pods.by_index("namespace", key[0])
            if not objects.is_finished(pod) and objects.matches_selector(selector, objects.labels(pod))
        ]
        moment = objects.now()
        try:
            counted, condition = self._count(budget, pods, moment)
        except UncountableError as problem:
            message = f"Failed to calculate the number of expected pods: {problem}"
            self.event(budget, "CalculateExpectedPodCountFailed", message, warning=True)
            counted = {"disruptionsAllowed": 0}
            condition = ConditionUpdate("DisruptionAllowed", "False", "SyncFailed", str(problem))
        conditions = objects.set_conditions(budget, moment, condition)
        await self.cluster.write_status(DISRUPTION_BUDGETS, budget, {**counted, "conditions": conditions})
        if pending_evictions(budget, pods, moment):
            self.queue.add_after(key, _EVICTION_SECONDS)

    def _count(
        self, budget: Object, pods: Sequence[Object], moment: datetime
    ) -> tuple[dict[str, Any], ConditionUpdate]:
        """Return the numbers of a budget's status, and its condition. Raises UncountableError."""
        spec, disrupted = budget["spec"], pending_evictions(budget, pods, moment)
        healthy = sum(
            objects.is_ready(pod) and objects.is_active(pod) and objects.name(pod) not in disrupted for pod in pods
        )
        if "maxUnavailable" not in spec and isinstance(spec.get("minAvailable"), int):
            desired, expected = spec["minAvailable"], len(pods)
        else:
            expected = self._expected_pods(pods)
            if "maxUnavailable" in spec:
                most = objects.resolve_percentage(spec["maxUnavailable"], expected, up=True, default=0)
                desired = max(expected - most, 0)
            else:
                desired = objects.resolve_percentage(spec.get("minAvailable"), expected, up=True, default=1)
        allowed = max(healthy - desired, 0) if expected else 0
        state, reason = ("True", "SufficientPods") if allowed else ("False", "InsufficientPods")
        counted = {
            "currentHealthy": healthy,
            "desiredHealthy": desired,
            "expectedPods": expected,
            "disruptionsAllowed": allowed,
            "observedGeneration": budget["metadata"].get("generation"),
        }
        if dropped := set(objects.status(budget).get("disruptedPods") or {}) - set(disrupted):
            counted["disruptedPods"] = dict.fromkeys(dropped)
        return counted, ConditionUpdate("DisruptionAllowed", state, reason)

    def _expected_pods(self, pods: Sequence[Object]) -> int:
        """Return the replicas of the pods' controllers, a Deployment once; pods without one do not count."""
        wholes: dict[str, int] = {}
        for pod in pods:
            owner = objects.controller_uid(pod)
            found = self._sets.by_index("uid", owner)
            if owner and not found:
                message = f'found no controllers for pod "{objects.name(pod)}"'
                raise UncountableError(message)
            for replica_set in found:
                whole = next(iter(self._deployments.by_index("uid", objects.controller_uid(replica_set))), replica_set)
                wholes[objects.uid(whole)] = replicas(whole)
        return sum(wholes.values())
