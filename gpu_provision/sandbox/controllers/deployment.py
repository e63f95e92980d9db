"""The controllers of Deployments, from one pod template to the next, and of ReplicaSets, as many pods as asked for."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import DEPLOYMENTS, PODS, REPLICA_SETS, Object
from gpu_provision.sandbox.controllers.manager import (
    ControllerManager,
    OwnerClaim,
    QueueController,
    claim_objects,
    enqueue_owners,
    gather_all,
)
from gpu_provision.sandbox.objects import ConditionUpdate, Key

HASH_LABEL = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"
DESIRED = "deployment.kubernetes.io/desired-replicas"
MAXIMUM = "deployment.kubernetes.io/max-replicas"
_NOT_COPIED = frozenset({"kubectl.kubernetes.io/last-applied-configuration", REVISION, DESIRED, MAXIMUM})

Scale = tuple[Object, int]
"""A ReplicaSet and the number of replicas it should get."""


class RollingLimits(NamedTuple):
    """How many pods a rolling update may add and miss."""

    surge: int
    unavailable: int


def replicas(obj: Object) -> int:
    """Return spec.replicas, 1 if it is not given."""
    value = obj["spec"].get("replicas")
    return 1 if value is None else int(value)


def is_recreate(deployment: Object) -> bool:
    """Whether the strategy is Recreate."""
    return bool((deployment["spec"].get("strategy") or {}).get("type") == "Recreate")


def rolling_limits(deployment: Object) -> RollingLimits:
    """Resolve maxSurge and maxUnavailable; both 0 would never move, so one pod may be missing then."""
    if is_recreate(deployment):
        return RollingLimits(0, 0)
    rolling = (deployment["spec"].get("strategy") or {}).get("rollingUpdate") or {}
    count = replicas(deployment)
    surge = objects.resolve_percentage(rolling.get("maxSurge"), count, up=True, default="25%")
    unavailable = objects.resolve_percentage(rolling.get("maxUnavailable"), count, up=False, default="25%")
    return RollingLimits(surge, unavailable if surge or unavailable else 1)


def same_template(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two pod templates are equal but for the hash label."""
    return _without_hash(one) == _without_hash(other)


def _without_hash(template: Mapping[str, Any]) -> dict[str, Any]:
    metadata = dict(template.get("metadata") or {})
    labels = {key: value for key, value in (metadata.get("labels") or {}).items() if key != HASH_LABEL}
    metadata = {key: value for key, value in (metadata | {"labels": labels}).items() if value}
    return {**template, "metadata": metadata}


def revision_number(replica_set: Object) -> int:
    """Return the revision annotation as a number."""
    return int(objects.annotations_of(replica_set).get(REVISION) or 0)


def split_replica_sets(deployment: Object, replica_sets: Sequence[Object]) -> tuple[Object | None, list[Object]]:
    """Return the ReplicaSet of the present template, if any, and the others, the oldest first."""
    by_age = sorted(replica_sets, key=lambda one: (objects.created(one), objects.name(one)))
    template = deployment["spec"]["template"]
    new = next((one for one in by_age if same_template(one["spec"]["template"], template)), None)
    return new, [one for one in by_age if one is not new]


def rollout_annotations(deployment: Object, number: int) -> dict[str, str]:
    """Return the annotations of the new ReplicaSet."""
    copied = {key: value for key, value in objects.annotations_of(deployment).items() if key not in _NOT_COPIED}
    return {**copied, REVISION: str(number), **scale_annotations(deployment)}


def scale_annotations(deployment: Object) -> dict[str, str]:
    """Return the annotations that say what a ReplicaSet was scaled for."""
    count = replicas(deployment)
    return {DESIRED: str(count), MAXIMUM: str(count + rolling_limits(deployment).surge)}


def scale_up_target(deployment: Object, new: Object | None, old: Sequence[Object]) -> int:
    """Return how many replicas the new ReplicaSet may have now."""
    wanted, have = replicas(deployment), replicas(new) if new else 0
    if is_recreate(deployment) or have > wanted:
        return wanted
    room = wanted + rolling_limits(deployment).surge - have - sum(map(replicas, old))
    return have + max(min(room, wanted - have), 0)


