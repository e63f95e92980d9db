"""The Job controller: runs pods until enough have succeeded or too many have failed; its plan is pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.controllers import objects
from gpu_provision.sandbox.controllers.claims import enqueue_owners
from gpu_provision.sandbox.controllers.cluster import Cluster, Controller, all_of
from gpu_provision.sandbox.controllers.events import Note
from gpu_provision.sandbox.controllers.objects import Condition
from gpu_provision.sandbox.controllers.resources import JOBS, PODS
from gpu_provision.sandbox.informer import Key

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
    return max(float(limit) - objects.seconds_since(start, moment), 0.0)


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
    return Need(-surplus, (), max(pause - objects.seconds_since(counted.last_failure, moment), 0.0))


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
    start = present.get("startTime") or objects.text(moment)
    settled = end is not None and not counted.active and not counted.terminating
    complete = settled and end is not None and end.kind == "Complete"
    return {
        "active": len(counted.active) or None,
        "ready": sum(map(objects.is_ready, counted.active)),
        "terminating": counted.terminating,
        "succeeded": counted.succeeded or None,
        "failed": counted.failed or None,
        "startTime": None if suspended and not settled else start,
        "completionTime": objects.text(moment) if complete else present.get("completionTime"),
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


_BACKOFF_SECONDS = 10.0


@dataclass(slots=True)
class _Gone:
    """Pods that no longer exist but count."""

    succeeded: int
    failed: int


class Jobs(Controller[Key]):
    """Keeps every Job's pods and status, and deletes Jobs whose time to live is over."""

    name = "job"
    watches = (JOBS, PODS)

    def __init__(self, cluster: Cluster, *, backoff_seconds: float = _BACKOFF_SECONDS) -> None:
        """Follow Jobs and their pods; the first failed pod is replaced after ``backoff_seconds``."""
        super().__init__(cluster)
        self._backoff_seconds = backoff_seconds
        self._gone: dict[str, _Gone] = {}
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
        end = end_of(job, counted, moment)
        try:
            if end is not None:
                await all_of([self._dismiss(job, pod) for pod in counted.active])
            elif objects.status(job).get("startTime") or job["spec"].get("suspend"):
                await self._provide(job, counted, moment)
        finally:
            await self._write(job, end, moment)

    def _tally(self, job: Object) -> Tally:
        pods = [
            pod for pod in self._pods.by("controller uid", objects.uid(job)) if objects.uid(pod) not in self._dismissed
        ]
        gone = self._gone.get(objects.uid(job))
        if gone is None:
            gone = self._gone[objects.uid(job)] = _never_seen(job, pods)
        return tally(pods, gone_succeeded=gone.succeeded, gone_failed=gone.failed)

    async def _provide(self, job: Object, counted: Tally, moment: datetime) -> None:
        need = need_of(job, counted, moment, backoff_seconds=self._backoff_seconds)
        await all_of([self._dismiss(job, pod) for pod in need.delete])
        if need.create and need.after > 0:
            self.queue.add_after(objects.key_of(job), need.after)
            return
        await all_of([self._create(job) for _ in range(need.create)])

    async def _create(self, job: Object) -> None:
        body = pod_for(job, objects.controller_ref(JOBS, job))
        try:
            pod = await self.cluster.create(PODS, body, objects.namespace(job))
        except Exception as error:
            self.event(JOBS, job, Note("FailedCreate", f"Error creating: {error}", warning=True))
            raise
        self.event(JOBS, job, Note("SuccessfulCreate", f"Created pod: {objects.name(pod)}"))

    async def _dismiss(self, job: Object, pod: Object) -> None:
        self._dismissed.add(objects.uid(pod))
        try:
            await self.cluster.delete(PODS, pod)
        except BaseException:
            self._dismissed.discard(objects.uid(pod))
            raise
        self.event(JOBS, job, Note("SuccessfulDelete", f"Deleted pod: {objects.name(pod)}"))

    async def _write(self, job: Object, end: End | None, moment: datetime) -> None:
        wanted = status(job, self._tally(job), end, moment)
        await self.cluster.write_status(JOBS, job, wanted)
        written = self._jobs.objects.get(objects.key_of(job))
        if end is not None and written is not None and is_finished(written):
            note = (
                Note("Completed", "Job completed")
                if end.kind == "Complete"
                else Note(end.reason, end.message, warning=True)
            )
            self.event(JOBS, job, note)
        pause = deadline(written or job, moment)
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
        await all_of([self.cluster.delete(PODS, pod) for pod in pods])
        await self.cluster.delete(JOBS, job)


def _never_seen(job: Object, pods: list[Object]) -> _Gone:
    """Return what the status counts beyond the pods that are there, after a restart."""
    counted = tally(pods, gone_succeeded=0, gone_failed=0)
    status = objects.status(job)
    return _Gone(
        max(int(status.get("succeeded") or 0) - counted.succeeded, 0),
        max(int(status.get("failed") or 0) - counted.failed, 0),
    )
