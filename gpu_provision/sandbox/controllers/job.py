"""The Job controller: runs pods until enough have succeeded or too many have failed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import JOBS, PODS, Object
from gpu_provision.sandbox.controllers.manager import (
    OWNED,
    ControllerManager,
    QueueController,
    enqueue_owners,
    gather_all,
)
from gpu_provision.sandbox.objects import ConditionUpdate, Key

_FIRST_BACKOFF, _MAX_BACKOFF = 10.0, 600.0
_LABELS = ("job-name", "batch.kubernetes.io/job-name")
_UID_LABELS = ("controller-uid", "batch.kubernetes.io/controller-uid")


class PodCounts(NamedTuple):
    """The pods of a Job, counted."""

    active: list[Object]
    terminating: int
    succeeded: int
    failed: int
    last_failure: str


def count_pods(pods: Sequence[Object]) -> PodCounts:
    """Count pods; one that is deleted before it succeeded has failed."""
    terminating = [pod for pod in pods if objects.is_deleting(pod) and not objects.is_finished(pod)]
    failed = [pod for pod in pods if objects.phase(pod) == "Failed"] + terminating
    return PodCounts(
        active=[pod for pod in pods if objects.is_active(pod)],
        terminating=len(terminating),
        succeeded=sum(objects.phase(pod) == "Succeeded" for pod in pods),
        failed=len(failed),
        last_failure=max(map(_end_time, failed), default=""),
    )


def _end_time(pod: Object) -> str:
    states = (one.get("state") or {} for one in objects.container_statuses(pod))
    times = ((state.get("terminated") or {}).get("finishedAt") or "" for state in states)
    return max(times, default="") or pod["metadata"].get("deletionTimestamp") or objects.creation_timestamp(pod)


def find_finish(job: Object) -> Object | None:
    """Return the condition with which the Job ended; None while it goes on."""
    kind = next((one for one in ("Complete", "Failed") if objects.has_condition(job, one)), "")
    return objects.condition(job, kind)


def find_end(job: Object, counted: PodCounts) -> ConditionUpdate | None:
    """Return the condition, Complete or Failed, with which the Job ends now; None while it goes on."""
    for kind, decided in (("Failed", "FailureTarget"), ("Complete", "SuccessCriteriaMet")):
        if told := objects.condition(job, decided):  # decided before; its pods are on their way out
            return ConditionUpdate(kind, "True", told["reason"], told["message"])
    spec = job["spec"]
    limit = int(spec["backoffLimit"])
    restarts = 0
    if spec["template"]["spec"].get("restartPolicy") == "OnFailure":
        statuses = (one for pod in counted.active for one in objects.container_statuses(pod))
        restarts = sum(int(one.get("restartCount") or 0) for one in statuses)
    if counted.failed > limit or restarts >= max(limit, 1):
        message = "Job has reached the specified backoff limit"
        return ConditionUpdate("Failed", "True", "BackoffLimitExceeded", message)
    if counted.succeeded < int(spec.get("completions") or 1):
        return None
    return ConditionUpdate("Complete", "True", "CompletionsReached", "Reached expected number of succeeded pods")


def build_status(job: Object, counted: PodCounts, end: ConditionUpdate | None, moment: datetime) -> dict[str, Any]:
    """Return the status as it should be; None removes a field."""
    present = objects.status(job)
    decided: list[ConditionUpdate] = []
    completed = present.get("completionTime")
    if end is not None:
        decided = [end._replace(kind="SuccessCriteriaMet" if end.kind == "Complete" else "FailureTarget")]
        if not counted.active and not counted.terminating:
            decided.append(end)
            completed = objects.format_time(moment) if end.kind == "Complete" else completed
    return {
        "active": len(counted.active) or None,
        "ready": sum(map(objects.is_ready, counted.active)),
        "terminating": counted.terminating,
        "succeeded": counted.succeeded or None,
        "failed": counted.failed or None,
        "startTime": present.get("startTime") or objects.format_time(moment),
        "completionTime": completed,
        "conditions": objects.set_conditions(job, moment, *decided) or None,
    }


def build_pod(job: Object) -> Object:
    """Return the next pod of a Job."""
    pod = objects.pod_from_template(job["spec"]["template"], job)
    pod["metadata"]["labels"] |= dict.fromkeys(_LABELS, objects.name(job))
    pod["metadata"]["labels"] |= dict.fromkeys(_UID_LABELS, objects.uid(job))
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
        if finish := find_finish(job):
            await self._expire(job, finish, moment)
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
        owned = self._pods.by_index(OWNED, objects.uid(job))
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
        pause = min(_FIRST_BACKOFF * 2.0 ** min(counted.failed - 1, 20), _MAX_BACKOFF) if counted.failed else 0.0
        wait = pause - objects.seconds_since(counted.last_failure, moment)
        if pause and wait > 0:
            self.queue.add_after(objects.key_of(job), wait)
        else:
            await gather_all([self.create_pod(job, build_pod(job)) for _ in range(missing)])

    async def _write(self, job: Object, end: ConditionUpdate | None, moment: datetime) -> None:
        await self.cluster.write_status(JOBS, job, build_status(job, self._count(job), end, moment))
        if end is None or not find_finish(self._jobs.objects.get(objects.key_of(job), job)):
            return
        if end.kind == "Complete":
            self.event(job, "Completed", "Job completed")
        else:
            self.event(job, end.reason, end.message, warning=True)

    async def _expire(self, job: Object, finish: Object, moment: datetime) -> None:
        lifetime = job["spec"].get("ttlSecondsAfterFinished")
        if lifetime is None:
            return
        left = float(lifetime) - objects.seconds_since(finish.get("lastTransitionTime"), moment)
        if left > 0:
            self.queue.add_after(objects.key_of(job), left)
            return
        await gather_all([self.cluster.delete(PODS, pod) for pod in self._pods.by_index(OWNED, objects.uid(job))])
        await self.cluster.delete(JOBS, job)