def scale_down_targets(deployment: Object, new: Object, old: Sequence[Object]) -> list[Scale]:
    """Return the old ReplicaSets to scale down now: first pods that are not available, then others."""
    active = [one for one in old if replicas(one)]
    floor = replicas(deployment) - rolling_limits(deployment).unavailable
    new_missing = replicas(new) - _available(new)
    allowed = replicas(new) + sum(map(replicas, active)) - floor - new_missing
    if allowed <= 0:
        return []
    counts = {objects.name(one): replicas(one) for one in active}
    for one in active:
        cut = min(allowed, replicas(one) - min(_available(one), replicas(one)))
        counts[objects.name(one)] -= cut
        allowed -= cut
    spare = min(_available(new) + sum(map(_available, active)) - floor, allowed)
    for one in active:
        cut = min(max(spare, 0), counts[objects.name(one)])
        counts[objects.name(one)] -= cut
        spare -= cut
    return [(one, counts[objects.name(one)]) for one in active if counts[objects.name(one)] != replicas(one)]


def _available(replica_set: Object) -> int:
    return int(objects.status(replica_set).get("availableReplicas") or 0)


def is_complete(deployment: Object, counted: Mapping[str, Any]) -> bool:
    """Whether all pods are updated and available and no old ones are left."""
    wanted = replicas(deployment)
    return all((counted[key] or 0) == wanted for key in ("replicas", "updatedReplicas", "availableReplicas"))


def count_status(new: Object | None, old: Sequence[Object]) -> dict[str, int | None]:
    """Count the status over all ReplicaSets; zeros that the API omits are None."""
    every = [*([new] if new else []), *old]

    def over(key: str) -> int:
        return sum(int(objects.status(one).get(key) or 0) for one in every)

    available = over("availableReplicas")
    return {
        "replicas": over("replicas") or None,
        "updatedReplicas": int(objects.status(new).get("replicas") or 0) or None if new else None,
        "readyReplicas": over("readyReplicas") or None,
        "availableReplicas": available or None,
        "unavailableReplicas": max(sum(map(replicas, every)) - available, 0) or None,
    }


