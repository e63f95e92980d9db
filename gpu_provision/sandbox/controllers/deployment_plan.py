"""How many pods each ReplicaSet of a Deployment should have, and the Deployment's status (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.controllers import objects, timestamps
from gpu_provision.sandbox.controllers.objects import Condition

HASH_LABEL = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"
DESIRED = "deployment.kubernetes.io/desired-replicas"
MAXIMUM = "deployment.kubernetes.io/max-replicas"
HISTORY = "deployment.kubernetes.io/revision-history"
_NOT_COPIED = frozenset({"kubectl.kubernetes.io/last-applied-configuration", REVISION, HISTORY, DESIRED, MAXIMUM})
_DEADLINE = 600

Scale = tuple[Object, int]
"""A ReplicaSet and the number of replicas it should get."""


class Limits(NamedTuple):
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


def limits(deployment: Object) -> Limits:
    """Resolve maxSurge and maxUnavailable; both 0 would never move, so one pod may be missing then."""
    if is_recreate(deployment):
        return Limits(0, 0)
    rolling = (deployment["spec"].get("strategy") or {}).get("rollingUpdate") or {}
    count = replicas(deployment)
    surge = objects.scaled(rolling.get("maxSurge"), count, up=True, default="25%")
    unavailable = objects.scaled(rolling.get("maxUnavailable"), count, up=False, default="25%")
    return Limits(surge, unavailable if surge or unavailable else 1)


def same_template(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two pod templates are equal but for the hash label."""
    return _without_hash(one) == _without_hash(other)


def _without_hash(template: Mapping[str, Any]) -> dict[str, Any]:
    metadata = dict(template.get("metadata") or {})
    labels = {key: value for key, value in (metadata.get("labels") or {}).items() if key != HASH_LABEL}
    metadata = {key: value for key, value in (metadata | {"labels": labels}).items() if value}
    return {**template, "metadata": metadata}


def revision(replica_set: Object) -> int:
    """Return the revision annotation as a number."""
    return int(objects.annotations_of(replica_set).get(REVISION) or 0)


def split(deployment: Object, replica_sets: Sequence[Object]) -> tuple[Object | None, list[Object]]:
    """Return the ReplicaSet of the present template, if any, and the others, the oldest first."""
    by_age = sorted(replica_sets, key=lambda one: (objects.created(one), objects.name(one)))
    template = deployment["spec"]["template"]
    new = next((one for one in by_age if same_template(one["spec"]["template"], template)), None)
    return new, [one for one in by_age if one is not new]


def history_annotation(replica_set: Object, number: int) -> dict[str, str]:
    """Return the annotation that lists the numbers that a ReplicaSet had before this one, if it is new to it."""
    before = revision(replica_set)
    if not before or before >= number:
        return {}
    listed = objects.annotations_of(replica_set).get(HISTORY, "")
    return {HISTORY: ",".join(filter(None, (listed, str(before))))}


def rollout_annotations(deployment: Object, number: int) -> dict[str, str]:
    """Return the annotations of the new ReplicaSet."""
    copied = {key: value for key, value in objects.annotations_of(deployment).items() if key not in _NOT_COPIED}
    return {**copied, REVISION: str(number), **scale_annotations(deployment)}


def scale_annotations(deployment: Object) -> dict[str, str]:
    """Return the annotations that say what a ReplicaSet was scaled for."""
    count = replicas(deployment)
    return {DESIRED: str(count), MAXIMUM: str(count + limits(deployment).surge)}


def new_replicas(deployment: Object, new: Object | None, old: Sequence[Object]) -> int:
    """Return how many replicas the new ReplicaSet may have now."""
    wanted, have = replicas(deployment), replicas(new) if new else 0
    if is_recreate(deployment) or have > wanted:
        return wanted
    room = wanted + limits(deployment).surge - have - sum(map(replicas, old))
    return have + max(min(room, wanted - have), 0)


def shrink(deployment: Object, new: Object, old: Sequence[Object]) -> list[Scale]:
    """Return the old ReplicaSets to scale down now: first pods that are not available, then others."""
    active = [one for one in old if replicas(one)]
    floor = replicas(deployment) - limits(deployment).unavailable
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


def counts(new: Object | None, old: Sequence[Object]) -> dict[str, int | None]:
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


def conditions(
    deployment: Object, new: Object | None, counted: Mapping[str, Any], moment: datetime
) -> list[dict[str, Any]]:
    """Return the conditions Available and Progressing as they are now."""
    present = objects.status(deployment).get("conditions") or []
    least = replicas(deployment) - limits(deployment).unavailable
    enough = (counted["availableReplicas"] or 0) >= least
    available = (
        Condition("Available", "True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
        if enough
        else Condition(
            "Available",
            "False",
            "MinimumReplicasUnavailable",
            "Deployment does not have minimum availability.",
        )
    )
    result = objects.with_condition(present, available, moment)
    progressing = _progress(deployment, new, counted, moment)
    if progressing is not None:
        result = objects.with_condition(result, progressing, moment)
    updated = {"lastUpdateTime": timestamps.text(moment)}
    moved = _moved(deployment, counted)
    return [
        {**one, **updated} if one not in present or (moved and one["type"] == "Progressing") else one for one in result
    ]


def _moved(deployment: Object, counted: Mapping[str, Any]) -> bool:
    before = objects.status(deployment)
    return any(
        (counted[key] or 0) > (before.get(key) or 0)
        for key in ("updatedReplicas", "readyReplicas", "availableReplicas")
    )


def _progress(deployment: Object, new: Object | None, counted: Mapping[str, Any], moment: datetime) -> Condition | None:
    if deployment["spec"].get("paused"):
        return Condition("Progressing", "Unknown", "DeploymentPaused", "Deployment is paused")
    title = f'ReplicaSet "{objects.name(new)}"' if new else f'Deployment "{objects.name(deployment)}"'
    if new is not None and is_complete(deployment, counted):
        message = f"{title} has successfully progressed."
        return Condition("Progressing", "True", "NewReplicaSetAvailable", message)
    present = objects.condition(deployment, "Progressing")
    if present is not None and not _moved(deployment, counted) and present["status"] == "False":
        return None
    if remaining_seconds(deployment, counted, moment) == 0 and not _moved(deployment, counted):
        return Condition("Progressing", "False", "ProgressDeadlineExceeded", f"{title} has timed out progressing.")
    return Condition("Progressing", "True", "ReplicaSetUpdated", f"{title} is progressing.")


def remaining_seconds(deployment: Object, counted: Mapping[str, Any], moment: datetime) -> float | None:
    """Return the seconds until the progress deadline, 0 when it has passed; None if it does not run."""
    present = objects.condition(deployment, "Progressing")
    done = present is None or present.get("reason") == "NewReplicaSetAvailable"
    if done or is_complete(deployment, counted) or deployment["spec"].get("paused"):
        return None
    deadline = int(deployment["spec"].get("progressDeadlineSeconds") or _DEADLINE)
    updated = (present or {}).get("lastUpdateTime") or (present or {}).get("lastTransitionTime")
    return max(deadline - timestamps.seconds_since(updated, moment), 0.0)
