"""The controllers of Deployments, from one pod template to the next, and of ReplicaSets, as many pods as asked for."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import DEPLOYMENTS, PODS, REPLICA_SETS, ApiError, Object
from gpu_provision.sandbox.controllers.manager import (
    OWNED,
    ControllerManager,
    QueueController,
    claim_objects,
    enqueue_owners,
    gather_all,
)
from gpu_provision.sandbox.objects import ConditionUpdate, Key

_HASH_LABEL = "pod-template-hash"
_REVISION = "deployment.kubernetes.io/revision"
_DESIRED = "deployment.kubernetes.io/desired-replicas"
_MAXIMUM = "deployment.kubernetes.io/max-replicas"
_NOT_COPIED = frozenset({"kubectl.kubernetes.io/last-applied-configuration", _REVISION, _DESIRED, _MAXIMUM})
_FAILURE = "ReplicaFailure"
_HISTORY = 10
_BURST = 500


def replicas(obj: Object) -> int:
    """Return spec.replicas, 1 if it is not given."""
    value = obj["spec"].get("replicas")
    return 1 if value is None else int(value)


def is_recreate(deployment: Object) -> bool:
    """Whether the strategy is Recreate."""
    return bool((deployment["spec"].get("strategy") or {}).get("type") == "Recreate")


def rolling_limits(deployment: Object) -> tuple[int, int]:
    """Resolve maxSurge and maxUnavailable; both 0 would never move, so one pod may be missing then."""
    if is_recreate(deployment):
        return 0, 0
    rolling = (deployment["spec"].get("strategy") or {}).get("rollingUpdate") or {}
    count = replicas(deployment)
    surge = objects.resolve_percentage(rolling.get("maxSurge"), count, up=True, default="25%")
    unavailable = objects.resolve_percentage(rolling.get("maxUnavailable"), count, up=False, default="25%")
    return surge, unavailable if surge or unavailable else 1


def _without_hash(template: Mapping[str, Any]) -> dict[str, Any]:
    metadata = dict(template.get("metadata") or {})
    labels = {key: value for key, value in (metadata.get("labels") or {}).items() if key != _HASH_LABEL}
    metadata = {key: value for key, value in (metadata | {"labels": labels}).items() if value}
    return {**template, "metadata": metadata}


def _number(replica_set: Object) -> int:
    return int(objects.annotations_of(replica_set).get(_REVISION) or 0)


def _available_replicas(replica_set: Object) -> int:
    return int(objects.status(replica_set).get("availableReplicas") or 0)


def scale_annotations(deployment: Object) -> dict[str, str]:
    """Return the annotations that say what a ReplicaSet was scaled for."""
    count = replicas(deployment)
    return {_DESIRED: str(count), _MAXIMUM: str(count + rolling_limits(deployment)[0])}


def rollout_annotations(deployment: Object, number: int) -> dict[str, str]:
    """Return the annotations of the new ReplicaSet."""
    copied = {key: value for key, value in objects.annotations_of(deployment).items() if key not in _NOT_COPIED}
    return {**copied, _REVISION: str(number), **scale_annotations(deployment)}


def scale_up_target(deployment: Object, new: Object | None, old: Sequence[Object]) -> int:
    """Return how many replicas the new ReplicaSet may have now."""
    wanted, have = replicas(deployment), replicas(new) if new else 0
    if is_recreate(deployment) or have > wanted:
        return wanted
    room = wanted + rolling_limits(deployment)[0] - have - sum(map(replicas, old))
    return have + max(min(room, wanted - have), 0)


def scale_down_targets(deployment: Object, new: Object, old: Sequence[Object]) -> list[tuple[Object, int]]:
    """Return the old ReplicaSets to scale down now, and to what: first pods that are not available, then others."""
    active = [one for one in old if replicas(one)]
    floor = replicas(deployment) - rolling_limits(deployment)[1]
    new_missing = replicas(new) - _available_replicas(new)
    allowed = replicas(new) + sum(map(replicas, active)) - floor - new_missing
    if allowed <= 0:
        return []
    counts = {objects.name(one): replicas(one) for one in active}
    for one in active:
        cut = min(allowed, replicas(one) - min(_available_replicas(one), replicas(one)))
        counts[objects.name(one)] -= cut
        allowed -= cut
    spare = min(_available_replicas(new) + sum(map(_available_replicas, active)) - floor, allowed)
    for one in active:
        cut = min(max(spare, 0), counts[objects.name(one)])
        counts[objects.name(one)] -= cut
        spare -= cut
    return [(one, counts[objects.name(one)]) for one in active if counts[objects.name(one)] != replicas(one)]


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


def build_conditions(deployment: Object, new: Object | None, counted: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the conditions Available and Progressing as they are now."""
    present, moment, wanted = objects.status(deployment).get("conditions") or [], objects.now(), replicas(deployment)
    enough = (counted["availableReplicas"] or 0) >= wanted - rolling_limits(deployment)[1]
    does, reason = ("has", "MinimumReplicasAvailable") if enough else ("does not have", "MinimumReplicasUnavailable")
    available = ConditionUpdate("Available", str(enough), reason, f"Deployment {does} minimum availability.")
    title = f'ReplicaSet "{objects.name(new)}"' if new else f'Deployment "{objects.name(deployment)}"'
    progressing = ConditionUpdate("Progressing", "True", "ReplicaSetUpdated", f"{title} is progressing.")
    if new and all((counted[key] or 0) == wanted for key in ("replicas", "updatedReplicas", "availableReplicas")):
        message = f"{title} has successfully progressed."
        progressing = ConditionUpdate("Progressing", "True", "NewReplicaSetAvailable", message)
    result = objects.set_conditions(deployment, moment, available, progressing)
    updated = {"lastUpdateTime": objects.format_time(moment)}
    return [one if one in present else {**one, **updated} for one in result]


