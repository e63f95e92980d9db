"""What a Job still needs, whether it has ended, and its status (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.controllers import objects, timestamps
from gpu_provision.sandbox.controllers.objects import Condition

_BACKOFF_LIMIT = 6
_LONGEST_BACKOFF = 600.0
_LABELS = ("job-name", "batch.kubernetes.io/job-name")
_UID_LABELS = ("controller-uid", "batch.kubernetes.io/controller-uid")


@dataclass(frozen=True, slots=True)
class Tally:
    """The pods of a Job, counted; pods that are gone are in the numbers."""

    active: tuple[Object, ...]
    terminating: int
    succeeded: int
    failed: int
    restarts: int
    last_failure: str


class End(NamedTuple):
    """How a Job ends: ``kind`` is Complete or Failed."""

    kind: str
    reason: str
    message: str


class Need(NamedTuple):
    """Pods to create (not before ``after`` seconds) and active pods to delete."""

    create: int
    delete: tuple[Object, ...]
    after: float


def tally(pods: Sequence[Object], *, gone_succeeded: int, gone_failed: int) -> Tally:
    """Count pods; one that is deleted before it succeeded has failed."""
    succeeded = [pod for pod in pods if objects.phase(pod) == "Succeeded"]
    failed = [
        pod
        for pod in pods
        if objects.phase(pod) == "Failed" or (objects.is_deleting(pod) and not objects.is_finished(pod))
    ]
    active = tuple(pod for pod in pods if objects.is_active(pod))
    return Tally(
        active=active,
        terminating=sum(objects.is_deleting(pod) and not objects.is_finished(pod) for pod in pods),
        succeeded=len(succeeded) + gone_succeeded,
        failed=len(failed) + gone_failed,
        restarts=sum(map(_restarts, active)),
        last_failure=max(map(_ended, failed), default=""),
    )


def _restarts(pod: Object) -> int:
    status = objects.status(pod)
    every = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return sum(int(one.get("restartCount") or 0) for one in every)


def _ended(pod: Object) -> str:
    times = [
        (state.get("terminated") or {}).get("finishedAt") or ""
        for one in objects.status(pod).get("containerStatuses") or ()
        if (state := one.get("state") or {})
    ]
    return max(times, default="") or pod["metadata"].get("deletionTimestamp") or objects.created(pod)


def is_finished(job: Object) -> bool:
    """Whether the Job has the condition Complete or Failed."""
    return objects.has_condition(job, "Complete") or objects.has_condition(job, "Failed")


def deadline(job: Object, moment: datetime) -> float | None:
    """Return the seconds until activeDeadlineSeconds is over, not below 0; None if it does not run."""
    limit, start = job["spec"].get("activeDeadlineSeconds"), objects.status(job).get("startTime")
    if limit is None or not start:
        return None
    return max(float(limit) - timestamps.seconds_since(start, moment), 0.0)


def end_of(job: Object, counted: Tally, moment: datetime) -> End | None:
    """Return how the Job ends now; None while it goes on."""
    spec = job["spec"]
    limit = int(_given(spec.get("backoffLimit"), _BACKOFF_LIMIT))
    restarts = counted.restarts if spec["template"]["spec"].get("restartPolicy") == "OnFailure" else 0
    if counted.failed > limit or (restarts and restarts >= max(limit, 1)):
        return End("Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
    if deadline(job, moment) == 0:
        return End("Failed", "DeadlineExceeded", "Job was active longer than specified deadline")
    completions = spec.get("completions")
    if completions is None:
        done = counted.succeeded > 0 and not counted.active
    else:
        done = counted.succeeded >= int(completions)
    return End("Complete", "CompletionsReached", "Reached expected number of succeeded pods") if done else None


def _given(value: Any, default: int) -> Any:
    return default if value is None else value


def need_of(job: Object, counted: Tally, moment: datetime, *, backoff_seconds: float) -> Need:
    """Return which pods to create or delete now; failures delay the creation, doubled each time."""
    surplus = len(counted.active) - _wanted(job, counted)
    if surplus >= 0:
        return Need(0, counted.active[len(counted.active) - surplus :], 0.0)
    if not counted.failed:
        return Need(-surplus, (), 0.0)
    pause = min(backoff_seconds * 2.0 ** min(counted.failed - 1, 20), _LONGEST_BACKOFF)
    return Need(-surplus, (), max(pause - timestamps.seconds_since(counted.last_failure, moment), 0.0))


def _wanted(job: Object, counted: Tally) -> int:
    spec = job["spec"]
    if spec.get("suspend"):
        return 0
    parallelism = int(_given(spec.get("parallelism"), 1))
    completions = spec.get("completions")
    if completions is None:
        return len(counted.active) if counted.succeeded else parallelism
    return min(parallelism, int(completions) - counted.succeeded)


def status(job: Object, counted: Tally, end: End | None, moment: datetime) -> dict[str, Any]:
    """Return the status as it should be; None removes a field."""
    suspended = bool(job["spec"].get("suspend"))
    present = objects.status(job)
    start = present.get("startTime") or timestamps.text(moment)
    settled = end is not None and not counted.active and not counted.terminating
    complete = settled and end is not None and end.kind == "Complete"
    return {
        "active": len(counted.active) or None,
        "ready": sum(map(objects.is_ready, counted.active)),
        "terminating": counted.terminating,
        "succeeded": counted.succeeded or None,
        "failed": counted.failed or None,
        "startTime": None if suspended and not settled else start,
        "completionTime": timestamps.text(moment) if complete else present.get("completionTime"),
        "conditions": _conditions(job, end, moment, settled=settled) or None,
    }


def _conditions(job: Object, end: End | None, moment: datetime, *, settled: bool) -> list[dict[str, Any]]:
    conditions: list[dict[str, Any]] = objects.status(job).get("conditions") or []
    if end is None:
        return _suspension(job, conditions, moment)
    early = "SuccessCriteriaMet" if end.kind == "Complete" else "FailureTarget"
    for kind in (early, end.kind) if settled else (early,):
        conditions = objects.with_condition(conditions, Condition(kind, "True", end.reason, end.message), moment)
    return conditions


def _suspension(job: Object, conditions: list[dict[str, Any]], moment: datetime) -> list[dict[str, Any]]:
    if job["spec"].get("suspend"):
        return objects.with_condition(
            conditions, Condition("Suspended", "True", "JobSuspended", "Job suspended"), moment
        )
    if objects.condition(job, "Suspended"):
        return objects.with_condition(conditions, Condition("Suspended", "False", "JobResumed", "Job resumed"), moment)
    return conditions


def pod_for(job: Object, owner: dict[str, Any]) -> Object:
    """Return the next pod of a Job."""
    pod = objects.pod_from_template(job["spec"]["template"], owner, f"{objects.name(job)}-")
    labels = pod["metadata"]["labels"]
    labels |= dict.fromkeys(_LABELS, objects.name(job)) | dict.fromkeys(_UID_LABELS, objects.uid(job))
    return pod