def build_conditions(
    deployment: Object, new: Object | None, counted: Mapping[str, Any], moment: datetime
) -> list[dict[str, Any]]:
    """Return the conditions Available and Progressing as they are now."""
    present = objects.status(deployment).get("conditions") or []
    least = replicas(deployment) - rolling_limits(deployment).unavailable
    enough = (counted["availableReplicas"] or 0) >= least
    available = (
        ConditionUpdate("Available", "True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
        if enough
        else ConditionUpdate(
            "Available", "False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability."
        )
    )
    result = objects.set_condition(present, available, moment)
    result = objects.set_condition(result, _progress(deployment, new, counted), moment)
    updated = {"lastUpdateTime": objects.format_time(moment)}
    return [one if one in present else {**one, **updated} for one in result]


def _progress(deployment: Object, new: Object | None, counted: Mapping[str, Any]) -> ConditionUpdate:
    title = f'ReplicaSet "{objects.name(new)}"' if new else f'Deployment "{objects.name(deployment)}"'
    if new is not None and is_complete(deployment, counted):
        message = f"{title} has successfully progressed."
        return ConditionUpdate("Progressing", "True", "NewReplicaSetAvailable", message)
    return ConditionUpdate("Progressing", "True", "ReplicaSetUpdated", f"{title} is progressing.")


_HISTORY = 10


class Deployments(QueueController[Key]):
    """Keeps every Deployment's ReplicaSets and status."""

    name = "deployment"
    watches = (DEPLOYMENTS, REPLICA_SETS, PODS)

    def __init__(self, cluster: ControllerManager) -> None:
        """Follow Deployments, their ReplicaSets, and pods that go (Recreate waits for them)."""
        super().__init__(cluster)
        self._deployments = cluster.informer(DEPLOYMENTS)
        self._deployments.on_event(lambda _, obj: self.queue.add(objects.key_of(obj)))
        enqueue_owners(cluster, DEPLOYMENTS, REPLICA_SETS, self.queue.add)
        self._sets = cluster.informer(REPLICA_SETS)
        self._sets.index("uid", lambda obj: [objects.uid(obj)])
        self._pods = cluster.informer(PODS)
        self._pods.on_change(self._pod_changed)

    def _pod_changed(self, old: Object | None, new: Object | None) -> None:
        if old is None or (new is not None and not objects.is_finished(new)):
            return
        for replica_set in self._sets.by("uid", objects.controller_uid(old)):
            owner = objects.controller_of(replica_set)
            if owner is not None:
                self.queue.add((objects.namespace(old), owner["name"]))

    async def sync(self, key: Key) -> None:
        """Take the next step of the rollout, then write the status."""
        deployment = self._deployments.objects.get(key)
        if deployment is None:
            return
        claim = OwnerClaim(deployment, REPLICA_SETS, deployment["spec"]["selector"])
        new, old = split_replica_sets(deployment, await claim_objects(self.cluster, claim))
        if objects.is_deleting(deployment):
            return
        new = await self._advance(deployment, new, old)
        await self._write_status(deployment, new, old)
        await self._forget_history(deployment, old)

    async def _advance(self, deployment: Object, new: Object | None, old: list[Object]) -> Object | None:
        if is_recreate(deployment):
            for one in old:
                await self._scale(deployment, one, 0)
            if any(self._running(one) for one in old):
                return new
        number = max(map(revision_number, old), default=0) + 1
        if new is None:
            return await self._create(deployment, number, scale_up_target(deployment, None, old))
        new = await self._renumber(deployment, new, number)
        new = await self._scale(deployment, new, scale_up_target(deployment, new, old))
        for one, count in scale_down_targets(deployment, new, old):
            await self._scale(deployment, one, count)
        return new

    def _running(self, replica_set: Object) -> bool:
        pods = self._pods.by("controller uid", objects.uid(replica_set))
        return any(not objects.is_finished(pod) for pod in pods)

    async def _create(self, deployment: Object, number: int, count: int) -> Object:
        spec = deployment["spec"]
        digest = objects.stable_hash(spec["template"])
        template = copy.deepcopy(spec["template"])
        template.setdefault("metadata", {}).setdefault("labels", {})[HASH_LABEL] = digest
        selector = copy.deepcopy(spec["selector"])
        selector["matchLabels"] = {**(selector.get("matchLabels") or {}), HASH_LABEL: digest}
        body = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {
                "name": f"{objects.name(deployment)}-{digest}",
                "labels": dict(template["metadata"]["labels"]),
                "annotations": rollout_annotations(deployment, number),
                "ownerReferences": [objects.controller_ref(deployment)],
            },
            "spec": {"replicas": count, "selector": selector, "template": template},
        }
        new = await self.cluster.create(REPLICA_SETS, body, objects.namespace(deployment))
        self._scaled(deployment, new, 0, count)
        await self._write_revision(deployment, number)
        return new

    async def _renumber(self, deployment: Object, new: Object, number: int) -> Object:
        number = max(number, revision_number(new))
        wanted = rollout_annotations(deployment, number)
        have = objects.annotations_of(new)
        missing = {key: value for key, value in wanted.items() if have.get(key) != value}
        if missing:
            new = await self.cluster.patch(REPLICA_SETS, new, {"metadata": {"annotations": missing}})
        await self._write_revision(deployment, number)
        return new

    async def _write_revision(self, deployment: Object, number: int) -> None:
        if objects.annotations_of(deployment).get(REVISION) != str(number):
            change = {"metadata": {"annotations": {REVISION: str(number)}}}
            await self.cluster.patch(DEPLOYMENTS, deployment, change)

    async def _scale(self, deployment: Object, replica_set: Object, count: int) -> Object:
        before = replicas(replica_set)
        if before == count:
            return replica_set
        change = {"metadata": {"annotations": scale_annotations(deployment)}, "spec": {"replicas": count}}
        result = await self.cluster.patch(REPLICA_SETS, replica_set, change)
        self._scaled(deployment, replica_set, before, count)
        return result

    def _scaled(self, deployment: Object, replica_set: Object, before: int, after: int) -> None:
        direction = "up" if after > before else "down"
        message = f"Scaled {direction} replica set {objects.name(replica_set)} from {before} to {after}"
        self.event(deployment, "ScalingReplicaSet", message)

    async def _write_status(self, deployment: Object, new: Object | None, old: Sequence[Object]) -> None:
        moment = objects.now()
        counted = count_status(new, old)
        wanted = {
            **counted,
            "observedGeneration": deployment["metadata"].get("generation"),
            "conditions": build_conditions(deployment, new, counted, moment),
        }
        await self.cluster.write_status(DEPLOYMENTS, deployment, wanted)

    async def _forget_history(self, deployment: Object, old: Sequence[Object]) -> None:
        limit = deployment["spec"].get("revisionHistoryLimit")
        unused = [
            one
            for one in sorted(old, key=revision_number)
            if not replicas(one) and not objects.status(one).get("replicas") and not objects.is_deleting(one)
        ]
        surplus = len(unused) - (_HISTORY if limit is None else int(limit))
        for one in unused[: max(surplus, 0)]:
            await self.cluster.delete(REPLICA_SETS, one)


