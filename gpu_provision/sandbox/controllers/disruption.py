"""The disruption controller: how many pods of a PodDisruptionBudget may be evicted now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import DEPLOYMENTS, DISRUPTION_BUDGETS, PODS, REPLICA_SETS, Object
from gpu_provision.sandbox.controllers.deployment import replicas
from gpu_provision.sandbox.controllers.manager import ControllerManager, QueueController, index_owned
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


def build_status(budget: Object, pods: Sequence[Object], expected: int, moment: datetime) -> dict[str, Any]:
    """Return the status of a budget over these pods; where a number must be there, ``expected`` does not matter."""
    spec = budget["spec"]
    disrupted = pending_evictions(budget, pods, moment)
    healthy = sum(
        objects.is_ready(pod) and objects.is_active(pod) and objects.name(pod) not in disrupted for pod in pods
    )
    if "maxUnavailable" in spec:
        desired = max(expected - objects.resolve_percentage(spec["maxUnavailable"], expected, up=True, default=0), 0)
    elif wants_number(spec):
        desired, expected = spec["minAvailable"], len(pods)
    else:
        desired = objects.resolve_percentage(spec.get("minAvailable"), expected, up=True, default=1)
    allowed = max(healthy - desired, 0) if expected else 0
    state, reason = ("True", "SufficientPods") if allowed else ("False", "InsufficientPods")
    return {
        "currentHealthy": healthy,
        "desiredHealthy": desired,
        "expectedPods": expected,
        "disruptionsAllowed": allowed,
        "observedGeneration": budget["metadata"].get("generation"),
        "conditions": _with_condition(budget, ConditionUpdate("DisruptionAllowed", state, reason), moment),
    }


def failed_status(budget: Object, problem: str, moment: datetime) -> dict[str, Any]:
    """Return the status of a budget whose pods cannot be counted: it allows nothing."""
    failed = ConditionUpdate("DisruptionAllowed", "False", "SyncFailed", problem)
    return {"disruptionsAllowed": 0, "conditions": _with_condition(budget, failed, moment)}


def _with_condition(budget: Object, wanted: ConditionUpdate, moment: datetime) -> list[dict[str, Any]]:
    return objects.set_condition(objects.status(budget).get("conditions") or [], wanted, moment)


def wants_number(spec: Mapping[str, Any]) -> bool:
    """Whether a budget wants a number of pods, whatever should be there."""
    return "maxUnavailable" not in spec and isinstance(spec.get("minAvailable"), int)


class DisruptionBudgets(QueueController[Key]):
    """Keeps the status of every PodDisruptionBudget."""

    name = "disruption"
    watches = (DISRUPTION_BUDGETS, PODS, DEPLOYMENTS, REPLICA_SETS)

    def __init__(self, cluster: ControllerManager) -> None:
        """Follow budgets, pods and the controllers whose replicas count."""
        super().__init__(cluster)
        self._budgets, self._pods = cluster.informer(DISRUPTION_BUDGETS), cluster.informer(PODS)
        self._budgets.index("namespace", lambda obj: [objects.namespace(obj)])
        self._pods.index("namespace", lambda obj: [objects.namespace(obj)])
        index_owned(self._pods)
        self._budgets.on_event(lambda _, obj: self.queue.add(objects.key_of(obj)))
        self._pods.on_change(self._pod_changed)
        for resource in (DEPLOYMENTS, REPLICA_SETS):
            informer = cluster.informer(resource)
            informer.index("uid", lambda obj: [objects.uid(obj)])
            informer.on_change(self._owner_changed)

    def _pod_changed(self, old: Object | None, new: Object | None) -> None:
        present = [obj for obj in (old, new) if obj is not None]
        for budget in self._budgets.by("namespace", objects.namespace(present[0])):
            if any(objects.matches_selector(budget["spec"].get("selector"), objects.labels(obj)) for obj in present):
                self.queue.add(objects.key_of(budget))

    def _owner_changed(self, old: Object | None, new: Object | None) -> None:
        if old is None or new is None or replicas(old) == replicas(new):
            return
        for budget in self._budgets.by("namespace", objects.namespace(new)):
            self.queue.add(objects.key_of(budget))

    async def sync(self, key: Key) -> None:
        """Write the status if it has changed."""
        budget = self._budgets.objects.get(key)
        if budget is None or objects.is_deleting(budget):
            return
        selector = budget["spec"].get("selector")
        pods = [
            pod
            for pod in self._pods.by("namespace", key[0])
            if not objects.is_finished(pod) and objects.matches_selector(selector, objects.labels(pod))
        ]
        moment = objects.now()
        await self.cluster.write_status(DISRUPTION_BUDGETS, budget, self._status(budget, pods, moment))
        if pending_evictions(budget, pods, moment):
            self.queue.add_after(key, _EVICTION_SECONDS)

    def _status(self, budget: Object, pods: Sequence[Object], moment: datetime) -> dict[str, Any]:
        try:
            expected = 0 if wants_number(budget["spec"]) else self._expected_pods(pods)
        except UncountableError as problem:
            message = f"Failed to calculate the number of expected pods: {problem}"
            self.event(budget, "CalculateExpectedPodCountFailed", message, warning=True)
            return failed_status(budget, str(problem), moment)
        kept = pending_evictions(budget, pods, moment)
        dropped = set(objects.status(budget).get("disruptedPods") or {}) - set(kept)
        forgotten = {"disruptedPods": dict.fromkeys(dropped)} if dropped else {}
        return build_status(budget, pods, expected, moment) | forgotten

    def _expected_pods(self, pods: Sequence[Object]) -> int:
        """Return the replicas of the pods' controllers, a Deployment once; pods without one do not count.

        Raises UncountableError.
        """
        wholes: dict[str, int] = {}
        for pod in pods:
            owner = objects.controller_uid(pod)
            found = self.cluster.informer(REPLICA_SETS).by("uid", owner)
            if owner and not found:
                message = f'found no controllers for pod "{objects.name(pod)}"'
                raise UncountableError(message)
            for replica_set in found:
                deployments = self.cluster.informer(DEPLOYMENTS).by("uid", objects.controller_uid(replica_set))
                whole = next(iter(deployments), replica_set)
                wholes[objects.uid(whole)] = replicas(whole)
        return sum(wholes.values())
