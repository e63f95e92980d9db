"""The Job controller: runs pods until enough have succeeded or too many have failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import JOBS, PODS, Object
from gpu_provision.sandbox.controllers.manager import ControllerManager, QueueController, enqueue_owners, gather_all
from gpu_provision.sandbox.objects import ConditionUpdate, Key

_FIRST_BACKOFF, _LONGEST_BACKOFF = 10.0, 600.0
_LABELS = ("job-name", "batch.kubernetes.io/job-name")
_UID_LABELS = ("controller-uid", "batch.kubernetes.io/controller-uid")


@dataclass(slots=True)
class PodCounts:
    """The pods of a Job, counted."""

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


def count_pods(pods: Sequence[Object]) -> PodCounts:
    """Count pods; one that is deleted before it succeeded has failed."""
    terminating = [pod for pod in pods if objects.is_deleting(pod) and not objects.is_finished(pod)]
    failed = [pod for pod in pods if objects.phase(pod) == "Failed"] + terminating
    active = tuple(pod for pod in pods if objects.is_active(pod))
    return PodCounts(
        active=active,
        terminating=len(terminating),
        succeeded=sum(objects.phase(pod) == "Succeeded" for pod in pods),
        failed=len(failed),
        restarts=sum(int(one.get("restartCount") or 0) for pod in active for one in objects.container_statuses(pod)),
        last_failure=max(map(_ended, failed), default=""),
    )


def _ended(pod: Object) -> str:
    states = (one.get("state") or {} for one in objects.container_statuses(pod))
    times = ((state.get("terminated") or {}).get("finishedAt") or "" for state in states)
    return max(times, default="") or pod["metadata"].get("deletionTimestamp") or objects.created(pod)


def is_finished(job: Object) -> bool:
    """Whether the Job has the condition Complete or Failed."""
    return objects.has_condition(job, "Complete") or objects.has_condition(job, "Failed")


def find_end(job: Object, counted: PodCounts) -> JobEnd | None:
    """Return how the Job ends now; None while it goes on."""
    for kind, decided in (("Failed", "FailureTarget"), ("Complete", "SuccessCriteriaMet")):
        if told := objects.condition(job, decided):  # decided before; its pods are on their way out
            return JobEnd(kind, told["reason"], told["message"])
    spec = job["spec"]
    limit = int(spec["backoffLimit"])
    restarts = counted.restarts if spec["template"]["spec"].get("restartPolicy") == "OnFailure" else 0
    if counted.failed > limit or restarts >= max(limit, 1):
        return JobEnd("Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
    done = counted.succeeded >= int(spec.get("completions") or 1)
    return JobEnd("Complete", "CompletionsReached", "Reached expected number of succeeded pods") if done else None


def build_status(job: Object, counted: PodCounts, end: JobEnd | None, moment: datetime) -> dict[str, Any]:
    """Return the status as it should be; None removes a field."""
    present = objects.status(job)
    settled = end is not None and not counted.active and not counted.terminating
    conditions: list[dict[str, Any]] = present.get("conditions") or []
    if end is not None:
        kinds = ["SuccessCriteriaMet" if end.kind == "Complete" else "FailureTarget", *([end.kind] if settled else [])]
        for kind in kinds:
            conditions = objects.set_condition(
                conditions, ConditionUpdate(kind, "True", end.reason, end.message), moment
            )
    completed = end is not None and end.kind == "Complete" and settled
    return {
        "active": len(counted.active) or None,
        "ready": sum(map(objects.is_ready, counted.active)),
        "terminating": counted.terminating,
        "succeeded": counted.succeeded or None,
        "failed": counted.failed or None,
        "startTime": present.get("startTime") or objects.format_time(moment),
        "completionTime": objects.format_time(moment) if completed else present.get("completionTime"),
        "conditions": conditions or None,
    }


def build_pod(job: Object) -> Object:
    """Return the next pod of a Job."""
    pod = objects.pod_from_template(job["spec"]["template"], job)
    pod["metadata"]["labels"] |= dict.fromkeys(_LABELS, objects.name(job)) | dict.fromkeys(
        _UID_LABELS, objects.uid(job)
    )
    return pod


class Jobs(QueueController[Key]):
    """Keeps every Job's pods and status, and deletes Jobs whose time to live is over."""

    name = "job"
    watches = (JOBS, PODS)

    def __init__(self, cluster: ControllerManager) -> None:
        """Follow Jobs and their pods."""
        super().__init__(cluster)
        self._dismissed: set[str] = set()
        self._jobs, self._pods = cluster.informer(JOBS), cluster.informer(PODS)
        enqueue_owners(cluster, JOBS, PODS, self.queue.add)
        self._jobs.on_event(lambda _, obj: self.queue.add(objects.key_of(obj)))

    async def sync(self, key: Key) -> None:
        """Take the Job's next step, then write the status."""
        job = self._jobs.objects.get(key)
        if job is None or objects.is_deleting(job):
            return
        moment = objects.now()
        if is_finished(job):
            await self._expire(job, moment)
            return
        counted = self._count(job)
        end = find_end(job, counted)
        try:
            if end is not None:
                await gather_all([self.delete_pod(job, pod) for pod in counted.active])
            elif objects.status(job).get("startTime"):
                await self._scale(job, counted, moment)
        finally:
            await self._write(job, end, moment)

    def _count(self, job: Object) -> PodCounts:
        owned = self._pods.by("controller uid", objects.uid(job))
        return count_pods([pod for pod in owned if objects.uid(pod) not in self._dismissed])

    async def _scale(self, job: Object, counted: PodCounts, moment: datetime) -> None:
        """Create missing pods and delete surplus ones; failures delay the creation, doubled each time."""
        spec = job["spec"]
        wanted = min(int(spec["parallelism"]), int(spec.get("completions") or 1) - counted.succeeded)
        missing = wanted - len(counted.active)
        if missing <= 0:
            surplus = counted.active[len(counted.active) + missing :]
            await gather_all([self.delete_pod(job, pod) for pod in surplus])
            self._dismissed.update(map(objects.uid, surplus))  # no failures of the Job
            return
        pause = min(_FIRST_BACKOFF * 2.0 ** min(counted.failed - 1, 20), _LONGEST_BACKOFF) if counted.failed else 0.0
        wait = pause - objects.seconds_since(counted.last_failure, moment)
        if pause and wait > 0:
            self.queue.add_after(objects.key_of(job), wait)
        else:
            await gather_all([self.create_pod(job, build_pod(job)) for _ in range(missing)])

    async def _write(self, job: Object, end: JobEnd | None, moment: datetime) -> None:
        await self.cluster.write_status(JOBS, job, build_status(job, self._count(job), end, moment))
        written = self._jobs.objects.get(objects.key_of(job), job)
        if end is not None and is_finished(written):
            reason, message = ("Completed", "Job completed") if end.kind == "Complete" else end[1:]
            self.event(job, reason, message, warning=end.kind == "Failed")

    async def _expire(self, job: Object, moment: datetime) -> None:
        lifetime = job["spec"].get("ttlSecondsAfterFinished")
        if lifetime is None:
            return
        ended = objects.condition(job, "Complete") or objects.condition(job, "Failed") or {}
        left = float(lifetime) - objects.seconds_since(ended.get("lastTransitionTime"), moment)
        if left > 0:
            self.queue.add_after(objects.key_of(job), left)
            return
        await gather_all([self.cluster.delete(PODS, pod) for pod in self._pods.by("controller uid", objects.uid(job))])
        await self.cluster.delete(JOBS, job)
