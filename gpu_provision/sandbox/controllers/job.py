"""The Job controller: runs pods until enough have succeeded or too many have failed; its plan is pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import JOBS, PODS, Object
from gpu_provision.sandbox.controllers.manager import ControllerManager, QueueController, enqueue_owners, gather_all
from gpu_provision.sandbox.objects import ConditionUpdate, Key

_BACKOFF_LIMIT = 6
_LONGEST_BACKOFF = 600.0
_LABELS = ("job-name", "batch.kubernetes.io/job-name")
_UID_LABELS = ("controller-uid", "batch.kubernetes.io/controller-uid")


@dataclass(frozen=True, slots=True)
class PodCounts:
    """The pods of a Job, counted; pods that are gone are in the numbers."""

    active: tuple[Object, ...]
    terminating: int
    succeeded: int
    failed: int
    restarts: int
    last_failure: str


class JobEnd(NamedTuple):
    """How a Job ends: ``kind`` is Complete or Failed."""

    kind: str
    reason: str
    message: str


class PodChanges(NamedTuple):
    """Pods to create (not before ``after`` seconds) and active pods to delete."""

    create: int
    delete: tuple[Object, ...]
    after: float


def count_pods(pods: Sequence[Object], *, gone_succeeded: int, gone_failed: int) -> PodCounts:
    """Count pods; one that is deleted before it succeeded has failed."""
    succeeded = [pod for pod in pods if objects.phase(pod) == "Succeeded"]
    failed = [
        pod
        for pod in pods
        if objects.phase(pod) == "Failed" or (objects.is_deleting(pod) and not objects.is_finished(pod))
    ]
    active = tuple(pod for pod in pods if objects.is_active(pod))
    return PodCounts(
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


def seconds_to_deadline(job: Object, moment: datetime) -> float | None:
    """Return the seconds until activeDeadlineSeconds is over, not below 0; None if it does not run."""
    limit, start = job["spec"].get("activeDeadlineSeconds"), objects.status(job).get("startTime")
    if limit is None or not start:
        return None
    return max(float(limit) - objects.seconds_since(start, moment), 0.0)


def find_end(job: Object, counted: PodCounts, moment: datetime) -> JobEnd | None:
    """Return how the Job ends now; None while it goes on."""
    spec = job["spec"]
    limit = int(_default(spec.get("backoffLimit"), _BACKOFF_LIMIT))
    restarts = counted.restarts if spec["template"]["spec"].get("restartPolicy") == "OnFailure" else 0
    if counted.failed > limit or (restarts and restarts >= max(limit, 1)):
        return JobEnd("Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
    if seconds_to_deadline(job, moment) == 0:
        return JobEnd("Failed", "DeadlineExceeded", "Job was active longer than specified deadline")
    completions = spec.get("completions")
    if completions is None:
        done = counted.succeeded > 0 and not counted.active
    else:
        done = counted.succeeded >= int(completions)
    return JobEnd("Complete", "CompletionsReached", "Reached expected number of succeeded pods") if done else None


def _default(value: Any, default: int) -> Any:
    return default if value is None else value


def plan_pods(job: Object, counted: PodCounts, moment: datetime, *, backoff_seconds: float) -> PodChanges:
    """Return which pods to create or delete now; failures delay the creation, doubled each time."""
    surplus = len(counted.active) - _wanted(job, counted)
    if surplus >= 0:
        return PodChanges(0, counted.active[len(counted.active) - surplus :], 0.0)
    if not counted.failed:
        return PodChanges(-surplus, (), 0.0)
    pause = min(backoff_seconds * 2.0 ** min(counted.failed - 1, 20), _LONGEST_BACKOFF)
    return PodChanges(-surplus, (), max(pause - objects.seconds_since(counted.last_failure, moment), 0.0))


def _wanted(job: Object, counted: PodCounts) -> int:
    spec = job["spec"]
    if spec.get("suspend"):
        return 0
    parallelism = int(_default(spec.get("parallelism"), 1))
    completions = spec.get("completions")
    if completions is None:
        return len(counted.active) if counted.succeeded else parallelism
    return min(parallelism, int(completions) - counted.succeeded)


def build_status(job: Object, counted: PodCounts, end: JobEnd | None, moment: datetime) -> dict[str, Any]:
    """Return the status as it should be; None removes a field."""
    suspended = bool(job["spec"].get("suspend"))
    present = objects.status(job)
    start = present.get("startTime") or objects.format_time(moment)
    settled = end is not None and not counted.active and not counted.terminating
    complete = settled and end is not None and end.kind == "Complete"
    return {
        "active": len(counted.active) or None,
        "ready": sum(map(objects.is_ready, counted.active)),
        "terminating": counted.terminating,
        "succeeded": counted.succeeded or None,
        "failed": counted.failed or None,
        "startTime": None if suspended and not settled else start,
        "completionTime": objects.format_time(moment) if complete else present.get("completionTime"),
        "conditions": _conditions(job, end, moment, settled=settled) or None,
    }


def _conditions(job: Object, end: JobEnd | None, moment: datetime, *, settled: bool) -> list[dict[str, Any]]:
    conditions: list[dict[str, Any]] = objects.status(job).get("conditions") or []
    if end is None:
        return _suspension(job, conditions, moment)
    early = "SuccessCriteriaMet" if end.kind == "Complete" else "FailureTarget"
    for kind in (early, end.kind) if settled else (early,):
        conditions = objects.set_condition(conditions, ConditionUpdate(kind, "True", end.reason, end.message), moment)
    return conditions


def _suspension(job: Object, conditions: list[dict[str, Any]], moment: datetime) -> list[dict[str, Any]]:
    if job["spec"].get("suspend"):
        return objects.set_condition(
            conditions, ConditionUpdate("Suspended", "True", "JobSuspended", "Job suspended"), moment
        )
    if objects.condition(job, "Suspended"):
        return objects.set_condition(
            conditions, ConditionUpdate("Suspended", "False", "JobResumed", "Job resumed"), moment
        )
    return conditions


def build_pod(job: Object) -> Object:
    """Return the next pod of a Job."""
    pod = objects.pod_from_template(job["spec"]["template"], job)
    labels = pod["metadata"]["labels"]
    labels |= dict.fromkeys(_LABELS, objects.name(job)) | dict.fromkeys(_UID_LABELS, objects.uid(job))
    return pod


_BACKOFF_SECONDS = 10.0


@dataclass(slots=True)
class _DeletedPods:
    """Pods that no longer exist but count."""

    succeeded: int
    failed: int


class Jobs(QueueController[Key]):
    """Keeps every Job's pods and status, and deletes Jobs whose time to live is over."""

    name = "job"
    watches = (JOBS, PODS)

    def __init__(self, cluster: ControllerManager, *, backoff_seconds: float = _BACKOFF_SECONDS) -> None:
        """Follow Jobs and their pods; the first failed pod is replaced after ``backoff_seconds``."""
        super().__init__(cluster)
        self._backoff_seconds = backoff_seconds
        self._gone: dict[str, _DeletedPods] = {}
        self._dismissed: set[str] = set()
        self._jobs, self._pods = cluster.informer(JOBS), cluster.informer(PODS)
        enqueue_owners(cluster, JOBS, PODS, self.queue.add)
        self._jobs.on_change(self._job_changed)
        self._pods.on_change(self._pod_changed)

    def _job_changed(self, old: Object | None, new: Object | None) -> None:
        if new is not None:
            self.queue.add(objects.key_of(new))
        elif old is not None:
            self._gone.pop(objects.uid(old), None)

    def _pod_changed(self, old: Object | None, new: Object | None) -> None:
        if new is not None or old is None:
            return
        gone = self._gone.get(objects.controller_uid(old))
        if objects.uid(old) in self._dismissed:
            self._dismissed.discard(objects.uid(old))
        elif gone is not None and objects.phase(old) == "Succeeded":
            gone.succeeded += 1
        elif gone is not None:
            gone.failed += 1

    async def sync(self, key: Key) -> None:
        """Take the Job's next step, then write the status."""
        job = self._jobs.objects.get(key)
        if job is None or objects.is_deleting(job):
            return
        moment = objects.now()
        if is_finished(job):
            await self._expire(job, moment)
            return
        counted = self._tally(job)
        end = find_end(job, counted, moment)
        try:
            if end is not None:
                await gather_all([self._dismiss(job, pod) for pod in counted.active])
            elif objects.status(job).get("startTime") or job["spec"].get("suspend"):
                await self._provide(job, counted, moment)
        finally:
            await self._write(job, end, moment)

    def _tally(self, job: Object) -> PodCounts:
        pods = [
            pod for pod in self._pods.by("controller uid", objects.uid(job)) if objects.uid(pod) not in self._dismissed
        ]
        gone = self._gone.get(objects.uid(job))
        if gone is None:
            gone = self._gone[objects.uid(job)] = _count_deleted(job, pods)
        return count_pods(pods, gone_succeeded=gone.succeeded, gone_failed=gone.failed)

    async def _provide(self, job: Object, counted: PodCounts, moment: datetime) -> None:
        need = plan_pods(job, counted, moment, backoff_seconds=self._backoff_seconds)
        await gather_all([self._dismiss(job, pod) for pod in need.delete])
        if need.create and need.after > 0:
            self.queue.add_after(objects.key_of(job), need.after)
            return
        await gather_all([self.create_pod(job, build_pod(job)) for _ in range(need.create)])

    async def _dismiss(self, job: Object, pod: Object) -> None:
        self._dismissed.add(objects.uid(pod))
        try:
            await self.delete_pod(job, pod)
        except BaseException:
            self._dismissed.discard(objects.uid(pod))
            raise

    async def _write(self, job: Object, end: JobEnd | None, moment: datetime) -> None:
        wanted = build_status(job, self._tally(job), end, moment)
        await self.cluster.write_status(JOBS, job, wanted)
        written = self._jobs.objects.get(objects.key_of(job))
        if end is not None and written is not None and is_finished(written):
            if end.kind == "Complete":
                self.event(job, "Completed", "Job completed")
            else:
                self.event(job, end.reason, end.message, warning=True)
        pause = seconds_to_deadline(written or job, moment)
        if end is None and pause is not None:
            self.queue.add_after(objects.key_of(job), pause)

    async def _expire(self, job: Object, moment: datetime) -> None:
        lifetime = job["spec"].get("ttlSecondsAfterFinished")
        if lifetime is None:
            return
        ended = objects.condition(job, "Complete") or objects.condition(job, "Failed") or {}
        left = float(lifetime) - objects.seconds_since(ended.get("lastTransitionTime"), moment)
        if left > 0:
            self.queue.add_after(objects.key_of(job), left)
            return
        pods = self._pods.by("controller uid", objects.uid(job))
        await gather_all([self.cluster.delete(PODS, pod) for pod in pods])
        await self.cluster.delete(JOBS, job)


def _count_deleted(job: Object, pods: list[Object]) -> _DeletedPods:
    """Return what the status counts beyond the pods that are there, after a restart."""
    counted = count_pods(pods, gone_succeeded=0, gone_failed=0)
    status = objects.status(job)
    return _DeletedPods(
        max(int(status.get("succeeded") or 0) - counted.succeeded, 0),
        max(int(status.get("failed") or 0) - counted.failed, 0),
    )