def failures(sets: Sequence[Object]) -> list[dict[str, Any]]:
    """Return the conditions of ReplicaSets that could not create or delete a pod."""
    return [one for each in sets for one in objects.status(each).get("conditions") or () if one["type"] == _FAILURE]


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
        for replica_set in self._sets.by_index("uid", objects.controller_uid(old)):
            owner = objects.controller_of(replica_set)
            if owner is not None:
                self.queue.add((objects.namespace(old), owner["name"]))

    async def sync(self, key: Key) -> None:
        """Take the next step of the rollout, then write the status."""
        deployment = self._deployments.objects.get(key)
        if deployment is None:
            return
        claimed = await claim_objects(self.cluster, deployment, REPLICA_SETS)
        if objects.is_deleting(deployment):
            return
        by_age = sorted(claimed, key=lambda one: (objects.creation_timestamp(one), objects.name(one)))
        template = _without_hash(deployment["spec"]["template"])
        new = next((one for one in by_age if _without_hash(one["spec"]["template"]) == template), None)
        old = [one for one in by_age if one is not new]
        new = await self._advance(deployment, new, old)
        counted = count_status(new, old)
        own = [one for one in build_conditions(deployment, new, counted) if one["type"] != _FAILURE]
        wanted = {
            **counted,
            "observedGeneration": deployment["metadata"].get("generation"),
            "conditions": [*own, *failures([*([new] if new else []), *old])[:1]],
        }
        await self.cluster.write_status(DEPLOYMENTS, deployment, wanted)
        limit = deployment["spec"].get("revisionHistoryLimit")
        unused = [
            one
            for one in sorted(old, key=_number)
            if not replicas(one) and not objects.status(one).get("replicas") and not objects.is_deleting(one)
        ]
        for one in unused[: max(len(unused) - (_HISTORY if limit is None else int(limit)), 0)]:
            await self.cluster.delete(REPLICA_SETS, one)

    async def _advance(self, deployment: Object, new: Object | None, old: list[Object]) -> Object | None:
        if is_recreate(deployment):
            for one in old:
                await self._scale(deployment, one, 0)
            pods = (pod for one in old for pod in self._pods.by_index(OWNED, objects.uid(one)))
            if not all(map(objects.is_finished, pods)):
                return new
        number = max(map(_number, old), default=0) + 1
        if new is None:
            return await self._create(deployment, number, scale_up_target(deployment, None, old))
        number = max(number, _number(new))
        have = objects.annotations_of(new)
        wanted = rollout_annotations(deployment, number)
        if missing := {key: value for key, value in wanted.items() if have.get(key) != value}:
            new = await self.cluster.patch(REPLICA_SETS, new, {"metadata": {"annotations": missing}})
        await self._write_revision(deployment, number)
        new = await self._scale(deployment, new, scale_up_target(deployment, new, old))
        for one, count in scale_down_targets(deployment, new, old):
            await self._scale(deployment, one, count)
        return new

    async def _create(self, deployment: Object, number: int, count: int) -> Object:
        spec = deployment["spec"]
        digest = objects.stable_hash(spec["template"])
        template = copy.deepcopy(spec["template"])
        template.setdefault("metadata", {}).setdefault("labels", {})[_HASH_LABEL] = digest
        selector = copy.deepcopy(spec["selector"])
        selector["matchLabels"] = {**(selector.get("matchLabels") or {}), _HASH_LABEL: digest}
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
        self._record_scaling(deployment, new, 0, count)
        await self._write_revision(deployment, number)
        return new

    async def _write_revision(self, deployment: Object, number: int) -> None:
        if objects.annotations_of(deployment).get(_REVISION) != str(number):
            change = {"metadata": {"annotations": {_REVISION: str(number)}}}
            await self.cluster.patch(DEPLOYMENTS, deployment, change)

    async def _scale(self, deployment: Object, replica_set: Object, count: int) -> Object:
        before = replicas(replica_set)
        if before == count:
            return replica_set
        change = {"metadata": {"annotations": scale_annotations(deployment)}, "spec": {"replicas": count}}
        result = await self.cluster.patch(REPLICA_SETS, replica_set, change)
        self._record_scaling(deployment, replica_set, before, count)
        return result

    def _record_scaling(self, deployment: Object, replica_set: Object, before: int, after: int) -> None:
        direction = "up" if after > before else "down"
        message = f"Scaled {direction} replica set {objects.name(replica_set)} from {before} to {after}"
        self.event(deployment, "ScalingReplicaSet", message)


