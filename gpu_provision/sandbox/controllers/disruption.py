"""The disruption controller: how many pods of a PodDisruptionBudget may be evicted now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from gpu_provision.sandbox.api import Object, Resource
from gpu_provision.sandbox.controllers import objects, selectors, timestamps
from gpu_provision.sandbox.controllers.claims import index_owned
from gpu_provision.sandbox.controllers.cluster import Cluster, Controller
from gpu_provision.sandbox.controllers.deployment_plan import replicas
from gpu_provision.sandbox.controllers.objects import Condition
from gpu_provision.sandbox.controllers.resources import (
    DISRUPTION_BUDGETS,
    PODS,
    REPLICA_SETS,
    STATEFUL_SETS,
)
from gpu_provision.sandbox.informer import Key

_EVICTION_SECONDS = 120.0
_SCALED: Mapping[str, Resource] = {"ReplicaSet": REPLICA_SETS, "StatefulSet": STATEFUL_SETS}


def expected_pods(pods: Sequence[Object], scales: Mapping[str, int]) -> int:
    """Return how many pods there should be: the replicas of their controllers, else the pods themselves."""
    owners = {objects.controller_uid(pod) for pod in pods}
    scaled = sum(scales[uid] for uid in owners if uid in scales)
    return scaled + sum(objects.controller_uid(pod) not in scales for pod in pods)


def pending_evictions(budget: Object, pods: Sequence[Object], moment: datetime) -> dict[str, str]:
    """Return those of status.disruptedPods whose deletion has been allowed and is still to be seen."""
    waiting = {objects.name(pod) for pod in pods if not objects.is_deleting(pod)}
    disrupted: dict[str, str] = objects.status(budget).get("disruptedPods") or {}
    return {
        name: since
        for name, since in disrupted.items()
        if name in waiting and timestamps.seconds_since(since, moment) < _EVICTION_SECONDS
    }


def status(budget: Object, pods: Sequence[Object], expected: int, moment: datetime) -> dict[str, Any]:
    """Return the status of a budget over these pods."""
    spec = budget["spec"]
    disrupted = pending_evictions(budget, pods, moment)
    healthy = sum(
        objects.is_ready(pod) and objects.is_active(pod) and objects.name(pod) not in disrupted for pod in pods
    )
    if "maxUnavailable" in spec:
        desired = max(expected - objects.scaled(spec["maxUnavailable"], expected, up=True, default=0), 0)
    elif isinstance(spec.get("minAvailable"), int):
        desired, expected = spec["minAvailable"], len(pods)
    else:
        desired = objects.scaled(spec.get("minAvailable"), expected, up=True, default=1)
    allowed = max(healthy - desired, 0) if expected else 0
    state, reason = ("True", "SufficientPods") if allowed else ("False", "InsufficientPods")
    return {
        "currentHealthy": healthy,
        "desiredHealthy": desired,
        "expectedPods": expected,
        "disruptionsAllowed": allowed,
        "observedGeneration": budget["metadata"].get("generation"),
        "conditions": objects.with_condition(
            objects.status(budget).get("conditions") or [],
            Condition("DisruptionAllowed", state, reason),
            moment,
        ),
    }


class DisruptionBudgets(Controller[Key]):
    """Keeps the status of every PodDisruptionBudget."""

    name = "disruption"
    watches = (DISRUPTION_BUDGETS, PODS, REPLICA_SETS, STATEFUL_SETS)

    def __init__(self, cluster: Cluster) -> None:
        """Follow budgets, pods and the controllers whose replicas count."""
        super().__init__(cluster)
        self._budgets, self._pods = cluster.informer(DISRUPTION_BUDGETS), cluster.informer(PODS)
        self._budgets.index("namespace", lambda obj: [objects.namespace(obj)])
        self._pods.index("namespace", lambda obj: [objects.namespace(obj)])
        index_owned(self._pods)
        self._budgets.on_event(lambda _, obj: self.queue.add(objects.key_of(obj)))
        self._pods.on_change(self._pod_changed)
        for resource in _SCALED.values():
            informer = cluster.informer(resource)
            informer.index("uid", lambda obj: [objects.uid(obj)])
            informer.on_change(self._owner_changed)

    def _pod_changed(self, old: Object | None, new: Object | None) -> None:
        present = [obj for obj in (old, new) if obj is not None]
        for budget in self._budgets.by("namespace", objects.namespace(present[0])):
            if any(selectors.matches(budget["spec"].get("selector"), objects.labels(obj)) for obj in present):
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
            if not objects.is_finished(pod) and selectors.matches(selector, objects.labels(pod))
        ]
        moment = timestamps.now()
        wanted = status(budget, pods, expected_pods(pods, self._scales(pods)), moment)
        kept = pending_evictions(budget, pods, moment)
        dropped = set(objects.status(budget).get("disruptedPods") or {}) - set(kept)
        if dropped:
            wanted["disruptedPods"] = dict.fromkeys(dropped)
        await self.cluster.write_status(DISRUPTION_BUDGETS, budget, wanted)
        if kept:
            self.queue.add_after(key, _EVICTION_SECONDS)

    def _scales(self, pods: Sequence[Object]) -> dict[str, int]:
        scales: dict[str, int] = {}
        for pod in pods:
            owner = objects.controller_of(pod)
            if owner is None or owner["uid"] in scales or owner["kind"] not in _SCALED:
                continue
            for found in self.cluster.informer(_SCALED[owner["kind"]]).by("uid", owner["uid"]):
                scales[owner["uid"]] = replicas(found)
        return scales