_BURST = 500


def choose_surplus(pods: Sequence[Object], count: int) -> list[Object]:
    """Choose the pods to delete: unbound, pending and unready ones first, then the youngest."""

    def worth(pod: Object) -> tuple[bool, bool, bool]:
        return bool(objects.node_of(pod)), objects.phase(pod) == "Running", objects.is_ready(pod)

    youngest_first = sorted(pods, key=objects.created, reverse=True)
    return sorted(youngest_first, key=worth)[:count]


def build_status(replica_set: Object, pods: Sequence[Object]) -> dict[str, int | None]:
    """Count the status; zeros that the API omits are None."""
    ready = sum(map(objects.is_ready, pods))
    wanted = (replica_set["spec"]["template"].get("metadata") or {}).get("labels")
    return {
        "replicas": len(pods),
        "fullyLabeledReplicas": sum(objects.includes_labels(wanted, objects.labels(pod)) for pod in pods) or None,
        "readyReplicas": ready or None,
        "availableReplicas": ready or None,
        "observedGeneration": replica_set["metadata"].get("generation"),
    }


class ReplicaSets(QueueController[Key]):
    """Keeps every ReplicaSet's pods and status."""

    name = "replicaset"
    watches = (REPLICA_SETS, PODS)

    def __init__(self, cluster: ControllerManager) -> None:
        """Follow ReplicaSets and their pods."""
        super().__init__(cluster)
        self._sets = cluster.informer(REPLICA_SETS)
        self._sets.on_event(lambda _, obj: self.queue.add(objects.key_of(obj)))
        enqueue_owners(cluster, REPLICA_SETS, PODS, self.queue.add)

    async def sync(self, key: Key) -> None:
        """Create or delete pods until the number is right, then write the status."""
        replica_set = self._sets.objects.get(key)
        if replica_set is None:
            return
        claim = OwnerClaim(replica_set, PODS, replica_set["spec"]["selector"])
        pods = [pod for pod in await claim_objects(self.cluster, claim) if objects.is_active(pod)]
        try:
            if not objects.is_deleting(replica_set):
                await self._scale(replica_set, pods)
        finally:
            await self._write_status(replica_set)

    async def _scale(self, replica_set: Object, pods: Sequence[Object]) -> None:
        missing = replicas(replica_set) - len(pods)
        body = objects.pod_from_template(replica_set["spec"]["template"], replica_set)
        await gather_all([self.create_pod(replica_set, body) for _ in range(min(missing, _BURST))])
        await gather_all([self.delete_pod(replica_set, pod) for pod in choose_surplus(pods, max(-missing, 0))])

    async def _write_status(self, replica_set: Object) -> None:
        owned = self.cluster.informer(PODS).by("controller uid", objects.uid(replica_set))
        pods = [pod for pod in owned if objects.is_active(pod)]
        await self.cluster.write_status(REPLICA_SETS, replica_set, build_status(replica_set, pods))