def choose_surplus(pods: Sequence[Object], count: int) -> list[Object]:
    """Choose the pods to delete: unbound, pending and unready ones first, then the youngest."""

    def worth(pod: Object) -> tuple[bool, bool, bool]:
        return bool(objects.node_of(pod)), objects.phase(pod) == "Running", objects.is_ready(pod)

    youngest_first = sorted(pods, key=objects.creation_timestamp, reverse=True)
    return sorted(youngest_first, key=worth)[:count]


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
        pods = [pod for pod in await claim_objects(self.cluster, replica_set, PODS) if objects.is_active(pod)]
        missing, refusal = replicas(replica_set) - len(pods), None
        try:
            if not objects.is_deleting(replica_set):
                body = objects.pod_from_template(replica_set["spec"]["template"], replica_set)
                await gather_all([self.create_pod(replica_set, body) for _ in range(min(missing, _BURST))])
                surplus = choose_surplus(pods, max(-missing, 0))
                await gather_all([self.delete_pod(replica_set, pod) for pod in surplus])
        except ApiError as error:
            refusal = error
            raise
        finally:
            await self._write_status(replica_set, refusal, "FailedCreate" if missing > 0 else "FailedDelete")

    async def _write_status(self, replica_set: Object, refusal: ApiError | None, reason: str) -> None:
        """Write the status; zeros that the API omits are None. The first refusal stays until a sync succeeds."""
        owned = self.cluster.informer(PODS).by_index(OWNED, objects.uid(replica_set))
        pods = [pod for pod in owned if objects.is_active(pod)]
        ready = sum(map(objects.is_ready, pods))
        failed = failures([replica_set]) if refusal else []
        if refusal and not failed:
            update = ConditionUpdate(_FAILURE, "True", reason, refusal.message)
            failed = objects.set_conditions({}, objects.now(), update)
        labels = (replica_set["spec"]["template"].get("metadata") or {}).get("labels")
        counted = {
            "replicas": len(pods),
            "fullyLabeledReplicas": sum(objects.includes_labels(labels, objects.labels(pod)) for pod in pods) or None,
            "readyReplicas": ready or None,
            "availableReplicas": ready or None,
            "observedGeneration": replica_set["metadata"].get("generation"),
            "conditions": failed or None,
        }
        await self.cluster.write_status(REPLICA_SETS, replica_set, counted)
